package criconfig

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	for _, p := range serviceEnv(all, "ns", true) {
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
	for _, p := range serviceEnv(all, "ns", false) {
		if strings.HasPrefix(p.name, "MY_DB") {
			t.Errorf("%s is set without links", p.name)
		}
	}
}
