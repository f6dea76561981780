package endpoints

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
)

// A watch as a WebSocket is refused or begins, whatever the handshake says, and
// ends when its client does, whatever the client has sent.
func FuzzWebSocketWatch(f *testing.F) {
	w := newWorld(f)
	w.fill(f, 1)
	const good = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://localhost\r\n"
	masked := "\x00\x00\x00\x00"
	f.Add(good, []byte("\x81\x82"+masked+"hi\x88\x80"+masked))
	f.Add(good+"Sec-WebSocket-Protocol: a, b\r\nAccept: application/vnd.kubernetes.protobuf\r\n", []byte("\x89\xfe\x01\x00"+masked))
	f.Add(good+"Accept: application/json;as=Table;g=meta.k8s.io;v=v1\r\n", []byte("\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff"+masked+"x"))
	f.Add("Upgrade: WebSocket\r\nConnection: keep-alive, upgrade\r\nSec-WebSocket-Version: 8\r\nOrigin: ://\r\n", []byte("\x01"))
	f.Fuzz(func(t *testing.T, headers string, frames []byte) {
		if len(headers) > 4<<10 || strings.Contains(headers, "\n\n") || strings.Contains(headers, "\n\r\n") || strings.HasPrefix(headers, "\r") || strings.HasPrefix(headers, "\n") {
			t.Skip("more than a head")
		}
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		head := "GET /api/v1/namespaces/bench/pods?watch=1&timeoutSeconds=30 HTTP/1.1\r\nHost: localhost\r\n" + strings.TrimSuffix(headers, "\r\n") + "\r\n\r\n"
		if _, err := io.WriteString(conn, head); err != nil {
			return // refused before all was said
		}
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Skip("no HTTP") // net/http closes without a word what is too odd
		}
		if resp.StatusCode >= 500 {
			body, _ := io.ReadAll(r)
			t.Fatalf("%q: %s %v %s", headers, resp.Status, resp.Header, body)
		}
		if resp.StatusCode != http.StatusSwitchingProtocols {
			return
		}
		_, _ = conn.Write(frames)
		_ = conn.(*net.TCPConn).CloseWrite()
		if _, err := io.Copy(io.Discard, r); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Fatalf("%q: the watch goes on", headers)
		}
	})
}

// TestWebSocketWatchEnds: with the server, though the client goes on, and even
// reads nothing; who names no origin gets none, as upstream's.
func TestWebSocketWatchEnds(t *testing.T) {
	w := newWorld(t)
	w.fill(t, 1)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		defer func() {
			if r.Header.Get("Origin") != "" {
				close(ended)
			}
		}()
		w.server.ServeHTTP(rw, r.WithContext(ctx))
	}))
	defer web.Close()
	at := "ws" + strings.TrimPrefix(web.URL, "http") + "/api/v1/namespaces/bench/pods?watch=1"
	ws, err := websocket.Dial(at, "", "http://localhost")
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	var first string
	if err := websocket.Message.Receive(ws, &first); err != nil || !strings.Contains(first, `"type":"ADDED"`) {
		t.Fatal(first, err)
	}
	req, err := http.NewRequest("GET", "http"+strings.TrimPrefix(at, "ws"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="} {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("without an origin: %s", resp.Status)
	}
	stop()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the watch goes on")
	}
}
