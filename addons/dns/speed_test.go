package dns

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/apitest"
)

// window is how many queries of the benchmark's client are on their way at a time.
const window = 32

// BenchmarkUDP is queries over sockets on loopback: a client that allocates
// nothing, so that what is counted is the server's.
func BenchmarkUDP(b *testing.B) {
	at := benchServer(b)
	for _, c := range []struct {
		name, query string
		rcode       int
	}{
		{"cluster", "kubernetes.default.svc.cluster.local.", dns.RcodeSuccess},
		{"headless", "db.default.svc.cluster.local.", dns.RcodeSuccess},
		{"external", "www.example.com.", dns.RcodeSuccess},
		{"nxdomain", "www.example.com.default.svc.cluster.local.", dns.RcodeNameError},
	} {
		b.Run(c.name, func(b *testing.B) {
			conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at))
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			query, err := new(dns.Msg).SetQuestion(c.query, dns.TypeA).Pack()
			if err != nil {
				b.Fatal(err)
			}
			if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				b.Fatal(err)
			}
			buf := make([]byte, 4096)
			b.ReportAllocs()
			b.ResetTimer()
			for sent := 0; sent < b.N; {
				n := min(window, b.N-sent)
				for range n {
					if _, err := conn.Write(query); err != nil {
						b.Fatal(err)
					}
				}
				for range n {
					if _, err := conn.Read(buf); err != nil {
						b.Fatal(err)
					}
					if int(buf[3]&0xf) != c.rcode {
						b.Fatalf("rcode %d", buf[3]&0xf)
					}
				}
				sent += n
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "queries/s")
		})
	}
}

// benchServer is a server with a headless Service and another server for names
// of elsewhere.
func benchServer(b *testing.B) netip.AddrPort {
	api, stop := apitest.New(b)
	b.Cleanup(stop)
	client := api.Client(b)
	ctx, cancel := context.WithCancel(context.Background())
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Name: "sql", Port: 5432}}}}
	if _, err := client.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "db-1", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("sql"), Port: new(int32(5432)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for i := range 10 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{10, 42, 0, byte(i + 5)}).String()}})
	}
	if _, err := client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	elsewhere := &dns.Server{PacketConn: packets, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(says(q, "192.0.2.1")) })}
	go func() { _ = elsewhere.ActivateAndServe() }()
	text := strings.NewReplacer("DOMAIN", "cluster.local", "TTL", "5", "/etc/resolv.conf", packets.LocalAddr().String()).Replace(builtin)
	conf := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "coredns"}, Data: map[string]string{"Corefile": text}}
	if _, err := client.CoreV1().ConfigMaps("kube-system").Create(ctx, conf, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	at := netip.MustParseAddrPort("127.0.0.1:50055")
	s, err := New(Config{Kube: api.Config(), Listen: []netip.AddrPort{at}, ResolvConf: "/dev/null"})
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
		_ = elsewhere.Shutdown()
	})
	<-s.Serving()
	return at
}
