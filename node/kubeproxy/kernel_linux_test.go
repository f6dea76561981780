package kubeproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/need"
)

// inNamespace runs the rest of the test in a network namespace of its own with
// one link that has two addresses and a default route.
func inNamespace(t testing.TB) {
	need.Root(t)
	runtime.LockOSThread() // never unlocked: the thread dies with its goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	if err == nil {
		err = netlink.LinkAdd(br)
	}
	for _, a := range []string{"10.1.0.1/24", "10.1.0.2/24", "fd01::1/64"} {
		if err == nil {
			addr, perr := netlink.ParseAddr(a)
			if perr != nil {
				t.Fatal(perr)
			}
			addr.Flags = unix.IFA_F_NODAD
			err = netlink.AddrAdd(br, addr)
		}
	}
	if err == nil {
		err = netlink.LinkSetUp(br)
	}
	if err == nil {
		err = netlink.RouteAdd(&netlink.Route{LinkIndex: br.Index, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gw: net.ParseIP("10.1.0.254")})
	}
	if err == nil {
		err = netlink.RouteAdd(&netlink.Route{LinkIndex: br.Index, Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}, Gw: net.ParseIP("fd01::fe")})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// serve answers with its own address.
func serve(t testing.TB, addr string) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, addr)
			c.Close()
		}
	}()
}

func ask(addr string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	return string(b), err
}

func one(name string, r Rules) map[cache.ObjectName]Rules {
	return map[cache.ObjectName]Rules{cache.NewObjectName("ns", name): r}
}

func TestKernel(t *testing.T) {
	inNamespace(t)
	serve(t, "10.1.0.1:8080")
	serve(t, "10.1.0.2:8080")
	serve(t, "[fd01::1]:8080")
	k, err := newNFTables("knarr-test", []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")})
	if err != nil {
		t.Fatal(err)
	}
	apply := func(r Rules, all bool) {
		t.Helper()
		if err := k.Apply(one("web", r), all); err != nil {
			t.Fatal(err)
		}
	}
	want := func(addr string, answers ...string) {
		t.Helper()
		seen := map[string]bool{}
		for range 40 {
			got, err := ask(addr)
			if err != nil {
				t.Fatalf("connect to %s: %v", addr, err)
			}
			seen[got] = true
		}
		if len(seen) != len(answers) {
			t.Errorf("%s answered as %v, want %v", addr, seen, answers)
		}
		for _, a := range answers {
			if !seen[a] {
				t.Errorf("%s never answered as %s, but as %v", addr, a, seen)
			}
		}
	}
	refused := func(addr string) {
		t.Helper()
		if _, err := ask(addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v, want connection refused", addr, err)
		}
	}

	svc := service("web", "10.43.0.7", corev1.ServicePort{Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP})
	svc.Spec.Type = corev1.ServiceTypeNodePort
	both := slice("web", 8080, "10.1.0.1", "10.1.0.2")
	apply(plan(svc, eps(both), "n1"), true)
	want("10.43.0.7:80", "10.1.0.1:8080", "10.1.0.2:8080")
	want("10.1.0.1:30080", "10.1.0.1:8080", "10.1.0.2:8080")
	refused("10.43.0.7:81") // not a port of the Service

	apply(plan(svc, eps(slice("web", 8080, "10.1.0.2")), "n1"), false)
	want("10.43.0.7:80", "10.1.0.2:8080")

	apply(plan(svc, nil, "n1"), false)
	refused("10.43.0.7:80")
	refused("10.1.0.1:30080")

	sticky := svc.DeepCopy()
	sticky.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	apply(plan(sticky, eps(both), "n1"), false)
	first, err := ask("10.43.0.7:80")
	if err != nil {
		t.Fatal(err)
	}
	want("10.43.0.7:80", first)

	svc6 := service("six", "fd43::7", corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP})
	six := slice("six", 8080, "fd01::1")
	six.AddressType = "IPv6"
	if err := k.Apply(one("six", plan(svc6, eps(six), "n1")), false); err != nil {
		t.Fatal(err)
	}
	want("[fd43::7]:80", "[fd01::1]:8080")

	// Another Service gets the address in the transaction that takes it away.
	next := service("next", "10.43.0.7", corev1.ServicePort{Port: 82, Protocol: corev1.ProtocolTCP})
	err = k.Apply(map[cache.ObjectName]Rules{
		cache.NewObjectName("ns", "next"): plan(next, nil, "n1"),
		cache.NewObjectName("ns", "web"):  plan(nil, nil, ""),
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	refused("10.43.0.7:81")
	if err := k.Apply(one("next", plan(nil, nil, "")), false); err != nil {
		t.Fatal(err)
	}
	if err := k.Apply(one("six", plan(nil, nil, "")), false); err != nil {
		t.Fatal(err)
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	chains, err := c.ListChains()
	if err != nil {
		t.Fatal(err)
	}
	for _, ch := range chains {
		if ch.Hooknum == nil && ch.Name != rejectChain {
			t.Errorf("chain %s is left over", ch.Name)
		}
	}
	for _, f := range k.tables {
		for _, s := range []*nftables.Set{f.services, f.nodePorts, f.refused, f.refusedPorts, f.hairpin, f.clusterIPs} {
			if els, err := c.GetSetElements(s); err != nil || len(els) > 0 {
				t.Errorf("set %s is left with %d elements, %v", s.Name, len(els), err)
			}
		}
	}
}

func BenchmarkEndpointChange(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			done := make(chan struct{})
			go func() { // the namespace's thread ends with this goroutine
				defer close(done)
				inNamespace(b)
				k, err := newNFTables("knarr-bench", nil)
				if err != nil {
					b.Error(err)
					return
				}
				changes := map[cache.ObjectName]Rules{}
				for i := range n {
					name := fmt.Sprint("s", i)
					svc := service(name, fmt.Sprintf("10.43.%d.%d", i/250, i%250+1), corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP})
					changes[cache.NewObjectName("ns", name)] = plan(svc, eps(slice(name, 8080, "10.1.0.1", "10.1.0.2")), "n1")
				}
				began := time.Now()
				if err := k.Apply(changes, true); err != nil {
					b.Error(err)
					return
				}
				b.ReportMetric(float64(time.Since(began).Milliseconds()), "coldsync-ms")
				svc := service("s7", "10.43.0.8", corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP})
				states := []Rules{
					plan(svc, eps(slice("s7", 8080, "10.1.0.1")), "n1"),
					plan(svc, eps(slice("s7", 8080, "10.1.0.1", "10.1.0.2")), "n1"),
				}
				b.ResetTimer()
				for i := range b.N {
					if err := k.Apply(one("s7", states[i%2]), false); err != nil {
						b.Error(err)
						return
					}
				}
			}()
			<-done
		})
	}
}
