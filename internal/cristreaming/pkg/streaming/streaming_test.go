package streaming

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"k8s.io/client-go/rest"
	clientgo "k8s.io/client-go/tools/remotecommand"
	clientspdy "k8s.io/client-go/transport/spdy"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/utils/exec"
)

// fake is a runtime of functions.
type fake struct {
	exec    func(ctx context.Context, in io.Reader, out, err io.WriteCloser, resize <-chan remotecommand.TerminalSize) error
	attach  func(ctx context.Context, in io.Reader, out, err io.WriteCloser) error
	forward func(ctx context.Context, sandbox string, port int32, stream io.ReadWriteCloser) error
}

func (f fake) Exec(ctx context.Context, _ string, _ []string, in io.Reader, out, err io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize) error {
	return f.exec(ctx, in, out, err, resize)
}

func (f fake) Attach(ctx context.Context, _ string, in io.Reader, out, err io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	return f.attach(ctx, in, out, err)
}

func (f fake) PortForward(ctx context.Context, sandbox string, port int32, stream io.ReadWriteCloser) error {
	return f.forward(ctx, sandbox, port, stream)
}

type served struct {
	t *testing.T
	*server
	url string
}

func serve(t *testing.T, f fake, changes ...func(*Config)) *served {
	config := DefaultConfig
	for _, change := range changes {
		change(&config)
	}
	s, err := NewServer(config, f)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s)
	u, _ := url.Parse(h.URL)
	s.(*server).base.Host = u.Host
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		_ = s.Stop()
		h.CloseClientConnections()
		h.Close()
		within(t, 10*time.Second, "goroutines are left", func() bool { return runtime.NumGoroutine() <= before })
	})
	return &served{t, s.(*server), h.URL}
}

func within(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(d); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			buffer := make([]byte, 1<<20)
			t.Fatalf("%s\n%s", what, buffer[:runtime.Stack(buffer, true)])
		}
	}
}

func (s *served) execURL(of string, stdin, tty bool) string {
	s.t.Helper()
	r, err := s.GetExec(&cri.ExecRequest{ContainerId: of, Cmd: []string{"x"}, Stdin: stdin, Stdout: true, Stderr: !tty, Tty: tty})
	if err != nil {
		s.t.Fatal(err)
	}
	return r.Url
}

func (s *served) attachURL(of string) string {
	s.t.Helper()
	r, err := s.GetAttach(&cri.AttachRequest{ContainerId: of, Stdout: true, Stderr: true})
	if err != nil {
		s.t.Fatal(err)
	}
	return r.Url
}

// stream is what kubectl does.
func stream(ctx context.Context, at string, o clientgo.StreamOptions, protocols ...string) error {
	if protocols == nil {
		protocols = DefaultConfig.SupportedRemoteCommandProtocols
	}
	u, err := url.Parse(at)
	if err != nil {
		return err
	}
	transport, upgrader, err := clientspdy.RoundTripperFor(&rest.Config{Host: u.Host})
	if err != nil {
		return err
	}
	executor, err := clientgo.NewSPDYExecutorForProtocols(transport, upgrader, http.MethodPost, u, protocols...)
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, o)
}

// dial gives a connection for streams.
func dial(at string, protocols ...string) (httpstream.Connection, error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	transport, upgrader, err := clientspdy.RoundTripperFor(&rest.Config{Host: u.Host})
	if err != nil {
		return nil, err
	}
	c, _, err := clientspdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, u).Dial(protocols...)
	return c, err
}

func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

func TestExec(t *testing.T) {
	s := serve(t, fake{exec: func(_ context.Context, in io.Reader, out, errs io.WriteCloser, resize <-chan remotecommand.TerminalSize) error {
		if resize != nil {
			size := <-resize
			fmt.Fprintf(out, "%dx%d ", size.Width, size.Height)
		}
		if in != nil {
			_, _ = io.Copy(out, in)
		}
		if errs != nil {
			_, _ = io.WriteString(errs, "errors")
		}
		return nil
	}})
	for _, protocol := range DefaultConfig.SupportedRemoteCommandProtocols[:3] {
		var out, errs bytes.Buffer
		err := stream(t.Context(), s.execURL("c", true, false), clientgo.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out, Stderr: &errs}, protocol)
		if err != nil || out.String() != "hello" || errs.String() != "errors" {
			t.Errorf("%s: %v, %q, %q", protocol, err, &out, &errs)
		}
	}
	var out, errs bytes.Buffer // a client of version 1 cannot end stdin
	err := stream(t.Context(), s.execURL("c", false, false), clientgo.StreamOptions{Stdout: &out, Stderr: &errs}, "channel.k8s.io")
	if err != nil || errs.String() != "errors" {
		t.Errorf("version 1: %v, %q, %q", err, &out, &errs)
	}
	out.Reset()
	err = stream(t.Context(), s.execURL("c", true, true), clientgo.StreamOptions{
		Stdin: strings.NewReader("hello"), Stdout: &out, Tty: true, TerminalSizeQueue: &sizes{{Width: 80, Height: 24}}})
	if err != nil || out.String() != "80x24 hello" {
		t.Errorf("terminal: %v, %q", err, &out)
	}
}

type sizes []clientgo.TerminalSize

func (s *sizes) Next() *clientgo.TerminalSize {
	if len(*s) == 0 {
		return nil
	}
	size := (*s)[0]
	*s = (*s)[1:]
	return &size
}

func TestErrors(t *testing.T) {
	var fail atomic.Value
	s := serve(t, fake{exec: func(context.Context, io.Reader, io.WriteCloser, io.WriteCloser, <-chan remotecommand.TerminalSize) error {
		return fail.Load().(error)
	}, attach: func(context.Context, io.Reader, io.WriteCloser, io.WriteCloser) error { return errors.New("bad") }})
	run := func(at, protocol string) error {
		return stream(t.Context(), at, clientgo.StreamOptions{Stdout: io.Discard, Stderr: io.Discard}, protocol)
	}
	fail.Store(error(exec.CodeExitError{Err: errors.New("went wrong"), Code: 7}))
	var exit exec.ExitError
	if err := run(s.execURL("c", false, false), "v4.channel.k8s.io"); !errors.As(err, &exit) || exit.ExitStatus() != 7 {
		t.Errorf("exit code: %v", err)
	}
	want := "command terminated with non-zero exit code: went wrong"
	if err := run(s.execURL("c", false, false), "v3.channel.k8s.io"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("before version 4: %v", err)
	}
	if err := run(s.attachURL("c"), "v4.channel.k8s.io"); err == nil || err.Error() != "Internal error occurred: error attaching to container: bad" {
		t.Errorf("attach: %v", err)
	}
	if err := run(s.url+"/exec/none", "v4.channel.k8s.io"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("no such token: %v", err)
	}
	at := s.attachURL("c")
	if err := run(strings.Replace(at, "attach", "exec", 1), "v4.channel.k8s.io"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("token of something else: %v", err)
	}
	if _, err := s.GetExec(&cri.ExecRequest{ContainerId: "c"}); err == nil || !strings.Contains(err.Error(), "one of stdin, stdout, or stderr must be set") {
		t.Errorf("no streams: %v", err)
	}
}

func TestTokens(t *testing.T) {
	s := serve(t, fake{})
	for i := range waiting.one {
		if _, err := s.GetPortForward(&cri.PortForwardRequest{PodSandboxId: "a"}); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	if _, err := s.GetPortForward(&cri.PortForwardRequest{PodSandboxId: "a"}); err == nil || !strings.Contains(err.Error(), "a has 100 requests") {
		t.Errorf("one more: %v", err)
	}
	token, err := s.tokens.add("b", 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.tokens.take(token); got != 1 {
		t.Errorf("token gives %v", got)
	}
	if got := s.tokens.take(token); got != nil {
		t.Errorf("token gives %v once more", got)
	}
	token, _ = s.tokens.add("b", 1)
	for e := s.tokens.byAge.Front(); e != nil; e = e.Next() {
		e.Value.(*entry).expires = time.Now()
	}
	if got := s.tokens.take(token); got != nil {
		t.Errorf("expired token gives %v", got)
	}
	if _, err := s.tokens.add("a", 1); err != nil || len(s.tokens.of) != 1 {
		t.Errorf("with all others expired: %v, %d are left", err, len(s.tokens.of))
	}
}

func TestPlaces(t *testing.T) {
	for _, b := range []bound{waiting, sessions, forwarders, forwarded} {
		var p places
		fill := func(who string, want int) (last error) {
			for range want {
				if _, err := p.take(b, who); err != nil {
					t.Fatalf("%s is refused one of %d: %v", who, want, err)
				}
			}
			_, err := p.take(b, who)
			return err
		}
		if err := fill("a", b.one); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("a has %d %s", b.one, b.of)) {
			t.Errorf("one more: %v", err)
		}
		for i := 0; p.all < b.all-b.kept; i++ {
			who := fmt.Sprint("many", i)
			for range min(b.one, b.all-b.kept-p.all) {
				if _, err := p.take(b, who); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := fill("few", b.few); err == nil || !strings.Contains(err.Error(), fmt.Sprint("this node has ", b.all-b.kept+b.few)) {
			t.Errorf("kept places: %v", err)
		}
		for i := 0; p.all < b.all; i++ {
			if _, err := p.take(b, fmt.Sprint("one", i)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.take(b, "another"); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("this node has %d %s", b.all, b.of)) {
			t.Errorf("all places: %v", err)
		}
	}
	var p places
	back, _ := p.take(sessions, "a")
	back()
	back()
	if p.all != 0 || len(p.of) != 0 {
		t.Errorf("%d and %v are left", p.all, p.of)
	}
}

// TestSessionsHaveABound: a container has a few sessions, of which those do not count whose
// clients have left; their commands go on, until they are too many.
func TestSessionsHaveABound(t *testing.T) {
	var running, killed atomic.Int64
	end := make(chan struct{})
	s := serve(t, fake{exec: func(ctx context.Context, _ io.Reader, _, _ io.WriteCloser, _ <-chan remotecommand.TerminalSize) error {
		running.Add(1)
		select {
		case <-end:
		case <-ctx.Done():
			killed.Add(1)
		}
		return nil
	}})
	has := func(p *places, what string, want int) {
		t.Helper()
		within(t, 10*time.Second, fmt.Sprintf("there are not %d %s", want, what), func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.all == want
		})
	}
	run := func(of string) error {
		return stream(t.Context(), s.execURL(of, false, false), clientgo.StreamOptions{Stdout: io.Discard, Stderr: io.Discard})
	}
	began := 0
	for began <= orphans.one {
		ctx, leave := context.WithCancel(t.Context())
		var clients sync.WaitGroup
		for range sessions.one {
			at := s.execURL("a", false, false)
			clients.Go(func() { _ = stream(ctx, at, clientgo.StreamOptions{Stdout: io.Discard, Stderr: io.Discard}) })
		}
		began += sessions.one
		within(t, 10*time.Second, "not all run", func() bool { return running.Load() == int64(began) })
		if err := run("a"); err == nil || !strings.Contains(err.Error(), "container a has 64 exec and attach sessions, which is as many as it may have") {
			t.Errorf("one more: %v", err)
		}
		leave()
		clients.Wait()
		has(&s.sessions, "sessions", 0)
		has(&s.orphans, "commands without clients", min(began, orphans.one))
	}
	within(t, 10*time.Second, "commands go on without end", func() bool { return killed.Load() == int64(began-orphans.one) })
	close(end)
	has(&s.orphans, "commands without clients", 0)
	if err := run("b"); err != nil {
		t.Errorf("another: %v", err)
	}
}

// What a client of attach began ends with it.
func TestAttachEndsWithItsClient(t *testing.T) {
	type end struct{ read, written error }
	began, ends := make(chan struct{}), make(chan end)
	s := serve(t, fake{attach: func(ctx context.Context, in io.Reader, out, errs io.WriteCloser) error {
		began <- struct{}{}
		<-ctx.Done()
		var e end
		if in != nil {
			_, e.read = io.ReadAll(in)
		}
		_, e.written = out.Write([]byte("x"))
		ends <- e
		return nil
	}})
	for _, way := range []string{"silent", "stdin"} {
		r, err := s.GetAttach(&cri.AttachRequest{ContainerId: "a", Stdin: true, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		c, err := dial(r.Url, "v4.channel.k8s.io")
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"error", "stdin", "stdout"} {
			created, err := c.CreateStream(headers("streamType", kind))
			if err != nil {
				t.Fatal(err)
			}
			if kind == "stdin" && way == "stdin" {
				_, _ = created.Write(make([]byte, 100000)) // that nobody reads
			}
		}
		<-began // a client that leaves before has no session
		_ = c.Close()
		select {
		case e := <-ends:
			if e.read != nil || e.written == nil {
				t.Errorf("%s: reads end by %v, writes by %v", way, e.read, e.written)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the session goes on", way)
		}
	}
}

func TestStreamsThatDoNotCome(t *testing.T) {
	s := serve(t, fake{}, func(c *Config) { c.StreamCreationTimeout = time.Second })
	c, err := dial(s.execURL("a", false, false), "v4.channel.k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	errs, err := c.CreateStream(headers("streamType", "error"))
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < maxStreams; i++ { // taken and not used, as upstream does
		if _, err := c.CreateStream(headers("streamType", "error")); err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
	}
	if _, err := c.CreateStream(headers("streamType", "stdout")); err == nil {
		t.Error("a client creates streams without end")
	}
	if got, _ := io.ReadAll(errs); !strings.Contains(string(got), "timed out waiting for client to create streams") {
		t.Errorf("got %q", got)
	}
	within(t, 5*time.Second, "the place is held", func() bool { s.sessions.mu.Lock(); defer s.sessions.mu.Unlock(); return s.sessions.all == 0 })
}

func TestWebSocket(t *testing.T) {
	left := make(chan struct{})
	s := serve(t, fake{exec: func(_ context.Context, in io.Reader, out, _ io.WriteCloser, _ <-chan remotecommand.TerminalSize) error {
		buffer := make([]byte, 5)
		_, _ = io.ReadFull(in, buffer)
		_, _ = out.Write(buffer)
		return nil
	}, attach: func(ctx context.Context, _ io.Reader, _, _ io.WriteCloser) error {
		<-ctx.Done()
		close(left)
		return nil
	}, forward: func(_ context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
		_, _ = fmt.Fprint(stream, port)
		return errors.New("bad")
	}})
	open := func(at, protocol string) *websocket.Conn {
		t.Helper()
		config, _ := websocket.NewConfig(strings.Replace(at, "http", "ws", 1), s.url)
		config.Protocol = []string{protocol}
		ws, err := websocket.DialConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return ws
	}
	var got [][]byte
	receive := func(ws *websocket.Conn, n int) {
		got = nil
		for range n {
			var message []byte
			if err := websocket.Message.Receive(ws, &message); err != nil {
				t.Fatal(err)
			}
			got = append(got, message)
		}
	}
	ws := open(s.execURL("a", true, false), "v4.channel.k8s.io")
	_ = websocket.Message.Send(ws, []byte("\x00hello"))
	if receive(ws, 3); fmt.Sprintf("%q", got) != `["\x01" "\x01hello" "\x03{\"status\":\"Success\"}"]` {
		t.Errorf("got %q", got)
	}
	ws.Close()
	ws = open(s.attachURL("a"), "channel.k8s.io")
	ws.Close()
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Error("attach goes on")
	}
	r, err := s.GetPortForward(&cri.PortForwardRequest{PodSandboxId: "a", Port: []int32{80}})
	if err != nil {
		t.Fatal(err)
	}
	ws = open(r.Url, "v4.channel.k8s.io")
	defer ws.Close()
	if receive(ws, 4); fmt.Sprintf("%q", got) != `["\x00P\x00" "\x01P\x00" "\x0080" "\x01error forwarding port 80 to pod a, uid : bad"]` {
		t.Errorf("got %q", got)
	}
}

// portClient is kubectl's part of a port-forward.
type portClient struct {
	httpstream.Connection
	n int
}

func (s *served) forwarder(of string) *portClient {
	s.t.Helper()
	r, err := s.GetPortForward(&cri.PortForwardRequest{PodSandboxId: of})
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := dial(r.Url, "portforward.k8s.io")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return &portClient{Connection: c}
}

func (c *portClient) open(port string) (data, errs httpstream.Stream, err error) {
	c.n++
	id := fmt.Sprint(c.n)
	if errs, err = c.CreateStream(headers("port", port, "requestID", id, "streamType", "error")); err != nil {
		return nil, nil, err
	}
	_ = errs.Close()
	data, err = c.CreateStream(headers("port", port, "requestID", id, "streamType", "data"))
	return data, errs, err
}

func echo(t *testing.T) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
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
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
	return l.Addr().String()
}

func TestPortForward(t *testing.T) {
	to := echo(t)
	var open atomic.Int64
	s := serve(t, fake{}, func(c *Config) {
		c.StreamCreationTimeout = 200 * time.Millisecond
		c.Dial = func(_ context.Context, sandbox string, port int32) (net.Conn, error) {
			switch port {
			case 1:
				return nil, errors.New("refused")
			case 2:
				panic("bad")
			}
			conn, err := net.Dial("tcp", to)
			open.Add(1)
			return counted{conn, &open}, err
		}
	})
	c := s.forwarder("a")
	data, errs, err := c.open("80")
	if err != nil {
		t.Fatal(err)
	}
	sent := bytes.Repeat([]byte("hello "), 50000)
	go func() { _, _ = data.Write(sent) }()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(data, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%v, or something else", err)
	}
	began := time.Now()
	_ = data.Close()
	if rest, err := io.ReadAll(errs); err != nil || len(rest) > 0 || time.Since(began) < grace/2 {
		t.Errorf("%q, %v after %v", rest, err, time.Since(began))
	}

	_, errs, err = c.open("1")
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(errs); string(got) != "error forwarding port 1 to pod a, uid : refused" {
		t.Errorf("got %q", got)
	}
	_, errs, err = c.open("2")
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(errs); string(got) != "panic" {
		t.Errorf("got %q", got)
	}
	lone, err := c.CreateStream(headers("port", "80", "requestID", "lone", "streamType", "error"))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(lone); string(got) != "(request=lone) timed out waiting for streams" {
		t.Errorf("got %q", got)
	}
	for _, bad := range []http.Header{headers("streamType", "data"), headers("port", "0", "streamType", "data"), headers("port", "80", "streamType", "x"), headers("port", "80")} {
		if _, err := c.CreateStream(bad); err == nil {
			t.Errorf("a stream with %v is taken", bad)
		}
	}
	for range 3 {
		if _, _, err := c.open("80"); err != nil {
			t.Fatal(err)
		}
	}
	within(t, 5*time.Second, "not all are forwarded", func() bool { return open.Load() == 3 })
	_ = c.Close()
	within(t, 500*time.Millisecond, "connections go on without their client", func() bool { return open.Load() == 0 })
}

type counted struct {
	net.Conn
	open *atomic.Int64
}

func (c counted) Close() error { c.open.Add(-1); return c.Conn.Close() }

func TestForwardedConnectionsHaveABound(t *testing.T) {
	ended := make(chan struct{}, 1000)
	s := serve(t, fake{forward: func(ctx context.Context, _ string, _ int32, _ io.ReadWriteCloser) error {
		<-ctx.Done()
		ended <- struct{}{}
		return ctx.Err()
	}})
	first, second := s.forwarder("a"), s.forwarder("a")
	for i := range forwarded.one {
		c := first
		if i%2 == 0 {
			c = second
		}
		if _, _, err := c.open("80"); err != nil {
			t.Fatal(err)
		}
	}
	_, errs, err := first.open("80")
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(errs); string(got) != "error forwarding port 80 to pod a, uid : sandbox a has 256 forwarded connections, which is as many as it may have" {
		t.Errorf("got %q", got)
	}
	if other := s.forwarder("b"); other != nil {
		if _, _, err := other.open("80"); err != nil {
			t.Error(err)
		}
	}
	_ = second.Close()
	for range forwarded.one / 2 {
		<-ended
	}
	within(t, 5*time.Second, "places are held", func() bool {
		s.forwarded.mu.Lock()
		defer s.forwarded.mu.Unlock()
		return s.forwarded.of["sandbox a"] == forwarded.one/2
	})
}

// A client may leave while what it has sent waits for who does not read.
func TestClientLeavesUnread(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	theirs, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ours, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	c := &conn{Conn: ours, gone: make(chan struct{})}
	if c.left() {
		t.Error("left before")
	}
	_, _ = theirs.Write([]byte("x"))
	theirs.Close()
	within(t, 5*time.Second, "the end is not seen", c.left)
}

func TestStopEndsClients(t *testing.T) {
	ended := make(chan struct{})
	s := serve(t, fake{attach: func(ctx context.Context, _ io.Reader, _, _ io.WriteCloser) error {
		<-ctx.Done()
		close(ended)
		return nil
	}})
	at := s.attachURL("a")
	go func() {
		time.Sleep(100 * time.Millisecond)
		_ = s.Stop()
	}()
	_ = stream(t.Context(), at, clientgo.StreamOptions{Stdout: io.Discard, Stderr: io.Discard})
	<-ended
}
