package endpoints

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func testService(name string, change func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80), Protocol: "TCP"}}, Selector: map[string]string{"a": "b"}}}
	if change != nil {
		change(&s.Spec)
	}
	return s
}

func TestServicesGetAddressesAndPorts(t *testing.T) {
	w := newWholeWorld(t)
	ctx := context.Background()
	services := w.client.CoreV1().Services("default")
	first, err := services.Create(ctx, testService("one", func(s *corev1.ServiceSpec) { s.Type = "NodePort" }), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	port := first.Spec.Ports[0].NodePort
	if port < 30000 || port > 32767 || !strings.HasPrefix(first.Spec.ClusterIP, "10.43.") || first.Spec.ClusterIPs[0] != first.Spec.ClusterIP || first.Spec.IPFamilies[0] != "IPv4" {
		t.Errorf("allocated: %+v", first.Spec)
	}
	if _, err := w.client.NetworkingV1().IPAddresses().Get(ctx, first.Spec.ClusterIP, metav1.GetOptions{}); err != nil {
		t.Errorf("its IPAddress: %v", err)
	}
	for name, c := range map[string]struct {
		change func(*corev1.ServiceSpec)
		want   string
	}{
		"same-ip":      {func(s *corev1.ServiceSpec) { s.ClusterIP = first.Spec.ClusterIP }, "provided IP is already allocated"},
		"outside":      {func(s *corev1.ServiceSpec) { s.ClusterIP = "10.99.0.1" }, "the provided network does not match the current range"},
		"same-port":    {func(s *corev1.ServiceSpec) { s.Type, s.Ports[0].NodePort = "NodePort", port }, "provided port is already allocated"},
		"low-port":     {func(s *corev1.ServiceSpec) { s.Type, s.Ports[0].NodePort = "NodePort", 80 }, "provided port is not in the valid range. The range of valid ports is 30000-32767"},
		"dual":         {func(s *corev1.ServiceSpec) { s.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack) }, "this cluster is not configured for dual-stack services"},
		"other-family": {func(s *corev1.ServiceSpec) { s.IPFamilies = []corev1.IPFamily{"IPv6"} }, "not configured on this cluster"},
	} {
		if _, err := services.Create(ctx, testService(name, c.change), metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	// A refused service leaves nothing behind: the address is still one's own.
	first.Spec.ClusterIP, first.Spec.ClusterIPs = "", nil
	again, err := services.Update(ctx, first, metav1.UpdateOptions{})
	if err != nil || again.Spec.Ports[0].NodePort != port {
		t.Errorf("the same manifest again: %+v, %v", again.Spec, err)
	}
	ip := again.Spec.ClusterIP
	if err := services.Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := services.Create(ctx, testService("two", func(s *corev1.ServiceSpec) {
		s.ClusterIP, s.Type, s.Ports[0].NodePort = ip, "NodePort", port
	}), metav1.CreateOptions{}); err != nil {
		t.Errorf("what a deleted service had is not free: %v", err)
	}
}
