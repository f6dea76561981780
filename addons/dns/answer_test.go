package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// withCluster puts Services and endpoints of both families into a server.
func withCluster(t testing.TB, s *Server) *Server {
	t.Helper()
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
	slice := func(name, svc string, family discoveryv1.AddressType, es ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		m := named(name)
		m.Labels = map[string]string{discoveryv1.LabelServiceName: svc}
		return &discoveryv1.EndpointSlice{ObjectMeta: m, AddressType: family, Endpoints: es,
			Ports: []discoveryv1.EndpointPort{{Name: new("sql"), Port: new(int32(5432)), Protocol: new(corev1.ProtocolTCP)}}}
	}
	pod := func(name string) *corev1.ObjectReference { return &corev1.ObjectReference{Kind: "Pod", Name: name} }
	for _, o := range []any{
		&corev1.Service{ObjectMeta: named("web"), Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.80", ClusterIPs: []string{"10.43.0.80", "fd43::80"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}}}},
		&corev1.Service{ObjectMeta: named("db"), Spec: corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}}},
		&corev1.Service{ObjectMeta: named("empty"), Spec: corev1.ServiceSpec{ClusterIP: "None"}},
		&corev1.Service{ObjectMeta: named("ext"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "web.default.svc.cluster.local"}},
	} {
		if err := s.records.services.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range []any{
		slice("web-1", "web", discoveryv1.AddressTypeIPv4, discoveryv1.Endpoint{Addresses: []string{"10.42.0.9"}, TargetRef: pod("web-x")}),
		slice("db-4", "db", discoveryv1.AddressTypeIPv4,
			discoveryv1.Endpoint{Addresses: []string{"10.42.0.5"}, Hostname: new("db-0")}, discoveryv1.Endpoint{Addresses: []string{"10.42.0.9"}, TargetRef: pod("web-x")},
			discoveryv1.Endpoint{Addresses: []string{"10.42.0.7"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}}),
		slice("db-6", "db", discoveryv1.AddressTypeIPv6, discoveryv1.Endpoint{Addresses: []string{"fd42::5"}, Hostname: new("db-0")}, discoveryv1.Endpoint{Addresses: []string{"fd42::"}}),
	} {
		if err := s.records.slices.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"default", "kube-system"} {
		if err := s.records.namespaces.Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	dnsService := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"}, Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.10"}}
	if err := s.records.services.Add(dnsService); err != nil {
		t.Fatal(err)
	}
	return s
}

// answerTo is the code and the records' values, in order of their text.
func answerTo(t testing.TB, s *Server, name string, qtype uint16) string {
	t.Helper()
	return answerFor(t, s, aPod, name, qtype)
}

func answerFor(t testing.TB, s *Server, client netip.Addr, name string, qtype uint16) string {
	t.Helper()
	q := new(dns.Msg).SetQuestion(name, qtype)
	data, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for try := range 2 { // as it is made, and from memory
		out, done := s.atOnce(data, nil, nil, client)
		if !done {
			s.queries.release(client)
			out = s.later(data, client, false)
		}
		m := new(dns.Msg)
		if err := m.Unpack(out); err != nil || m.Id != q.Id || m.Question[0] != q.Question[0] {
			t.Fatalf("%s: %v, %v", name, m, err)
		}
		var values []string
		for _, rr := range m.Answer {
			v := strings.TrimPrefix(rr.String(), rr.Header().String())
			if rr.Header().Name != name {
				v = rr.Header().Name + "=" + v
			}
			values = append(values, v)
		}
		slices.Sort(values)
		texts = append(texts, strings.Join(append([]string{dns.RcodeToString[m.Rcode]}, values...), " "))
		if texts[try] != texts[0] {
			t.Errorf("%s: %s, and from memory %s", name, texts[0], texts[try])
		}
	}
	return texts[0]
}

const clusterOnly = "kubernetes cluster.local in-addr.arpa ip6.arpa {\npods insecure\n%s}\n"

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		directives, name string
		qtype            uint16
		want             string
	}{
		{"", "db.default.svc.cluster.local.", dns.TypeA, "NOERROR 10.42.0.5 10.42.0.9"},
		{"", "DB.default.svc.cluster.local.", dns.TypeAAAA, "NOERROR fd42:: fd42::5"},
		{"", "db-0.db.default.svc.cluster.local.", dns.TypeAAAA, "NOERROR fd42::5"},
		{"", "fd42--0.db.default.svc.cluster.local.", dns.TypeAAAA, "NOERROR fd42::"},
		{"", "10-42-0-9.web.default.svc.cluster.local.", dns.TypeA, "NOERROR 10.42.0.9"},
		{"", "web.default.svc.cluster.local.", dns.TypeAAAA, "NOERROR fd43::80"},
		{"", "empty.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"", "_sql._tcp.db.default.svc.cluster.local.", dns.TypeSRV, "NOERROR 0 25 5432 10-42-0-9.db.default.svc.cluster.local. 0 25 5432 db-0.db.default.svc.cluster.local. 0 25 5432 db-0.db.default.svc.cluster.local. 0 25 5432 fd42--0.db.default.svc.cluster.local."},
		{"", "_http._tcp.web.default.svc.cluster.local.", dns.TypeSRV, "NOERROR 0 100 80 web.default.svc.cluster.local."},
		{"", "_http._udp.web.default.svc.cluster.local.", dns.TypeSRV, "NXDOMAIN"},
		{"", "9.0.42.10.in-addr.arpa.", dns.TypePTR, "NOERROR 10-42-0-9.db.default.svc.cluster.local. 10-42-0-9.web.default.svc.cluster.local."},
		{"", "7.0.42.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN"}, // not ready
		{"", "5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.2.4.d.f.ip6.arpa.", dns.TypePTR, "NOERROR db-0.db.default.svc.cluster.local."},
		{"", "0.8.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.3.4.d.f.ip6.arpa.", dns.TypePTR, "NOERROR web.default.svc.cluster.local."},
		{"", "ext.default.svc.cluster.local.", dns.TypeA, "NOERROR web.default.svc.cluster.local. web.default.svc.cluster.local.=10.43.0.80"},
		{"", "cluster.local.", dns.TypeNS, "NOERROR ns.dns.cluster.local."},
		{"", "ns.dns.cluster.local.", dns.TypeA, "NOERROR 10.43.0.10"},
		{"", "svc.cluster.local.", dns.TypeA, "NOERROR"},
		{"", "example.com.", dns.TypeA, "SERVFAIL"},
		{"endpoint_pod_names\n", "web-x.db.default.svc.cluster.local.", dns.TypeA, "NOERROR 10.42.0.9"},
		{"endpoint_pod_names\n", "9.0.42.10.in-addr.arpa.", dns.TypePTR, "NOERROR web-x.db.default.svc.cluster.local. web-x.web.default.svc.cluster.local."},
		{"pods disabled\n", "10-1-2-3.default.pod.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"pods verified\n", "10-1-2-3.default.pod.cluster.local.", dns.TypeA, "SERVFAIL"}, // not known yet
		{"", "10-1-2-3.default.pod.cluster.local.", dns.TypeA, "NOERROR 10.1.2.3"},
		{"namespaces other\n", "web.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"}\nhosts {\n10.9.9.9 a.corp b.corp\nfd09::9 a.corp\nfallthrough\n", "A.corp.", dns.TypeA, "NOERROR 10.9.9.9"},
		{"}\nhosts {\n10.9.9.9 a.corp b.corp\nfallthrough\n", "9.9.9.10.in-addr.arpa.", dns.TypePTR, "NOERROR a.corp. b.corp."},
		{"}\nhosts {\n10.9.9.9 a.corp\nfallthrough\n", "a.corp.", dns.TypeAAAA, "NOERROR"},
		{"}\nhosts {\n10.9.9.9 a.corp\nfallthrough\n", "web.default.svc.cluster.local.", dns.TypeA, "NOERROR 10.43.0.80"},
		{"}\nhosts {\n10.9.9.9 a.corp\n", "web.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"}\nrewrite name api.corp web.default.svc.cluster.local {\n", "API.corp.", dns.TypeA, "NOERROR 10.43.0.80"},
		{"}\nrewrite name suffix .corp .default.svc.cluster.local answer auto {\n", "web.corp.", dns.TypeA, "NOERROR 10.43.0.80"},
		{"}\nrewrite name suffix .corp .default.svc.cluster.local {\n", "web.corp.", dns.TypeA, "NOERROR web.default.svc.cluster.local.=10.43.0.80"},
		{"}\nrewrite name prefix old-web. web. answer auto {\n", "old-web.default.svc.cluster.local.", dns.TypeA, "NOERROR 10.43.0.80"},
		{"}\nrewrite name regex (.*)-in-(.*)\\.corp {1}.{2}.svc.cluster.local answer auto {\n", "web-in-default.corp.", dns.TypeA, "NOERROR 10.43.0.80"},
		{"}\nrewrite name regex (.*)\\.corp {1}.default.svc.cluster.local answer name (.*)\\.default\\.svc\\.cluster\\.local {1}.corp answer value (.*)\\.default\\.svc\\.cluster\\.local {1}.corp {\n", "ext.corp.", dns.TypeA, "NOERROR web.corp. web.corp.=10.43.0.80"},
		{"}\nrewrite continue name a.corp b.corp\nrewrite name b.corp web.default.svc.cluster.local {\n", "a.corp.", dns.TypeA, "NOERROR 10.43.0.80"},
		{"}\nrewrite name a.corp b.corp\nrewrite name b.corp web.default.svc.cluster.local {\n", "a.corp.", dns.TypeA, "SERVFAIL"},
	} {
		s := withCluster(t, configured(t, fmt.Sprintf(".:53 {\nloadbalance\n"+clusterOnly+"}\n", c.directives)))
		if got := answerTo(t, s, c.name, c.qtype); got != c.want {
			t.Errorf("%q: %s %s: %s, want %s", c.directives, dns.TypeToString[c.qtype], c.name, got, c.want)
		}
	}
}

// The server block of the longest zone answers; without one the query is refused,
// but the cluster's names are never lost.
func TestServerBlocks(t *testing.T) {
	s := withCluster(t, configured(t, "corp {\nhosts {\n10.0.0.1 a.corp\n}\n}\nsub.corp {\nhosts {\n10.0.0.2 a.sub.corp\n}\n}\n"))
	for name, want := range map[string]string{
		"a.corp.": "NOERROR 10.0.0.1", "a.sub.corp.": "NOERROR 10.0.0.2", "b.sub.corp.": "NXDOMAIN", "example.com.": "REFUSED",
		"web.default.svc.cluster.local.": "NOERROR 10.43.0.80",
	} {
		if got := answerTo(t, s, name, dns.TypeA); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// An answer from memory ends with what it was made of, and with nothing else.
func TestChangesEndAnswers(t *testing.T) {
	s := withCluster(t, configured(t, fmt.Sprintf(".:53 {\n"+clusterOnly+"}\n", "")))
	const name = "web.default.svc.cluster.local."
	if got := answerTo(t, s, name, dns.TypeA); got != "NOERROR 10.43.0.80" {
		t.Fatal(got)
	}
	moved := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.81", ClusterIPs: []string{"10.43.0.81"}}}
	if err := s.records.services.Update(moved); err != nil {
		t.Fatal(err)
	}
	s.records.changes.handler().OnUpdate(moved, moved)
	for name, want := range map[string]string{name: "NOERROR 10.43.0.81", "81.0.43.10.in-addr.arpa.": "NOERROR web.default.svc.cluster.local.", "80.0.43.10.in-addr.arpa.": "NXDOMAIN"} {
		qtype := dns.TypeA
		if strings.HasSuffix(name, "arpa.") {
			qtype = dns.TypePTR
		}
		if got := answerTo(t, s, name, qtype); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if err := s.records.namespaces.Delete(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}); err != nil {
		t.Fatal(err)
	}
	s.records.changes.handler().OnDelete(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	if got := answerTo(t, s, name, dns.TypeA); got != "NXDOMAIN" {
		t.Errorf("in a namespace that is gone: %s", got)
	}
}

// The addresses of a headless Service come in another order for each client, and
// an answer is as large as its client takes, and says so.
func TestAnswersAreShuffledAndFit(t *testing.T) {
	s := withCluster(t, configured(t, fmt.Sprintf(".:53 {\nloadbalance\n"+clusterOnly+"}\n", "")))
	large := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e-1", Labels: map[string]string{discoveryv1.LabelServiceName: "empty"}}}
	for i := range 100 {
		large.Endpoints = append(large.Endpoints, discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{10, 42, 1, byte(i)}).String()}})
	}
	if err := s.records.slices.Add(large); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		edns   uint16
		stream bool
		most   int
		whole  bool
	}{{0, false, 512, false}, {1232, false, 1232, false}, {65535, false, 1232, false}, {100, false, 512, false}, {0, true, 65535, true}} {
		q := asks("empty.default.svc.cluster.local.")
		if c.edns > 0 {
			q.SetEdns0(c.edns, false)
		}
		data, err := q.Pack()
		if err != nil {
			t.Fatal(err)
		}
		orders := map[string]bool{}
		for range 20 {
			out, m := s.later(data, aPod, c.stream), new(dns.Msg)
			if err := m.Unpack(out); err != nil || len(out) > c.most || m.Truncated == c.whole || c.whole && len(m.Answer) != 100 || (m.IsEdns0() != nil) != (c.edns > 0) {
				t.Fatalf("%+v: %d bytes, truncated %v, %d records, %v", c, len(out), m.Truncated, len(m.Answer), err)
			}
			orders[answerOf(m)] = true
		}
		if len(orders) < 2 {
			t.Errorf("%+v: the first address is always %v", c, orders)
		}
	}
}
