package kubeproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// Somebody flushes the ruleset five times while a pod, the node and a client outside make
// connections through a Service without a pause. New ones pass again each time, and none
// that was open is lost: neither those that went on asking meanwhile, nor the one that
// only rested.
//
// What no proxy can prevent is kept out: an answer that is under way while its translation
// is gone, or sent again for want of an acknowledgement, and a question to a node port
// meanwhile, are met by a reset of the kernel. So no question is under way at the moment of
// the flush, answers are acknowledged at once, and the client of the node port rests until
// the rules are there again.
func TestFlushUnderTraffic(t *testing.T) {
	inNamespace(t)
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil { // this namespace's
		t.Fatal(err)
	}
	outside := attach(t, "out", "198.51.100.1/24", "198.51.100.9/24")
	pod := attach(t, "pod", "10.42.0.1/24", "10.42.0.5/24")
	far := attach(t, "far", "10.42.7.1/24", "10.42.7.5/24")
	far(func() { serveLines(t, "10.42.7.5:8080") })
	// What goes to an address of the Services without rules is lost where it would be: on
	// the way to the Internet. A gateway that is not there would hold packets for seconds.
	if err := netlink.RouteReplace(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gw: net.ParseIP("198.51.100.9")}); err != nil {
		t.Fatal(err)
	}
	k, err := newNFTables("knarr-test", []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}, anyAddress...)
	if err != nil {
		t.Fatal(err)
	}
	y, _ := fedSyncer(t, k)
	svc := service("web", "10.43.0.7", corev1.ServicePort{Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP})
	svc.Spec.Type = corev1.ServiceTypeNodePort
	y.put(t, 0, svc, "10.42.7.5")
	if err := y.sync(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	in := sameNamespace(t)
	wg.Go(func() { in(func() { y.proxy.keep(ctx, y) }) })

	all := []*traffic{
		{who: "a pod", to: "10.43.0.7:80", enter: pod, asks: true},
		{who: "the node", to: "10.43.0.7:80", enter: in, asks: true},
		{who: "a client outside", to: "198.51.100.1:30080", enter: outside},
	}
	for _, f := range all {
		f.begin(t)
		wg.Go(func() { f.enter(func() { f.connect(ctx) }) })
		if f.asks {
			wg.Go(func() { f.goOn(ctx) })
		}
	}
	for i := range 5 {
		for _, f := range all {
			f.passes(t, fmt.Sprint("before flush ", i))
		}
		for _, f := range all {
			f.asking.Lock()
		}
		err := flushAll()
		began := time.Now()
		for _, f := range all {
			f.asking.Unlock()
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			f.passes(t, fmt.Sprint("after flush ", i))
			t.Logf("flush %d: %s passes again, %v later", i, f.who, time.Since(began).Round(time.Millisecond))
		}
	}
	cancel()
	wg.Wait()
	for _, f := range all {
		t.Logf("%s: %d connections, %d more failed; by the open one %d questions", f.who, f.passed.Load(), f.failed.Load(), f.open.asked)
	}
}

// flushAll is `nft flush ruleset`.
func flushAll() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	conn.FlushRuleset()
	return conn.Flush()
}

// traffic is what one client does with a Service: new connections without a pause, and one
// that stays open, by which it asks all the time or now and then.
type traffic struct {
	who, to        string
	enter          func(func())
	asks           bool
	passed, failed atomic.Int64
	open           *lines
	asking         sync.Mutex            // while a question is under way
	lost           atomic.Pointer[error] // of the open connection
}

// begin opens the connection that stays open.
func (f *traffic) begin(t *testing.T) {
	t.Helper()
	done := make(chan error)
	go f.enter(func() {
		c, err := net.DialTimeout("tcp", f.to, time.Second)
		if err == nil {
			t.Cleanup(func() { c.Close() })
			f.open = &lines{Conn: c, r: bufio.NewReader(c)}
		}
		done <- err
	})
	if err := <-done; err != nil {
		t.Fatalf("%s: %v", f.who, err)
	}
}

// pace is between two connections, and between two questions, of one client.
const pace = 2 * time.Millisecond

// connect makes connections, one after the other.
func (f *traffic) connect(ctx context.Context) {
	for tick := time.NewTicker(pace); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		if err := f.once(); err == nil {
			f.passed.Add(1)
		} else {
			f.failed.Add(1)
		}
	}
}

func (f *traffic) once() error {
	const within = 100 * time.Millisecond
	c, err := net.DialTimeout("tcp", f.to, within)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.(*net.TCPConn).SetLinger(0); err != nil { // its port is free at once
		return err
	}
	return (&lines{Conn: c, r: bufio.NewReader(c)}).ask(within)
}

// goOn uses the open connection all the time. Its first error stays.
func (f *traffic) goOn(ctx context.Context) {
	for tick := time.NewTicker(pace); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		f.asking.Lock()
		err := f.open.ask(askTimeout)
		f.asking.Unlock()
		if err != nil {
			f.lost.Store(&err)
			return
		}
	}
}

// askTimeout is much longer than the rules may be away, and shorter than until the proxy
// looks at them by itself.
const askTimeout = lookAtRules / 2

// passes waits until a connection that begins now passes, and asks by the open one.
func (f *traffic) passes(t *testing.T, when string) {
	t.Helper()
	end, before := time.Now().Add(askTimeout), f.passed.Load()
	for f.passed.Load() < before+2 { // the one under way may have begun earlier
		if time.Now().After(end) {
			t.Fatalf("%s: no connection of %s passes", when, f.who)
		}
		time.Sleep(time.Millisecond)
	}
	if err := f.lost.Load(); err != nil {
		t.Fatalf("%s: the open connection of %s, which asked meanwhile: %v", when, f.who, *err)
	}
	if err := f.open.ask(askTimeout); err != nil {
		t.Fatalf("%s: the open connection of %s: %v", when, f.who, err)
	}
}

// lines is a connection to serveLines.
type lines struct {
	net.Conn
	mu    sync.Mutex
	r     *bufio.Reader
	asked int
}

func (l *lines) ask(within time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	l.asked++
	if _, err := fmt.Fprintln(l, l.asked); err != nil {
		return err
	}
	got, err := l.r.ReadString('\n')
	if err == nil {
		err = l.acknowledge()
	}
	if err == nil && got != fmt.Sprintln(l.asked) {
		err = fmt.Errorf("asked with %d, answered with %q", l.asked, got)
	}
	return err
}

// acknowledge sends the acknowledgement that the kernel would keep back for a while.
func (l *lines) acknowledge() error {
	raw, err := l.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) })
	return errors.Join(err, inner)
}

// serveLines answers each line with the same.
func serveLines(t testing.TB, addr string) {
	serveEach(t, addr, func(c net.Conn) { _, _ = io.Copy(c, c) })
}
