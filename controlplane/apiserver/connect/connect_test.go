package connect

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"knarr/controlplane/apiserver/request"
)

// pods are a caller that has them alone, and admits all.
type pods map[string]*corev1.Pod

func (pods) Admit(runtime.Object) error { return nil }

func (p pods) Get(name string) (runtime.Object, error) {
	if pod := p[name]; pod != nil {
		return pod, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
}

// A world is a server over HTTP, with one pod of two containers on a node.
type world struct {
	t      *testing.T
	server *Server
	url    string
}

func newWorld(t *testing.T, cfg Config) *world {
	cfg.WriteStatus = func(w http.ResponseWriter, _ *http.Request, err error) {
		status := apierrors.APIStatus(nil)
		if !errors.As(err, &status) {
			status = apierrors.NewInternalError(err)
		}
		http.Error(w, status.Status().Message, int(status.Status().Code))
	}
	server := New(cfg)
	objects := pods{"p": {
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
		Spec:       corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c"}, {Name: "d"}}},
		Status:     corev1.PodStatus{PodIP: "10.0.0.1"},
	}}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, err := request.ParseInfo(r)
		if err != nil || !Serves(info.Resource+"/"+info.Subresource) {
			fmt.Fprint(w, "no connection")
			return
		}
		if err := server.Serve(w, r, info, objects); err != nil {
			cfg.WriteStatus(w, r, err)
		}
	}))
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	return &world{t, server, web.URL}
}

// do sends one request and returns code, body and headers.
func (w *world) do(method, path string, headers ...string) (int, string, http.Header) {
	w.t.Helper()
	req, err := http.NewRequest(method, w.url+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(data), resp.Header
}

// newNode is a world whose kubelet is handler.
func newNode(t *testing.T, handler http.HandlerFunc) *world {
	kubelet := httptest.NewServer(handler)
	t.Cleanup(kubelet.Close)
	base, err := url.Parse(kubelet.URL)
	if err != nil {
		t.Fatal(err)
	}
	return newWorld(t, Config{Kubelet: func(context.Context, string) (*url.URL, http.RoundTripper, error) {
		return base, &http.Transport{DisableKeepAlives: true}, nil
	}})
}

// TestMethods: a log is read; commands are run by GET, which a WebSocket begins
// with, and POST.
func TestMethods(t *testing.T) {
	s := New(Config{})
	for _, c := range []struct {
		method, subresource string
		refused             bool
	}{
		{"GET", "log", false}, {"POST", "log", true}, {"DELETE", "log", true},
		{"GET", "exec", false}, {"POST", "attach", false}, {"PUT", "exec", true}, {"DELETE", "portforward", true},
	} {
		r := httptest.NewRequest(c.method, "/api/v1/namespaces/default/pods/p/"+c.subresource, nil)
		info, err := request.ParseInfo(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Serve(httptest.NewRecorder(), r, info, pods{}); errors.Is(err, ErrMethod) != c.refused {
			t.Errorf("%s %s: %v", c.method, c.subresource, err)
		}
	}
}

func TestLogIsRelayed(t *testing.T) {
	w := newNode(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the client's credentials reach the kubelet")
		}
		fmt.Fprint(rw, r.URL.RequestURI())
	})
	code, body, _ := w.do("GET", "/api/v1/namespaces/default/pods/p/log?container=c&tailLines=5&follow=true", "Authorization", "Bearer x")
	if code != 200 || body != "/containerLogs/default/p/c?follow=true&tailLines=5" {
		t.Errorf("%d %s", code, body)
	}
	code, body, _ = w.do("GET", "/api/v1/namespaces/default/pods/p/log")
	if code != 400 || !strings.Contains(body, "a container name must be specified for pod p, choose one of: [c d]") {
		t.Errorf("no container: %d %s", code, body)
	}
}

// TestNoLog: a client sees why the kubelet gives no log.
func TestNoLog(t *testing.T) {
	for code, want := range map[int]string{
		http.StatusBadRequest:          `container "c" in pod "p" is waiting to start: ContainerCreating`,
		http.StatusInternalServerError: `Internal error occurred: container "c" in pod "p" is waiting to start: ContainerCreating`,
		http.StatusNotFound:            "the server could not find the requested resource ( pods/log p)",
	} {
		w := newNode(t, func(rw http.ResponseWriter, _ *http.Request) {
			http.Error(rw, `container "c" in pod "p" is waiting to start: ContainerCreating`, code)
		})
		if got, body, _ := w.do("GET", "/api/v1/namespaces/default/pods/p/log?container=c"); got != code || strings.TrimSpace(body) != want {
			t.Errorf("%d: %d %s", code, got, body)
		}
	}
}

// TestLogOverWebSocket: a log comes as messages, the first one empty, in the
// protocol that the client asks for.
func TestLogOverWebSocket(t *testing.T) {
	w := newNode(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			t.Error("the upgrade reaches the kubelet")
		}
		if strings.HasSuffix(r.URL.Path, "/d") {
			http.Error(rw, "gone", http.StatusNotFound)
			return
		}
		fmt.Fprint(rw, "alive\n")
	})
	url := strings.Replace(w.url, "http:", "ws:", 1) + "/api/v1/namespaces/default/pods/p/log?container="
	for protocol, want := range map[string]string{"": "alive\n", "binary.k8s.io": "alive\n", "base64.binary.k8s.io": "YWxpdmUK"} {
		ws, err := websocket.Dial(url+"c", protocol, "http://localhost")
		if err != nil {
			t.Fatal(err)
		}
		var first, second, end []byte
		if err := errors.Join(websocket.Message.Receive(ws, &first), websocket.Message.Receive(ws, &second)); err != nil {
			t.Fatal(err)
		}
		if len(first) != 0 || string(second) != want {
			t.Errorf("%q: %q, then %q", protocol, first, second)
		}
		if err := websocket.Message.Receive(ws, &end); err != io.EOF {
			t.Errorf("%q ends with %v", protocol, err)
		}
		ws.Close()
	}
	if _, err := websocket.Dial(url+"c", "other", "http://localhost"); err == nil {
		t.Error("an unknown protocol is accepted")
	}
	if _, err := websocket.Dial(url+"d", "", "http://localhost"); err == nil {
		t.Error("a log that is not there is a stream")
	}
}

func upgrade(t *testing.T, w *world) (net.Conn, *http.Response, *bufio.Reader) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprint(conn, "POST /api/v1/namespaces/default/pods/p/exec?container=c&command=sh&stdin=1&stdout=1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n")
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	return conn, resp, r
}

func TestExecIsATunnel(t *testing.T) {
	w := newNode(t, func(rw http.ResponseWriter, r *http.Request) {
		if got := r.URL.RequestURI(); got != "/exec/default/p/c?command=sh&input=1&output=1" {
			t.Errorf("kubelet was asked for %s", got)
		}
		rw.Header().Set("Connection", "Upgrade")
		rw.Header().Set("Upgrade", "SPDY/3.1")
		rw.WriteHeader(http.StatusSwitchingProtocols)
		conn, buf, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		line, err := buf.ReadString('\n')
		if err != nil {
			t.Error(err)
		}
		fmt.Fprint(conn, "echo "+line)
	})
	conn, resp, r := upgrade(t, w)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp.Status)
	}
	fmt.Fprint(conn, "hello\n")
	if line, err := r.ReadString('\n'); err != nil || line != "echo hello\n" {
		t.Errorf("%q, %v", line, err)
	}
}

// A refused upgrade must leave no way to the kubelet, and a redirect must lead
// nobody anywhere.
func TestRefusedUpgradeLeavesNoTunnel(t *testing.T) {
	requests := 0
	w := newNode(t, func(rw http.ResponseWriter, r *http.Request) {
		requests++
		if requests > 1 {
			http.Redirect(rw, r, "http://169.254.169.254/", http.StatusFound)
			return
		}
		http.Error(rw, "no", http.StatusForbidden)
	})
	conn, resp, r := upgrade(t, w)
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusForbidden {
		t.Fatalf("%s, %v", resp.Status, err)
	}
	// What follows on the connection is a request to this server.
	fmt.Fprint(conn, "GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
	if next, err := http.ReadResponse(r, nil); err == nil {
		body, rerr := io.ReadAll(next.Body)
		if rerr != nil || !strings.Contains(string(body), "no connection") {
			t.Errorf("after a refused upgrade: %s", body)
		}
	}
	if requests != 1 {
		t.Errorf("the kubelet saw %d requests", requests)
	}
	if _, resp, _ := upgrade(t, w); resp.StatusCode != http.StatusBadGateway || resp.Header.Get("Location") != "" {
		t.Errorf("a redirect was passed on: %s", resp.Status)
	}
}

// proxied is a world with a pod that serves, and the path of its proxy.
func proxied(t *testing.T) (*world, string) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/page" {
			w.Header().Set("Access-Control-Allow-Origin", "*")
			fmt.Fprint(w, `<html><a href="/other">x</a><a href="https://example.com/">y</a></html>`)
			return
		}
		fmt.Fprint(w, r.Method, " ", r.URL.RequestURI())
	}))
	t.Cleanup(backend.Close)
	base, err := url.Parse(backend.URL)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, Config{Proxy: roundTrip(func(r *http.Request) (*http.Response, error) {
		r.URL.Host = base.Host
		return http.DefaultTransport.RoundTrip(r)
	})})
	return w, "/api/v1/namespaces/default/pods/p/proxy"
}

// TestProxyRedirectsReads: what is read without a path gets one; any other
// method reaches the backend as it is.
func TestProxyRedirectsReads(t *testing.T) {
	w, path := proxied(t)
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		req, err := http.NewRequest(method, w.url+path+"?a=b", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if method == "GET" || method == "HEAD" {
			if resp.StatusCode != http.StatusMovedPermanently || resp.Header.Get("Location") != path+"/?a=b" {
				t.Errorf("%s: %s to %s", method, resp.Status, resp.Header.Get("Location"))
			}
		} else if string(body) != method+" /?a=b" {
			t.Errorf("%s: %s %s", method, resp.Status, body)
		}
	}
}

// TestProxiedPage: links stay within the proxy.
func TestProxiedPage(t *testing.T) {
	w, path := proxied(t)
	code, body, header := w.do("GET", path+"/page")
	want := `<html><a href="` + path + `/other">x</a><a href="https://example.com/">y</a></html>`
	if code != 200 || body != want || header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("%d %s %v", code, body, header)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
