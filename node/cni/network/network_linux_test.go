package network

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"knarr/internal/need"
	"knarr/internal/sctptest"
)

// netspace is a network namespace with a thread in it.
type netspace struct {
	path string
	work chan func()
}

// newNetspace makes one that lasts as long as the test.
func newNetspace(t *testing.T) *netspace {
	t.Helper()
	need.Root(t)
	ns := &netspace{work: make(chan func())}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		// Never unlocked: the thread ends with the goroutine, and with it the
		// namespace.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		ns.path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		if err == nil {
			var lo netlink.Link
			if lo, err = netlink.LinkByName("lo"); err == nil {
				err = netlink.LinkSetUp(lo)
			}
		}
		started <- err
		for f := range ns.work {
			f()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(ns.work)
		<-ended
	})
	return ns
}

// do runs f in the namespace.
func (ns *netspace) do(f func() error) error {
	result := make(chan error)
	ns.work <- func() { result <- f() }
	return <-result
}

// serve answers each connection and datagram to the port with the address it
// seems to come from.
func (ns *netspace) serve(t *testing.T, addr string) {
	t.Helper()
	must(t, ns.do(func() error {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go greet(l)
		p, err := net.ListenPacket("udp", addr)
		if err != nil {
			return err
		}
		t.Cleanup(func() { p.Close() })
		go func() {
			b := make([]byte, 16)
			for {
				_, from, err := p.ReadFrom(b)
				if err != nil {
					return
				}
				p.WriteTo([]byte(from.(*net.UDPAddr).IP.String()), from)
			}
		}()
		return nil
	}))
}

// greet answers each connection with the address it seems to come from.
func greet(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		io.WriteString(c, c.RemoteAddr().(*net.TCPAddr).IP.String())
		c.Close()
	}
}

// ask gives the address the server at addr sees.
func (ns *netspace) ask(network, addr string) (seen string, err error) {
	return ns.askFrom(nil, network, addr)
}

// askFrom asks from an address of the client's own.
func (ns *netspace) askFrom(local net.Addr, network, addr string) (seen string, err error) {
	err = ns.do(func() error {
		var c net.Conn
		var err error
		if network == "sctp" {
			c, err = sctptest.Dial(addr, 5*time.Second)
		} else {
			c, err = (&net.Dialer{Timeout: 5 * time.Second, LocalAddr: local}).Dial(network, addr)
		}
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(5 * time.Second))
		if network == "udp" {
			if _, err := c.Write([]byte("?")); err != nil {
				return err
			}
		}
		b := make([]byte, 64)
		n, err := c.Read(b)
		seen = string(b[:n])
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	})
	return seen, err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is a node with a neighbour outside the cluster: 192.0.2.1 and .2.
type world struct {
	node, outside *netspace
	conf          Conf
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{node: newNetspace(t), outside: newNetspace(t)}
	w.conf = Conf{
		CNIVersion: "1.0.0", Name: "test", Bridge: "knarr0", Table: "knarr-cni", StateDir: t.TempDir(), MTU: 1450, TunnelPort: 8472,
		PodCIDRs:     prefixes("10.9.1.0/24", "fd00:9:1::/64"),
		ClusterCIDRs: prefixes("10.9.0.0/16", "fd00:9::/32"),
		kernel:       &Kernel{},
	}
	t.Cleanup(func() { must(t, w.conf.kernel.Close()) })
	plug := func(name, v4, v6 string) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		// Neighbours are asked for from the link's own address, at once.
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0o644); err != nil {
			return err
		}
		for _, a := range []string{v4, v6} {
			addr, err := netlink.ParseAddr(a)
			if err != nil {
				return err
			}
			if addr.IP.To4() == nil {
				addr.Flags = unix.IFA_F_NODAD
			}
			if err := netlink.AddrAdd(link, addr); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(link)
	}
	fd, err := os.Open(w.outside.path)
	must(t, err)
	defer fd.Close()
	must(t, w.node.do(func() error {
		for _, path := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := os.WriteFile("/proc/sys/net/"+path, []byte("1"), 0o644); err != nil {
				return err
			}
		}
		veth := netlink.NewVeth(netlink.LinkAttrs{Name: "up"})
		veth.PeerName, veth.PeerNamespace = "up", netlink.NsFd(int(fd.Fd()))
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return plug("up", "192.0.2.1/24", "2001:db8::1/64")
	}))
	must(t, w.outside.do(func() error { return plug("up", "192.0.2.2/24", "2001:db8::2/64") }))
	return w
}

// command runs the plugin on the node.
func (w *world) command(t *testing.T, verb, id string, pod *netspace, ports ...PortMapping) ([]byte, int) {
	t.Helper()
	c := w.conf
	c.RuntimeConfig.PortMappings = ports
	in, err := json.Marshal(c)
	must(t, err)
	env := map[string]string{"CNI_COMMAND": verb, "CNI_CONTAINERID": id, "CNI_IFNAME": "eth0"}
	if pod != nil {
		env["CNI_NETNS"] = pod.path
	}
	var out bytes.Buffer
	code := 0
	must(t, w.node.do(func() error {
		code = Command(w.conf.kernel, func(k string) string { return env[k] }, bytes.NewReader(in), &out)
		runtime.LockOSThread() // undoes Command's unlocking
		return nil
	}))
	return out.Bytes(), code
}

func (w *world) add(t *testing.T, id string, ports ...PortMapping) (pod *netspace, v4, v6 string) {
	t.Helper()
	pod = newNetspace(t)
	out, code := w.command(t, "ADD", id, pod, ports...)
	if code != 0 {
		t.Fatalf("ADD %s: %s", id, out)
	}
	var r result
	must(t, json.Unmarshal(out, &r))
	addr := func(i int) string {
		p, err := netip.ParsePrefix(r.IPs[i].Address)
		must(t, err)
		return p.Addr().String()
	}
	return pod, addr(0), addr(1)
}

func TestPodNetwork(t *testing.T) {
	t.Run("served", func(t *testing.T) { testPodNetwork(t, newWorld(t)) })
	t.Run("alone", func(t *testing.T) {
		w := newWorld(t)
		w.conf.kernel = nil
		testPodNetwork(t, w)
	})
}

func testPodNetwork(t *testing.T, w *world) {
	web := []PortMapping{
		{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"},
		{HostPort: 8080, ContainerPort: 80, Protocol: "UDP"},
		{HostPort: 9090, ContainerPort: 80, Protocol: "tcp", HostIP: "192.0.2.1"},
		{HostPort: 9091, ContainerPort: 80, Protocol: "tcp", HostIP: "127.0.0.1"},
		{ContainerPort: 81, Protocol: "sctp"}, // not published, so not looked at
	}
	a, a4, a6 := w.add(t, "aaaa", web...)
	b, b4, b6 := w.add(t, "bbbb")
	a.serve(t, ":80")
	b.serve(t, ":80")
	w.outside.serve(t, ":80")
	if a4 != "10.9.1.2" || b4 != "10.9.1.3" || a6 != "fd00:9:1::2" || b6 != "fd00:9:1::3" {
		t.Fatalf("addresses %s %s and %s %s", a4, a6, b4, b6)
	}
	w.testConnections(t, a, b, b4, b6)
	if out, code := w.command(t, "CHECK", "aaaa", a); code != 0 {
		t.Errorf("CHECK: %s", out)
	}
	if out, code := w.command(t, "STATUS", "", nil); code != 0 {
		t.Errorf("STATUS: %s", out)
	}
	w.testHostPortInUse(t, web[0])
	w.testRepair(t)
	w.testRemoval(t, a, web)
}

// testConnections: what the server sees as the client's address, for pods a, whose
// ports are published, and b.
func (w *world) testConnections(t *testing.T, a, b *netspace, b4, b6 string) {
	const a4, a6 = "10.9.1.2", "fd00:9:1::2"
	for _, tt := range []struct {
		name          string
		from          *netspace
		network, addr string
		want          string
	}{
		{"pod to pod", a, "tcp", b4 + ":80", a4},
		{"pod to pod v6", a, "tcp", "[" + b6 + "]:80", a6},
		{"node to pod", w.node, "tcp", b4 + ":80", "10.9.1.1"},
		{"pod to the world", a, "tcp", "192.0.2.2:80", "192.0.2.1"},
		{"pod to the world v6", a, "tcp", "[2001:db8::2]:80", "2001:db8::1"},
		{"pod to the world udp", b, "udp", "192.0.2.2:80", "192.0.2.1"},
		{"host port", w.outside, "tcp", "192.0.2.1:8080", "192.0.2.2"},
		{"host port v6", w.outside, "tcp", "[2001:db8::1]:8080", "2001:db8::2"},
		{"host port udp", w.outside, "udp", "192.0.2.1:8080", "192.0.2.2"},
		{"host port with address", w.outside, "tcp", "192.0.2.1:9090", "192.0.2.2"},
		{"host port from the node", w.node, "tcp", "192.0.2.1:8080", "192.0.2.1"},
		{"host port from another pod", b, "tcp", "192.0.2.1:8080", b4},
		{"host port from the pod itself", a, "tcp", "192.0.2.1:8080", "10.9.1.1"},
		{"host port from the pod itself v6", a, "tcp", "[2001:db8::1]:8080", "fd00:9:1::1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.from.ask(tt.network, tt.addr)
			if err != nil || got != tt.want {
				t.Errorf("server sees %q, %v; want %q", got, err, tt.want)
			}
		})
	}
	for _, tt := range []struct {
		name, addr string
		from       *netspace
	}{
		{"loopback", "127.0.0.1:8080", w.node},
		{"port of the loopback address only", "192.0.2.1:9091", w.outside},
		{"other address", "[2001:db8::1]:9090", w.outside},
	} {
		if _, err := tt.from.ask("tcp", tt.addr); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: %v, want connection refused", tt.name, err)
		}
	}

	node := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}
	if got, err := w.node.askFrom(node, "tcp", "127.0.0.1:9091"); err != nil || got != "192.0.2.1" {
		t.Errorf("loopback from another address of the node: %q, %v", got, err)
	}
}

// TestHostPortSCTP: beside those of TCP and UDP with the same number.
func TestHostPortSCTP(t *testing.T) {
	need.Root(t)
	sctptest.Need(t)
	w := newWorld(t)
	port := []PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "sctp"}, {HostPort: 8080, ContainerPort: 81, Protocol: "tcp"}}
	pod, v4, v6 := w.add(t, "aaaa", port...)
	other, other4, other6 := w.add(t, "bbbb")
	pod.serve(t, ":81")
	must(t, pod.do(func() error {
		l, err := sctptest.Listen("[::]:80")
		if err == nil {
			t.Cleanup(func() { l.Close() })
			go greet(l)
		}
		return err
	}))
	for _, c := range []struct {
		from          *netspace
		network, addr string
		want          string
	}{
		{w.outside, "sctp", "192.0.2.1:8080", "192.0.2.2"},
		{w.outside, "sctp", "[2001:db8::1]:8080", "2001:db8::2"},
		{w.outside, "tcp", "192.0.2.1:8080", "192.0.2.2"},
		{w.node, "sctp", "192.0.2.1:8080", "192.0.2.1"},
		{other, "sctp", "192.0.2.1:8080", other4},
		{other, "sctp", v4 + ":80", other4},
		{other, "sctp", "[" + v6 + "]:80", other6},
		{pod, "sctp", "192.0.2.1:8080", "10.9.1.1"},
	} {
		if got, err := c.from.ask(c.network, c.addr); err != nil || got != c.want {
			t.Errorf("%s %s: server sees %q, %v; want %q", c.network, c.addr, got, err, c.want)
		}
	}
	if out, code := w.command(t, "DEL", "aaaa", nil, port...); code != 0 {
		t.Fatalf("DEL: %s", out)
	}
	if got, err := w.outside.ask("sctp", "192.0.2.1:8080"); err == nil {
		t.Errorf("host port after DEL: server sees %q", got)
	}
}

// testHostPortInUse: a second pod is refused the port, and must not take it from
// the first.
func (w *world) testHostPortInUse(t *testing.T, port PortMapping) {
	out, code := w.command(t, "ADD", "cccc", newNetspace(t), port)
	if code == 0 || !strings.Contains(string(out), "in use") {
		t.Errorf("second ADD of a host port: %d %s", code, out)
	}
	if got, err := w.outside.ask("tcp", "192.0.2.1:8080"); err != nil {
		t.Errorf("host port after a refused ADD: %q, %v", got, err)
	}
}

// testRepair: the table comes back after the whole ruleset was flushed.
func (w *world) testRepair(t *testing.T) {
	must(t, w.node.do(func() error { return RemoveTable(w.conf.Table) }))
	if _, code := w.command(t, "STATUS", "", nil); code == 0 {
		t.Error("STATUS finds nothing amiss without the table")
	}
	must(t, w.node.do(func() error { return EnsureTable(&w.conf) }))
	if got, err := w.outside.ask("tcp", "192.0.2.1:8080"); err != nil || got != "192.0.2.2" {
		t.Errorf("host port after a repair: %q, %v", got, err)
	}
}

// testRemoval: DEL and GC leave neither rules nor links nor state.
func (w *world) testRemoval(t *testing.T, a *netspace, web []PortMapping) {
	for range 2 { // the runtime may repeat it
		if out, code := w.command(t, "DEL", "aaaa", nil, web...); code != 0 {
			t.Fatalf("DEL: %s", out)
		}
	}
	if _, err := w.outside.ask("tcp", "192.0.2.1:8080"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("host port after DEL: %v, want connection refused", err)
	}
	if _, code := w.command(t, "CHECK", "aaaa", a); code == 0 {
		t.Error("CHECK finds nothing amiss after DEL")
	}
	// GC takes the rest.
	if out, code := w.command(t, "GC", "", nil); code != 0 {
		t.Fatalf("GC: %s", out)
	}
	for _, pattern := range []string{"attachments/*", "addresses/*/1*", "addresses/*/f*"} {
		if left, _ := filepath.Glob(filepath.Join(w.conf.StateDir, pattern)); len(left) > 0 {
			t.Errorf("state is left: %v", left)
		}
	}
	must(t, w.node.do(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if strings.HasPrefix(l.Attrs().Name, "veth") {
				t.Errorf("link %s is left", l.Attrs().Name)
			}
		}
		return err
	}))
	must(t, w.node.do(func() error {
		return errors.Join(RemoveLinks(w.conf.Bridge, w.conf.StateDir), RemoveTable(w.conf.Table), RemoveTable(w.conf.Table))
	}))
}

func TestAddAgainKeepsTheAddress(t *testing.T) {
	w := newWorld(t)
	pod, v4, _ := w.add(t, "aaaa")
	out, code := w.command(t, "ADD", "aaaa", pod)
	if code != 0 {
		t.Fatalf("%s", out)
	}
	var r result
	must(t, json.Unmarshal(out, &r))
	if r.IPs[0].Address != v4+"/32" {
		t.Errorf("address %s, had %s", r.IPs[0].Address, v4)
	}
}
