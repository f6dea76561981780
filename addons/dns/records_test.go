package dns

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"knarr/addons/dns/corefile"
)

// What a user may write in a few objects, many ports times many endpoints, makes
// no answer that is larger than a message.
func TestRecordsAreBounded(t *testing.T) {
	s, err := New(Config{Kube: &rest.Config{Host: "127.0.0.1:1"}, Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}, ResolvConf: "/dev/null"})
	if err != nil {
		t.Fatal(err)
	}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "db-1", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}}}
	for i := range 200 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{10, 42, 0, byte(i)}).String()}})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", i)), Port: new(int32(i + 1)), Protocol: new(corev1.ProtocolTCP)})
	}
	for add, o := range map[interface{ Add(any) error }]any{
		s.records.services:   &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "default"}, Spec: corev1.ServiceSpec{ClusterIP: "None"}},
		s.records.namespaces: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		s.records.slices:     slice,
	} {
		if err := add.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	k := &corefile.Kubernetes{Zones: []string{"cluster.local."}}
	for _, c := range []struct {
		name  string
		qtype uint16
		want  int
	}{
		{"db.default.svc.cluster.local.", dns.TypeA, 200},
		{"_p7._tcp.db.default.svc.cluster.local.", dns.TypeSRV, 200},
		{"db.default.svc.cluster.local.", dns.TypeSRV, 4096},
	} {
		_, got := s.records.lookup(k, c.name, c.qtype)
		if len(got.answer) != c.want {
			t.Errorf("%s %s has %d records, want %d", dns.TypeToString[c.qtype], c.name, len(got.answer), c.want)
		}
	}
}
