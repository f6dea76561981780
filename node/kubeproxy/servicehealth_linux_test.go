package kubeproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// A load balancer asks the node for its endpoints of a Service, and reads that
// there are none, or that the proxy is not well.
func TestHealthCheckNodePort(t *testing.T) {
	inNamespace(t)
	y, events := fedSyncer(t, &choosy{})
	svc := service("web", "10.43.0.7", corev1.ServicePort{Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP})
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	svc.Spec.HealthCheckNodePort = 30100
	sync := func(endpoints ...string) {
		t.Helper()
		if err := y.proxy.services.GetStore().Add(svc); err != nil {
			t.Fatal(err)
		}
		if err := y.proxy.slices.GetStore().Add(slice("web", 8080, endpoints...)); err != nil {
			t.Fatal(err)
		}
		y.pending.add(cache.MetaObjectToName(svc))
		if err := y.sync(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	want := func(code, local int, healthy bool) {
		t.Helper()
		conn, err := net.Dial("tcp", "10.1.0.1:30100") // in this thread's namespace
		if err != nil {
			t.Fatal(err)
		}
		client.Transport.(*http.Transport).Dial = func(string, string) (net.Conn, error) { return conn, nil }
		r, err := client.Get("http://10.1.0.1:30100/")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		text := fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}", local, healthy)
		if err != nil || r.StatusCode != code || string(b) != text || r.Header.Get("X-Load-Balancing-Endpoint-Weight") != fmt.Sprint(local) {
			t.Errorf("%v %v\n%s, %v, want %d\n%s", r.Status, r.Header, b, err, code, text)
		}
	}
	sync("10.1.0.1", "10.1.0.2") // the first is on n1
	want(200, 1, true)
	y.proxy.setErr(errors.New("no nftables"))
	want(503, 1, false)
	y.proxy.setErr(nil)
	sync()
	want(503, 0, true)
	svc = svc.DeepCopy()
	svc.Spec.ExternalTrafficPolicy, svc.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyCluster, 0
	sync()
	if c, err := net.Dial("tcp", "10.1.0.1:30100"); err == nil {
		c.Close()
		t.Error("the port still answers")
	}
	// Somebody else has the port.
	l, err := net.Listen("tcp", ":30101")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	svc = svc.DeepCopy()
	svc.Spec.ExternalTrafficPolicy, svc.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 30101
	sync()
	sync()
	if n := len(events.Events); n != 1 {
		t.Fatalf("%d events", n)
	}
	if e := <-events.Events; !strings.HasPrefix(e, `Warning FailedToStartServiceHealthcheck node n1 failed to start healthcheck "ns/web" on port 30101: `) {
		t.Error(e)
	}
	if y.health.servers[cache.MetaObjectToName(svc)].timer == nil {
		t.Error("it is not tried again")
	}
	l.Close() // and gives it back
	sync()
	conn, err := net.Dial("tcp", "10.1.0.1:30101")
	if err != nil {
		t.Fatalf("the port that is free: %v", err)
	}
	conn.Close()
}
