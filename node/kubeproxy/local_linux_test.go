package kubeproxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// attach makes a namespace beside this one, with one address at its end of a
// link and the other as its gateway. What it returns runs functions there.
func attach(t testing.TB, name, gateway, addr string) func(func()) {
	t.Helper()
	space := make(chan *os.File, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies with its goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
		f, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		if err != nil {
			t.Error(err)
		}
		space <- f
	}()
	f := <-space
	t.Cleanup(func() { f.Close() })
	in := func(do func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
				t.Error(err)
				return
			}
			do()
		}()
		<-done
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(f.Fd())}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	up(t, name, gateway)
	in(func() {
		up(t, "eth0", addr)
		gw, _, err := net.ParseCIDR(gateway)
		if err == nil {
			err = netlink.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gw: gw})
		}
		if err != nil {
			t.Error(err)
			return
		}
		untilReached(t, gw.String())
	})
	return in
}

func up(t testing.TB, link, addr string) {
	t.Helper()
	l, err := netlink.LinkByName(link)
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err == nil {
		var a *netlink.Addr
		if a, err = netlink.ParseAddr(addr); err == nil {
			err = netlink.AddrAdd(l, a)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// serveClient answers with the client's address.
func serveClient(t testing.TB, addr string) {
	serveEach(t, addr, func(c net.Conn) {
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		fmt.Fprint(c, addr, " ", host)
	})
}

// serveEach has each connection answered, and closes it then.
func serveEach(t testing.TB, addr string, answer func(net.Conn)) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				answer(c)
				c.Close()
			}()
		}
	}()
}

// A node has a client outside, a pod here, and one of another
// node. externalTrafficPolicy Local sends who comes from outside to the pod here
// alone, with its own address, and pods and the node to both.
func TestExternalTrafficPolicyLocal(t *testing.T) {
	inNamespace(t)
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil { // this namespace's
		t.Fatal(err)
	}
	client := attach(t, "out", "198.51.100.1/24", "198.51.100.9/24")
	pod := attach(t, "pod", "10.42.0.1/24", "10.42.0.5/24")
	far := attach(t, "far", "10.42.7.1/24", "10.42.7.5/24")
	pod(func() { serveClient(t, "10.42.0.5:8080") })
	far(func() { serveClient(t, "10.42.7.5:8080") })
	k, err := newNFTables("knarr-test", []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}, anyAddress...)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	svc := service("web", "10.43.0.7", corev1.ServicePort{Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP})
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	svc.Spec.ExternalIPs = []string{"192.0.2.7"}
	both := slice("web", 8080, "10.42.0.5", "10.42.7.5") // on n1 and n2
	answers := func(addr string) map[string]bool {
		seen := map[string]bool{}
		for range 20 {
			got, err := ask(addr)
			if err != nil {
				got = "error"
				if late := net.Error(nil); errors.As(err, &late) && late.Timeout() {
					return map[string]bool{"dropped": true}
				}
			}
			seen[got] = true
		}
		return seen
	}
	want := func(who, addr string, from func(func()), answer ...string) {
		t.Helper()
		var got map[string]bool
		from(func() { got = answers(addr) })
		same := len(got) == len(answer)
		for _, a := range answer {
			same = same && got[a]
		}
		if !same {
			t.Errorf("%s asks %s: %v, want %q", who, addr, got, answer)
		}
	}
	here := func(f func()) { f() }
	write(t, k, one("web", plan(svc, eps(both), host{name: "n1"})), true)
	for _, addr := range []string{"192.0.2.7:80", "198.51.100.1:30080"} {
		want("the client", addr, client, "10.42.0.5:8080 198.51.100.9")
		want("the pod elsewhere", addr, far, "10.42.0.5:8080 10.42.7.5", "10.42.7.5:8080 10.42.7.1")
		want("the node", addr, here, "10.42.0.5:8080 10.42.0.1", "10.42.7.5:8080 10.42.7.1")
	}
	// The node has none: others drop, and pods and the node reach the other's.
	write(t, k, one("web", plan(svc, eps(both), host{name: "n3"})), false)
	for _, addr := range []string{"192.0.2.7:80", "198.51.100.1:30080"} {
		want("the client", addr, client, "dropped")
		want("the pod", addr, pod, "10.42.0.5:8080 10.42.0.1", "10.42.7.5:8080 10.42.0.5")
		want("the node", addr, here, "10.42.0.5:8080 10.42.0.1", "10.42.7.5:8080 10.42.7.1")
	}
}
