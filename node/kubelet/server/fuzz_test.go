package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// streamHost has its streams at a runtime's.
type streamHost struct {
	fakeHost
	runtime string
}

func (h streamHost) ExecURL(context.Context, Target) (string, error)        { return h.runtime, nil }
func (h streamHost) AttachURL(context.Context, Target) (string, error)      { return h.runtime, nil }
func (h streamHost) PortForwardURL(context.Context, Target) (string, error) { return h.runtime, nil }

// upgrades are what clients ask for: the protocols of exec, attach and
// port-forward, by WebSocket and by SPDY.
var upgrades = []struct{ path, upgrade, header, protocol string }{
	{"/exec/n/p/c?command=a&input=1&output=1&error=1", "websocket", "Sec-WebSocket-Protocol", "v5.channel.k8s.io"},
	{"/exec/n/p/c?command=a&output=1&tty=1", "websocket", "Sec-WebSocket-Protocol", "v4.channel.k8s.io"},
	{"/portForward/n/p?port=1", "websocket", "Sec-WebSocket-Protocol", "SPDY/3.1+portforward.k8s.io"},
	{"/exec/n/p/c?command=a&input=1&output=1", "SPDY/3.1", "X-Stream-Protocol-Version", "v4.channel.k8s.io"},
	{"/portForward/n/p", "SPDY/3.1", "X-Stream-Protocol-Version", "portforward.k8s.io"},
}

// Whatever a client says on a stream, the server ends it, and stays.
func FuzzStream(f *testing.F) {
	echo := func(s httpstream.Stream, _ <-chan struct{}) error {
		go func() { _, _ = io.Copy(s, s); _ = s.Close() }()
		return nil
	}
	runtime := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io", "portforward.k8s.io"}); err != nil {
			return
		}
		if c := spdy.NewResponseUpgrader().UpgradeResponse(w, r, echo); c != nil {
			<-c.CloseChan()
		}
	}))
	f.Cleanup(runtime.Close)
	panics := make(chan any, 1)
	inner := New(streamHost{runtime: runtime.URL}, nil)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				panics <- p
			}
		}()
		inner.ServeHTTP(w, r)
	}))
	f.Cleanup(s.Close)
	at, err := url.Parse(s.URL)
	if err != nil {
		f.Fatal(err)
	}
	frame := func(opcode byte, payload string) []byte { // masked by zeroes
		return append([]byte{0x80 | opcode, 0x80 | byte(len(payload)), 0, 0, 0, 0}, payload...)
	}
	for i := range upgrades {
		f.Add(i, frame(2, "\x00hello"))
		f.Add(i, append(frame(2, "\xff\x00"), frame(8, "\x03\xe8")...))
		f.Add(i, append(frame(9, "ping"), 0x02, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff))
		f.Add(i, frame(2, "\x04"+`{"Width":-1,"Height":70000}`))
		f.Add(i, []byte("\x80\x03\x00\x01\x01\x00\x00\x0a\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00"))         // SYN_STREAM
		f.Add(i, []byte("\x80\x03\x00\x04\x00\x00\x00\x0c\xff\xff\xff\xff\x00\x00\x00\x07\x00\x00\x00\x00")) // SETTINGS
		f.Add(i, []byte("\x00\x00\x00\x01\x01\xff\xff\xff"))                                                 // data of no stream
	}
	f.Fuzz(func(t *testing.T, which int, data []byte) {
		u := upgrades[uint(which)%uint(len(upgrades))]
		c, err := net.Dial("tcp", at.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		key := ""
		if u.upgrade == "websocket" {
			key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
		}
		method := map[bool]string{true: "GET", false: "POST"}[key != ""]
		fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s%s: %s\r\n\r\n", method, u.path, u.upgrade, key, u.header, u.protocol)
		_, _ = c.Write(data)
		_ = c.(*net.TCPConn).CloseWrite()
		if _, err := io.Copy(io.Discard, c); err != nil {
			if late, ok := err.(net.Error); ok && late.Timeout() {
				t.Fatal("the stream does not end")
			}
		}
		select {
		case p := <-panics:
			t.Fatalf("panic: %v", p)
		default:
		}
	})
}

// Every path and its options are answered without a panic.
func FuzzPath(f *testing.F) {
	f.Add("GET", "/containerLogs/ns/p/c?tailLines=-1&sinceTime=x&limitBytes=99999999999999999999")
	f.Add("POST", "/run/ns/p/c?cmd=a+b")
	f.Add("POST", "/portForward/ns/p?port=1,2,0&ports=a")
	f.Add("GET", "/exec/ns/p/u/c?stdin=1")
	f.Add("GET", "/stats/summary?only_cpu_and_memory=x")
	h := New(fakeHost{"/dev/null"}, nil)
	f.Fuzz(func(t *testing.T, method, path string) {
		r, err := http.NewRequest(method, "http://a"+path, http.NoBody)
		if err != nil || len(path) > 5 && path[:5] == "/logs" {
			return
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
		attributes(method, r.URL.Path)
	})
}
