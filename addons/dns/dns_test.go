package dns

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/apitest"
)

// The server answers over real sockets on loopback, from a real API server.
func TestNames(t *testing.T) {
	api, stop := apitest.New(t)
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client := api.Client(t)
	create := func(svc *corev1.Service) {
		t.Helper()
		if _, err := client.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	create(&corev1.Service{ObjectMeta: named("web"), Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.80", Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}})
	create(&corev1.Service{ObjectMeta: named("db"), Spec: corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Name: "sql", Port: 5432}}}})
	create(&corev1.Service{ObjectMeta: named("ext"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "web.default.svc.cluster.local"}})
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "db-1", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.42.0.5"}, Hostname: new("db-0"), Conditions: discoveryv1.EndpointConditions{Ready: new(true)}},
			{Addresses: []string{"10.42.0.6"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
		},
		Ports: []discoveryv1.EndpointPort{{Name: new("sql"), Port: new(int32(5432)), Protocol: new(corev1.ProtocolTCP)}},
	}
	if _, err := client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	at := netip.MustParseAddrPort("127.0.0.1:50053")
	s, err := New(Config{Kube: api.Config(), Listen: []netip.AddrPort{at}, ResolvConf: "/dev/null"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	runCtx, end := context.WithCancel(ctx)
	go func() { done <- s.Run(runCtx) }()
	defer func() {
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-s.Serving():
	case <-ctx.Done():
		t.Fatal("not serving in time")
	}
	for _, c := range []struct {
		name  string
		qtype uint16
		want  string // rcode and the data of the answers
	}{
		{"web.default.svc.cluster.local.", dns.TypeA, "NOERROR 10.43.0.80"},
		{"WEB.default.svc.Cluster.local.", dns.TypeA, "NOERROR 10.43.0.80"},
		{"web.default.svc.cluster.local.", dns.TypeAAAA, "NOERROR"},
		{"kubernetes.default.svc.cluster.local.", dns.TypeA, "NOERROR 10.43.0.1"},
		{"db.default.svc.cluster.local.", dns.TypeA, "NOERROR 10.42.0.5"},
		{"db-0.db.default.svc.cluster.local.", dns.TypeA, "NOERROR 10.42.0.5"},
		{"db-1.db.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"_sql._tcp.db.default.svc.cluster.local.", dns.TypeSRV, "NOERROR 0 100 5432 db-0.db.default.svc.cluster.local."},
		{"_http._tcp.web.default.svc.cluster.local.", dns.TypeSRV, "NOERROR 0 100 80 web.default.svc.cluster.local."},
		{"ext.default.svc.cluster.local.", dns.TypeA, "NOERROR web.default.svc.cluster.local. 10.43.0.80"},
		{"10-42-0-9.default.pod.cluster.local.", dns.TypeA, "NOERROR 10.42.0.9"},
		{"10-42-0-9.nowhere.pod.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"none.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"80.0.43.10.in-addr.arpa.", dns.TypePTR, "NOERROR web.default.svc.cluster.local."},
		{"5.0.42.10.in-addr.arpa.", dns.TypePTR, "NOERROR db-0.db.default.svc.cluster.local."},
		{"dns-version.cluster.local.", dns.TypeTXT, `NOERROR "1.1.0"`},
		{"example.com.", dns.TypeA, "SERVFAIL"}, // no server to ask
	} {
		q := new(dns.Msg)
		q.SetQuestion(c.name, c.qtype)
		for _, network := range []string{"udp", "tcp"} {
			m, _, err := (&dns.Client{Net: network}).Exchange(q, at.String())
			if err != nil {
				t.Fatalf("%s by %s: %v", c.name, network, err)
			}
			got := dns.RcodeToString[m.Rcode]
			for _, rr := range m.Answer {
				got += " " + strings.TrimPrefix(rr.String(), rr.Header().String())
			}
			if got != c.want {
				t.Errorf("%s %s by %s: %s, want %s", dns.TypeToString[c.qtype], c.name, network, got, c.want)
			}
		}
	}
}

func BenchmarkAnswer(b *testing.B) {
	api, stop := apitest.New(b)
	defer stop()
	s, err := New(Config{Kube: api.Config(), Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:50054")}})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	s.watches.Start(ctx)
	cache.WaitForCacheSync(ctx.Done(), s.records.synced...)
	defer s.watches.Stop()
	defer cancel()
	query, err := asks("kubernetes.default.svc.cluster.local.").Pack()
	if err != nil {
		b.Fatal(err)
	}
	out, lower := make([]byte, 0, 512), make([]byte, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		out, done := s.atOnce(query, lower, out[:0], netip.AddrFrom4([4]byte{10, 42, 0, 5}))
		if !done {
			out = s.later(query, netip.AddrFrom4([4]byte{10, 42, 0, 5}), false)
		}
		if out[7] != 1 {
			b.Fatal(out)
		}
	}
}
