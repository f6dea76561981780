package criconfig

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/node/kubelet/expansion"
)

func service(ns, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: ports}}
}

func TestServiceEnv(t *testing.T) {
	all := []*corev1.Service{
		service("default", "kubernetes", "10.0.0.1", corev1.ServicePort{Name: "https", Port: 443}),
		service("ns", "my-db", "10.0.0.2", corev1.ServicePort{Port: 5432, Protocol: corev1.ProtocolTCP}),
		service("ns", "headless", "None", corev1.ServicePort{Port: 1}),
		service("other", "far", "10.0.0.3", corev1.ServicePort{Port: 1}),
	}
	got := map[string]string{}
	env := func(links bool) []variable {
		t.Helper()
		left := expansion.Container
		list, err := serviceEnv(all, "ns", links, &left)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	for _, p := range env(true) {
		got[p.name] = p.value
	}
	for k, v := range map[string]string{
		"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "KUBERNETES_SERVICE_PORT_HTTPS": "443",
		"KUBERNETES_PORT": "tcp://10.0.0.1:443", "MY_DB_SERVICE_HOST": "10.0.0.2", "MY_DB_PORT_5432_TCP_ADDR": "10.0.0.2", "MY_DB_PORT_5432_TCP_PROTO": "tcp",
	} {
		if got[k] != v {
			t.Errorf("%s=%q, want %q", k, got[k], v)
		}
	}
	for k := range got {
		if strings.HasPrefix(k, "FAR") || strings.HasPrefix(k, "HEADLESS") {
			t.Errorf("%s is set", k)
		}
	}
	for _, p := range env(false) {
		if strings.HasPrefix(p.name, "MY_DB") {
			t.Errorf("%s is set without links", p.name)
		}
	}
}

// TestServiceEnvBounded: a namespace's Services make no more variables than a process can have.
func TestServiceEnvBounded(t *testing.T) {
	ports := make([]corev1.ServicePort, 20_000)
	for i := range ports {
		ports[i] = corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: int32(i + 1)}
	}
	var all []*corev1.Service
	for i := range 20 {
		all = append(all, service("ns", fmt.Sprintf("many-%d", i), "10.0.0.1", ports...))
	}
	left := expansion.Container
	list, err := serviceEnv(all, "ns", true, &left)
	if !errors.Is(err, expansion.ErrTooLarge) || !strings.Contains(err.Error(), "enableServiceLinks") || len(list) != 0 {
		t.Errorf("%d variables, %v", len(list), err)
	}
	left = expansion.Container
	if list, err := serviceEnv(all, "ns", false, &left); err != nil || len(list) != 0 {
		t.Errorf("%d variables without links, %v", len(list), err)
	}
}
