package kubeproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
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
	untilReached(t, "10.1.0.1", "fd01::1")
}

// untilReached waits until the kernel carries packets to addresses where nobody
// listens. It brings up a link's queue and an IPv6 address' route in work of its own,
// one such at a time for all network namespaces of the machine, and drops what comes
// before: the first packet of a test on a busy machine.
func untilReached(t testing.TB, addrs ...string) {
	for _, a := range addrs {
		var err error
		for range 100 {
			var c net.Conn
			if c, err = net.DialTimeout("tcp", net.JoinHostPort(a, "1"), 100*time.Millisecond); err == nil {
				c.Close()
				t.Errorf("%s: somebody listens at port 1", a)
				return
			}
			if errors.Is(err, syscall.ECONNREFUSED) {
				break
			}
			if late := net.Error(nil); !errors.As(err, &late) || !late.Timeout() {
				time.Sleep(20 * time.Millisecond) // no route yet
			}
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s is out of reach: %v", a, err)
		}
	}
}

// anyAddress has node ports at all addresses of the node.
var anyAddress = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// sameNamespace runs functions of other goroutines in the namespace of this one.
func sameNamespace(t testing.TB) func(func()) {
	space, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { space.Close() })
	return func(f func()) {
		runtime.LockOSThread() // never unlocked: the thread dies with its goroutine
		if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		f()
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

// write applies changes of which the kernel must refuse none.
func write(t testing.TB, k *kernel, changes map[cache.ObjectName]Rules, all bool) {
	t.Helper()
	if refused, err := k.Apply(changes, all); err != nil || len(refused) > 0 {
		t.Fatalf("%v, refused %v", err, refused)
	}
}

func one(name string, r Rules) map[cache.ObjectName]Rules {
	return map[cache.ObjectName]Rules{cache.NewObjectName("ns", name): r}
}

func TestKernel(t *testing.T) {
	inNamespace(t)
	serve(t, "10.1.0.1:8080")
	serve(t, "10.1.0.2:8080")
	serve(t, "[fd01::1]:8080")
	k, err := newNFTables("knarr-test", []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, anyAddress...)
	if err != nil {
		t.Fatal(err)
	}
	apply := func(r Rules, all bool) {
		t.Helper()
		write(t, k, one("web", r), all)
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
	apply(plan(svc, eps(both), host{name: "n1"}), true)
	want("10.43.0.7:80", "10.1.0.1:8080", "10.1.0.2:8080")
	want("10.1.0.1:30080", "10.1.0.1:8080", "10.1.0.2:8080")
	refused("10.43.0.7:81") // not a port of the Service

	apply(plan(svc, eps(slice("web", 8080, "10.1.0.2")), host{name: "n1"}), false)
	want("10.43.0.7:80", "10.1.0.2:8080")

	apply(plan(svc, nil, host{name: "n1"}), false)
	refused("10.43.0.7:80")
	refused("10.1.0.1:30080")

	sticky := svc.DeepCopy()
	sticky.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	apply(plan(sticky, eps(both), host{name: "n1"}), false)
	first, err := ask("10.43.0.7:80")
	if err != nil {
		t.Fatal(err)
	}
	want("10.43.0.7:80", first)

	svc6 := service("six", "fd43::7", corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP})
	six := slice("six", 8080, "fd01::1")
	six.AddressType = "IPv6"
	write(t, k, one("six", plan(svc6, eps(six), host{name: "n1"})), false)
	want("[fd43::7]:80", "[fd01::1]:8080")

	// Another Service gets the address in the transaction that takes it away.
	next := service("next", "10.43.0.7", corev1.ServicePort{Port: 82, Protocol: corev1.ProtocolTCP})
	write(t, k, map[cache.ObjectName]Rules{
		cache.NewObjectName("ns", "next"): plan(next, nil, host{name: "n1"}),
		cache.NewObjectName("ns", "web"):  plan(nil, nil, host{}),
	}, false)
	refused("10.43.0.7:81")
	write(t, k, one("next", plan(nil, nil, host{})), false)
	write(t, k, one("six", plan(nil, nil, host{})), false)
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	chains, err := c.ListChains()
	if err != nil {
		t.Fatal(err)
	}
	for _, ch := range chains {
		if ch.Hooknum == nil && !strings.HasPrefix(ch.Name, rejectChain) && !strings.HasPrefix(ch.Name, "spread-") {
			t.Errorf("chain %s is left over", ch.Name)
		}
	}
	for _, f := range k.tables {
		for _, s := range []*nftables.Set{f.services, f.nodePorts, f.inside, f.insidePorts, f.endpoints, f.living, f.hairpin, f.clusterSet} {
			if els, err := c.GetSetElements(s); err != nil || len(els) > 0 {
				t.Errorf("set %s is left with %d elements, %v", s.Name, len(els), err)
			}
		}
	}
}
