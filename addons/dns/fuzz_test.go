package dns

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// answered keeps what a question is answered with.
type answered struct {
	dns.ResponseWriter
	local net.Addr
	msg   *dns.Msg
	size  int
}

func (a *answered) LocalAddr() net.Addr  { return a.local }
func (a *answered) RemoteAddr() net.Addr { return a.local }
func (a *answered) Write(wire []byte) (int, error) {
	a.msg, a.size = new(dns.Msg), len(wire)
	return len(wire), a.msg.Unpack(wire)
}

// Every message is answered with one that fits, and that others can read.
func FuzzQuestion(f *testing.F) {
	s, err := New(Config{Kube: &rest.Config{Host: "127.0.0.1:1"}, Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}, ResolvConf: "/dev/null"})
	if err != nil {
		f.Fatal(err)
	}
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: "default"} }
	slice := &discoveryv1.EndpointSlice{ObjectMeta: named("db-1"), Ports: []discoveryv1.EndpointPort{{Name: new("sql"), Port: new(int32(1))}}}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "db"}
	for i := range 200 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{10, 42, 0, byte(i)}).String()}})
	}
	for _, o := range []*corev1.Service{
		{ObjectMeta: named("web"), Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.80", ClusterIPs: []string{"10.43.0.80", "fd00::1"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}},
		{ObjectMeta: named("db"), Spec: corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}, Ports: []corev1.ServicePort{{Name: "sql", Port: 5432}}}},
		{ObjectMeta: named("ext"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "ext.default.svc.cluster.local"}},
	} {
		if err := s.records.services.Add(o); err != nil {
			f.Fatal(err)
		}
	}
	if err := s.records.slices.Add(slice); err != nil {
		f.Fatal(err)
	}
	if err := s.records.namespaces.Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}); err != nil {
		f.Fatal(err)
	}
	for _, name := range []string{"web.default.svc.cluster.local.", "db.default.svc.cluster.local.", "_sql._tcp.db.default.svc.cluster.local.", "ext.default.svc.cluster.local.",
		"1-2-3-4.default.pod.cluster.local.", "80.0.43.10.in-addr.arpa.", `a\.b\000.`, "x."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypePTR, dns.TypeANY} {
			q := new(dns.Msg).SetQuestion(name, qtype)
			data, err := q.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data, false)
			q.SetEdns0(4096, true)
			if data, err = q.Pack(); err == nil {
				f.Add(data, true)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, tcp bool) {
		client := netip.MustParseAddr("10.42.0.5")
		out := s.later(data, client, tcp)
		q, m := new(dns.Msg), new(dns.Msg)
		var in query
		if in.read(data, nil, tcp) == ignored {
			if out != nil {
				t.Fatalf("%x is answered with %x", data, out)
			}
			return
		}
		if err := m.Unpack(out); err != nil || !m.Response || m.Id != uint16(data[0])<<8|uint16(data[1]) {
			t.Fatalf("%x is answered with %x: %v", data, out, err)
		}
		most := dns.MaxMsgSize
		if !tcp {
			most = dns.MinMsgSize
			if q.Unpack(data) == nil && q.IsEdns0() != nil {
				most = udpSize
			}
		}
		if len(out) > most {
			t.Fatalf("%d bytes", len(out))
		}
		if tcp {
			return
		}
		// What is answered at once is what is answered later, but for the order.
		if again, done := s.atOnce(data, nil, nil, client); !done {
			s.queries.release(client)
		} else if len(again) != len(out) {
			t.Fatalf("%x, and from memory %x", out, again)
		}
	})
}

// Whatever another server answers, what is remembered of it can be sent and read.
func FuzzAnswer(f *testing.F) {
	fw := forwarderTo(f, "forward . 192.0.2.53\ncache 30")
	key := questionOf(asks("www.example."))
	for _, rrs := range [][]string{
		{"www.example. 60 IN A 192.0.2.1", "www.example. 60 IN A 192.0.2.2"}, {"www.example. 60 IN CNAME a.example.", "a.example. 60 IN AAAA fd00::1"},
		{"other.example. 60 IN TXT x"}, {"example. 60 IN DNAME example.net.", "www.example. 0 IN CNAME www.example.net."},
		{"www.example. 60 IN SVCB 1 . alpn=h2"}, {"www.example. 60 IN CNAME www.example."},
	} {
		m := new(dns.Msg).SetReply(asks("www.example."))
		for _, text := range rrs {
			rr, err := dns.NewRR(text)
			if err != nil {
				f.Fatal(err)
			}
			m.Answer = append(m.Answer, rr)
		}
		data, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := new(dns.Msg)
		if m.Unpack(data) != nil || len(m.Question) != 1 {
			return
		}
		a, err := fw.keep(key, m)
		if err != nil {
			return
		}
		asked, err := asks("wWw.example.").Pack()
		if err != nil {
			t.Fatal(err)
		}
		for _, stream := range []bool{true, false} {
			var q query
			if q.read(asked, nil, stream) != ordinary {
				t.Fatal("the query is not read")
			}
			out, ok := a.appendTo(nil, &q, time.Now())
			if !ok {
				if out, err = a.truncated(&q, time.Now()); err != nil {
					continue
				}
			}
			if err := new(dns.Msg).Unpack(out); err != nil || len(out) > q.size {
				t.Fatalf("%x becomes %x: %v", data, out, err)
			}
		}
	})
}
