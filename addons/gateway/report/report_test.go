package report

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/apitest"
)

// The report names what changes, Ingress by Ingress, and leaves other classes alone.
func TestWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, stop := apitest.New(t)
		defer stop()
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		client := api.Client(t)
		say := func() string {
			t.Helper()
			var b strings.Builder
			if err := Write(ctx, api.Config(), &b); err != nil {
				t.Fatal(err)
			}
			return b.String()
		}
		if got := say(); got != "No Ingress of this cluster is served by ingress-nginx.\n" {
			t.Error(got)
		}
		if _, err := client.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for name, of := range map[string]struct {
			class       string
			annotations map[string]string
		}{
			"plain":   {"nginx", map[string]string{"nginx.ingress.kubernetes.io/proxy-connect-timeout": "5"}},
			"snippet": {"nginx", map[string]string{"nginx.ingress.kubernetes.io/server-snippet": "deny all;", "nginx.ingress.kubernetes.io/use-regex": "true"}},
			"other":   {"traefik", map[string]string{"nginx.ingress.kubernetes.io/server-snippet": "deny all;"}},
		} {
			ing := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: of.annotations}, Spec: networkingv1.IngressSpec{IngressClassName: &of.class, Rules: []networkingv1.IngressRule{{
				Host: name + ".example", IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
					Path: "/", PathType: new(networkingv1.PathTypePrefix), Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}},
				}}}},
			}}}}
			if _, err := client.NetworkingV1().Ingresses("default").Create(ctx, ing, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		want := `Ingress default/snippet
  changes: annotation nginx.ingress.kubernetes.io/server-snippet cannot be followed, so that every request is answered with 503: configuration of nginx is not read; say what it did by other annotations, or in the application
  note:    annotation nginx.ingress.kubernetes.io/use-regex: expressions are RE2's: look-around and back references are refused
1 of 2 Ingresses have something that changes.
`
		if got := say(); !strings.HasPrefix(got, want) {
			t.Error(got)
		}
		if strings.Contains(say(), "several namespaces") {
			t.Error("a host of several namespaces is named where there is none")
		}
		if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		class := "nginx"
		late := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Spec: networkingv1.IngressSpec{IngressClassName: &class, Rules: []networkingv1.IngressRule{{Host: "plain.example"}}}}
		if _, err := client.NetworkingV1().Ingresses("late").Create(ctx, late, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got, want := say(), "Hosts that several namespaces name, which nginx served for all of them:\n  host plain.example is served for namespace default alone; not for late\n"; !strings.Contains(got, want) {
			t.Error(got)
		}
	})
}
