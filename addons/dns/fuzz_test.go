package dns

import (
	"net"
	"net/netip"
	"testing"

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
}

func (a *answered) LocalAddr() net.Addr         { return a.local }
func (a *answered) RemoteAddr() net.Addr        { return a.local }
func (a *answered) WriteMsg(msg *dns.Msg) error { a.msg = msg; return nil }

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
		q := &dns.Msg{}
		if q.Unpack(data) != nil {
			return
		}
		a := &answered{local: &net.UDPAddr{}}
		most := dns.MinMsgSize
		if tcp {
			a.local, most = &net.TCPAddr{}, dns.MaxMsgSize
		} else if o := q.IsEdns0(); o != nil {
			most = max(most, 4096)
		}
		a.msg = s.answer(a, q)
		if a.msg == nil || a.msg.Id != q.Id || !a.msg.Response {
			t.Fatalf("%v is answered with %v", q, a.msg)
		}
		s.ServeDNS(a, q)
		out, err := a.msg.Pack()
		if err != nil {
			t.Fatalf("%v: %v", a.msg, err)
		}
		if err := new(dns.Msg).Unpack(out); err != nil {
			t.Fatalf("%v cannot be read: %v", a.msg, err)
		}
		if len(q.Question) == 1 && len(out) > most {
			t.Fatalf("%d bytes", len(out))
		}
	})
}
