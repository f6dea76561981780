package gateway

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/internal/need"
	"knarr/internal/programs"
)

// A Gateway gets a Service and its status, and the Secret of its listener can be read.
func TestGateway(t *testing.T) {
	if _, err := programs.Read(programs.Definitions); errors.Is(err, programs.ErrMissing) {
		need.Skip(t, err)
	}
	inWorld(t, false, func(w *testWorld) {
		w.node("n1", "10.0.0.1")
		w.service("web")
		w.slice("web", "10.42.0.5")
		w.secret("cert", "a.example")
		w.secret("private", "b.example")
		api, err := newAPIClient(w.api.Config())
		w.no(err)
		time.Sleep(time.Minute)
		if got := w.hasSettled(); !slices.Equal(got, []PortsOf{Ingresses, Gateways}) {
			t.Errorf("known are %v", got)
		}
		g := &gw.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "g"}, Spec: gw.GatewaySpec{GatewayClassName: ClassName, Listeners: []gw.Listener{
			{Name: "https", Port: 443, Protocol: gw.HTTPSProtocolType, TLS: &gw.ListenerTLSConfig{CertificateRefs: []gw.SecretObjectReference{{Name: "cert"}}}},
		}}}
		w.no(api.rest.Post().Namespace("default").Resource("gateways").Body(g).Do(w.ctx).Error())
		time.Sleep(10 * time.Second)
		secrets := w.api.Client(t, nodeUser).CoreV1().Secrets("default")
		if _, err := secrets.Get(w.ctx, "cert", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		if _, err := secrets.Get(w.ctx, "private", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			t.Error(err)
		}
		got := &gw.Gateway{}
		w.no(api.rest.Get().Namespace("default").Resource("gateways").Name("g").Do(w.ctx).Into(got))
		if len(got.Status.Listeners) != 1 || len(got.Status.Conditions) != 3 {
			t.Errorf("%+v", got.Status)
		}
	})
}

// An Ingress is authenticated by a Service of another namespace once that one grants it.
func TestIngressGranted(t *testing.T) {
	if _, err := programs.Read(programs.Definitions); errors.Is(err, programs.ErrMissing) {
		need.Skip(t, err)
	}
	inWorld(t, false, func(w *testWorld) {
		w.service("web")
		_, err := w.client.CoreV1().Namespaces().Create(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "auth"}}, metav1.CreateOptions{})
		w.no(err)
		_, err = w.client.CoreV1().Services("auth").Create(w.ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "proxy"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 4180}}}}, metav1.CreateOptions{})
		w.no(err)
		w.ingress("i", "a.example", "web", func(ing *networkingv1.Ingress) {
			ing.Annotations = map[string]string{"nginx.ingress.kubernetes.io/auth-url": "http://proxy.auth.svc.cluster.local:4180/oauth2/auth"}
		})
		w.serves("a.example/ -> 503")
		if got, want := w.events("i"), "Service auth/proxy is of another namespace; a ReferenceGrant there would allow it"; !strings.Contains(got, want) {
			t.Errorf("%s", got)
		}
		time.Sleep(time.Minute) // the kinds are installed
		api, err := newAPIClient(w.api.Config())
		w.no(err)
		grant := &gw.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "auth", Name: "g"}, Spec: gw.ReferenceGrantSpec{
			From: []gw.ReferenceGrantFrom{{Group: networkingv1.GroupName, Kind: "Ingress", Namespace: "default"}}, To: []gw.ReferenceGrantTo{{Kind: "Service"}},
		}}
		w.no(api.rest.Post().Namespace("auth").Resource("referencegrants").Body(grant).Do(w.ctx).Error())
		w.serves("a.example/ -> default/web:80")
		w.no(api.rest.Delete().Namespace("auth").Resource("referencegrants").Name("g").Do(w.ctx).Error())
		w.serves("a.example/ -> 503")
	})
}
