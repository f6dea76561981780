package containerruntime

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"knarr/internal/run"
)

// streamsOf gives a connection to the runtime for streams by protocol.
func streamsOf(at, protocol string) (httpstream.Connection, error) {
	transport, err := spdy.NewRoundTripper(nil)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequest(http.MethodPost, at, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set(httpstream.HeaderProtocolVersion, protocol)
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, err
	}
	return transport.NewConnection(response)
}

func streamHeaders(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

// session creates the streams of an exec or attach.
func session(at string, kinds ...string) (httpstream.Connection, map[string]httpstream.Stream, error) {
	c, err := streamsOf(at, "v4.channel.k8s.io")
	if err != nil {
		return nil, nil, err
	}
	streams := map[string]httpstream.Stream{}
	for _, kind := range append([]string{"error"}, kinds...) {
		if streams[kind], err = c.CreateStream(streamHeaders("streamType", kind)); err != nil {
			c.Close()
			return nil, nil, err
		}
	}
	return c, streams, nil
}

func entries(t *testing.T, dir string) int {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// eventually waits for what is counted to be at most that many.
func eventually(t *testing.T, what string, most int, count func() int) {
	t.Helper()
	for until := time.Now().Add(15 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		n := count()
		if n <= most {
			t.Logf("%s: %d, at most %d", what, n, most)
			return
		}
		if time.Now().After(until) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%s: %d, not at most %d\n%s", what, n, most, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func (n *node) attachURL(t *testing.T, container string) string {
	t.Helper()
	r, err := n.Attach(t.Context(), &cri.AttachRequest{ContainerId: container, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	return r.Url
}

// Attaches to a container that writes nothing end with their clients and leave nothing behind.
func TestAttachesEndWithTheirClients(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	_, container := n.shell(t, "silent", "sleep 1000 & wait")
	heap := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc >> 10)
	}
	attach := func(count int) {
		var clients run.Group
		for range count {
			at := n.attachURL(t, container)
			clients.Go("test: attach", func() {
				c, _, err := session(at, "stdout", "stderr")
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(200 * time.Millisecond)
				c.Close()
			})
		}
		clients.Wait()
	}
	attach(10) // what is made once
	time.Sleep(time.Second)
	goroutines, descriptors, kilobytes := runtime.NumGoroutine(), entries(t, "/proc/self/fd"), heap()
	for range 4 {
		attach(50)
		time.Sleep(200 * time.Millisecond)
	}
	eventually(t, "goroutines", goroutines+5, runtime.NumGoroutine)
	eventually(t, "descriptors", descriptors+3, func() int { return entries(t, "/proc/self/fd") })
	eventually(t, "kB of memory", kilobytes+2000, heap)
	c, _, err := session(n.attachURL(t, container), "stdout", "stderr")
	if err != nil {
		t.Fatalf("one more: %v", err)
	}
	c.Close()
}

// Commands by streams run, and have a bound of each container.
func TestExecStreams(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	_, container := n.shell(t, "busy", "sleep 1000 & wait")
	_, other := n.shell(t, "other", "sleep 1000 & wait")
	execURL := func(container, script string, stdin bool) string {
		t.Helper()
		r, err := n.Exec(t.Context(), &cri.ExecRequest{ContainerId: container, Cmd: []string{"/bin/busybox", "sh", "-c", script}, Stdin: stdin, Stdout: true, Stderr: true})
		if err != nil {
			t.Fatal(err)
		}
		return r.Url
	}
	c, streams, err := session(execURL(container, "/bin/busybox cat; echo errors >&2; exit 3", true), "stdin", "stdout", "stderr")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = streams["stdin"].Write([]byte("hello"))
	_ = streams["stdin"].Close()
	for kind, want := range map[string]string{"stdout": "hello", "stderr": "errors\n", "error": `{"reason":"ExitCode","message":"3"}`} {
		if got, err := io.ReadAll(streams[kind]); err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s: %q, %v", kind, got, err)
		}
	}
	c.Close()

	output := func(container, script string) string {
		t.Helper()
		c, streams, err := session(execURL(container, script, false), "stdout", "stderr")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		got, err := io.ReadAll(streams["stdout"])
		if err != nil {
			t.Fatal(err)
		}
		return string(got)
	}
	// Commands go on without their clients, and do not count as sessions, but there is a bound.
	const sessions, orphans = 64, 256
	began := 0
	for began < orphans+8 {
		var clients []httpstream.Connection
		for ; len(clients) < sessions && began < orphans+8; began++ {
			c, streams, err := session(execURL(container, "echo; sleep 1000", false), "stdout", "stderr")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := streams["stdout"].Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			clients = append(clients, c)
		}
		if began == sessions {
			_, _, err = session(execURL(container, "true", false), "stdout", "stderr")
			if err == nil || !strings.Contains(err.Error(), "has 64 exec and attach sessions") {
				t.Errorf("one more: %v", err)
			}
		}
		for _, c := range clients {
			c.Close()
		}
		time.Sleep(300 * time.Millisecond)
	}
	commands := ""
	for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		// One sleeps in the container itself.
		if commands = output(container, "grep -lz ^1000 /proc/[0-9]*/cmdline | wc -l"); commands == fmt.Sprint(orphans+1, "\n") {
			break
		}
	}
	if want := fmt.Sprint(orphans+1, "\n"); commands != want {
		t.Errorf("%q commands go on, not %q", commands, want)
	}
	if got := output(other, "echo hello"); got != "hello\n" {
		t.Errorf("of another container: %q", got)
	}
}

// listen serves a port of a pod from without: what comes is sent back.
func listen(t *testing.T, namespace, network, address string) {
	t.Helper()
	var l net.Listener
	err := run.OnThread("test: listen", func() error {
		file, err := os.Open(namespace)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		l, err = net.Listen(network, address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	run.Go("test: listen", func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			run.Go("test: echo", func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
}

func forwardTo(c httpstream.Connection, id, port string) (data, errs httpstream.Stream, err error) {
	if errs, err = c.CreateStream(streamHeaders("port", port, "requestID", id, "streamType", "error")); err != nil {
		return nil, nil, err
	}
	_ = errs.Close()
	data, err = c.CreateStream(streamHeaders("port", port, "requestID", id, "streamType", "data"))
	return data, errs, err
}

// forwarder is a client of port-forward.
func (n *node) forwarder(t *testing.T, sandbox string) httpstream.Connection {
	t.Helper()
	r, err := n.PortForward(t.Context(), &cri.PortForwardRequest{PodSandboxId: sandbox})
	if err != nil {
		t.Fatal(err)
	}
	c, err := streamsOf(r.Url, "portforward.k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// ports are reached by IPv4 and by IPv6, and one that nobody listens on gives containerd's words.
func (n *node) ports(t *testing.T, sandbox string) {
	t.Helper()
	one := n.forwarder(t, sandbox)
	for _, port := range []string{"80", "81"} {
		data, _, err := forwardTo(one, port, port)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = data.Write([]byte("hello"))
		got := make([]byte, 5)
		if _, err := io.ReadFull(data, got); err != nil || string(got) != "hello" {
			t.Errorf("port %s: %q, %v", port, got, err)
		}
		data.Close()
	}
	_, errs, err := forwardTo(one, "none", "82")
	if err != nil {
		t.Fatal(err)
	}
	got, _ := io.ReadAll(errs)
	for _, want := range []string{"error forwarding port 82 to pod " + sandbox + ", uid : failed to execute portforward in network namespace \"",
		"failed to connect to localhost:82 inside namespace", "IPv4: dial tcp4 127.0.0.1:82: connect: connection refused IPv6 dial tcp6 [::1]:82: connect: "} {
		if !strings.Contains(string(got), want) {
			t.Errorf("a port that nobody listens on: %q, without %q", got, want)
		}
	}
	one.Close()
}

// Forwarded connections hold no thread while they last, and have a bound of each sandbox.
func TestForwardedConnections(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	const pods, each = 6, 250
	var sandboxes []string
	for i := range pods {
		before := map[string]bool{}
		for _, path := range n.config.withDefaultsForTest(t).networkNamespaces() {
			before[path] = true
		}
		sandbox, _, err := n.pod(t.Context(), fmt.Sprint("ports", i))
		if err != nil {
			t.Fatal(err)
		}
		sandboxes = append(sandboxes, sandbox)
		for _, path := range n.config.withDefaultsForTest(t).networkNamespaces() {
			if !before[path] {
				listen(t, path, "tcp4", "127.0.0.1:80")
				if _, err := os.Stat("/proc/net/if_inet6"); err == nil {
					listen(t, path, "tcp6", "[::1]:81")
				}
			}
		}
	}

	n.ports(t, sandboxes[0][:20]) // as users of crictl write it
	time.Sleep(time.Second)

	threads, goroutines, descriptors := entries(t, "/proc/self/task"), runtime.NumGoroutine(), entries(t, "/proc/self/fd")
	var clients []httpstream.Connection
	var waiting sync.WaitGroup
	for _, sandbox := range sandboxes {
		c := n.forwarder(t, sandbox)
		clients = append(clients, c)
		waiting.Go(func() {
			for i := range each {
				data, _, err := forwardTo(c, fmt.Sprint(i), "80")
				if err != nil {
					t.Error(err)
					return
				}
				got := make([]byte, 2)
				_, _ = data.Write([]byte("hi"))
				if _, err := io.ReadFull(data, got); err != nil {
					t.Errorf("connection %d of %s: %v", i, sandbox, err)
					return
				}
			}
		})
	}
	waiting.Wait()
	now := entries(t, "/proc/self/task")
	t.Logf("%d idle connections: %d threads, %d before; %d goroutines, %d before, with those of both ends", pods*each, now, threads, runtime.NumGoroutine(), goroutines)
	if now > threads+100 {
		t.Errorf("%d threads, %d before", now, threads)
	}
	full := entries(t, "/proc/self/fd")
	clients[pods-1].Close() // the node has no more for who has many
	eventually(t, "descriptors, with one client less", full-2*each, func() int { return entries(t, "/proc/self/fd") })
	var refused string
	for i := range 7 { // 256 of one
		_, errs, err := forwardTo(clients[0], fmt.Sprint("more", i), "80")
		if err != nil {
			t.Fatalf("connection %d more: %v", i, err)
		}
		if i == 6 {
			got, _ := io.ReadAll(errs)
			refused = string(got)
		}
	}
	if !strings.Contains(refused, "has 256 forwarded connections") {
		t.Errorf("one more: %q", refused)
	}
	for _, c := range clients {
		c.Close()
	}
	eventually(t, "goroutines", goroutines+5, runtime.NumGoroutine)
	eventually(t, "descriptors", descriptors+5, func() int { return entries(t, "/proc/self/fd") })
}

// A port of a pod that takes no more connections holds no thread, and no longer than its client.
func TestPortThatTakesNothing(t *testing.T) {
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(l)
	if err := unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(l, 0); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(l)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for i := 0; ; i++ {
		s := newSocket(unix.AF_INET)
		conn, err := s.connect(ctx, net.IPv4(127, 0, 0, 1), name.(*unix.SockaddrInet4).Port)
		s.close()
		if err == nil {
			defer conn.Close()
			continue
		}
		if ctx.Err() == nil || i == 0 {
			t.Errorf("connection %d: %v", i, err)
		}
		return
	}
}

// TestLongMessages: a client of WebSocket whose command does not read its input makes this
// process hold little of the 16 MiB that it sends at once; one that does read gets all.
func TestLongMessages(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	_, container := n.shell(t, "messages", "sleep 1000 & wait")
	open := func(script string) *websocket.Conn {
		t.Helper()
		r, err := n.Exec(t.Context(), &cri.ExecRequest{ContainerId: container, Cmd: []string{"/bin/busybox", "sh", "-c", script}, Stdin: true, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		config, err := websocket.NewConfig(strings.Replace(r.Url, "http", "ws", 1), "http://localhost")
		if err != nil {
			t.Fatal(err)
		}
		config.Protocol = []string{"v4.channel.k8s.io"}
		ws, err := websocket.DialConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = ws.SetDeadline(time.Now()) // ends what is being sent
			ws.Close()
		})
		return ws
	}
	const size = 16 << 20
	message := make([]byte, 1+size)
	reads := open(fmt.Sprintf("head -c %d | wc -c", size))
	if err := websocket.Message.Send(reads, message); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for !strings.Contains(string(got), fmt.Sprint(size)) {
		var b []byte
		if err := websocket.Message.Receive(reads, &b); err != nil {
			t.Fatalf("%q, %v", got, err)
		}
		got = append(got, b...)
	}
	var taken atomic.Int32
	for range 8 {
		stalled := open("sleep 1000")
		run.Go("test: send", func() {
			if websocket.Message.Send(stalled, message) == nil {
				taken.Add(1)
			}
		})
	}
	time.Sleep(2 * time.Second)
	if n := taken.Load(); n > 0 { // then they are held here: sockets have room for less
		t.Errorf("%d messages of %d bytes were taken from their clients", n, size)
	}
}
