package apiserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/storage"
	"knarr/internal/memnet"
)

var people = map[string]user.Info{
	"root": &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}},
	"bob":  &user.DefaultInfo{Name: "bob"},
}

// newServer is a running server that knows people, with room for one read and
// one write.
func newServer(t testing.TB, change ...func(*Config)) (*Server, func()) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Store: storage.NewMemory(), ServiceAccountKey: key, Tokens: people, MaxReads: 1, MaxWrites: 1, RequestTimeout: time.Minute}
	for _, f := range change {
		f(&c)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-s.Started()
	return s, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		c.Store.Close()
	}
}

func ask(h http.Handler, method, path, who string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, nil)
	if who != "" {
		r.Header.Set("Authorization", "Bearer "+who)
	}
	h.ServeHTTP(w, r)
	return w
}

const selfPath = "/apis/authentication.k8s.io/v1/selfsubjectreviews"

// TestSeats fills a level: those who belong to it wait and are refused, others
// are served.
func TestSeats(t *testing.T) { synctest.Test(t, fillSeats) }

func fillSeats(t *testing.T) {
	s, stop := newServer(t)
	defer stop()
	may := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "bob"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "bob"}}}
	if err := s.ensure(t.Context(), may); err != nil {
		t.Fatal(err)
	}
	if err := s.cache.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	entered, leave := make(chan struct{}), make(chan struct{})
	h := s.chain(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("stay") {
			request.Started(r.Context())
			entered <- struct{}{}
			<-leave
		}
	}))
	const version, stay = "/version", "/version?stay=1"
	var wg sync.WaitGroup
	held := 0
	stays := func(path string) *httptest.ResponseRecorder {
		refused := make(chan *httptest.ResponseRecorder, 1)
		wg.Go(func() { refused <- ask(h, "GET", path, "bob") })
		select {
		case <-entered:
			held++
			return nil
		case w := <-refused:
			return w
		}
	}
	for range 20 { // a watch has a seat only while it starts
		if w := stays("/api/v1/namespaces/default/pods?watch=1&stay=1"); w != nil {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	watches := held
	var w *httptest.ResponseRecorder
	for w == nil && held < 100 {
		w = stays(stay)
	}
	if held == watches || w == nil || w.Code != 429 || w.Header().Get("Retry-After") != "1" ||
		w.Body.String() != "Too many requests, please try again later.\n" || len(w.Header().Get("X-Kubernetes-PF-FlowSchema-UID")) != 36 {
		t.Errorf("after %d: %+v", held, w)
	}
	for _, c := range []struct {
		method, path, who string
		want              int
	}{
		{"POST", selfPath, "bob", 429},
		{"GET", "/livez", "", 200},
		{"GET", version, "root", 200},
		{"GET", version, "nobody", 401}, // known before limited
		{"GET", "/api/v1/namespaces/default/pods/p/log", "bob", 200},
	} {
		if w := ask(h, c.method, c.path, c.who); w.Code != c.want {
			t.Errorf("%+v: %d %s", c, w.Code, w.Body)
		}
	}
	for range held {
		leave <- struct{}{}
	}
	wg.Wait()
	if w := ask(h, "GET", version, "bob"); w.Code != 200 {
		t.Errorf("the seats are not given back: %d", w.Code)
	}
}

func TestRequestTimeout(t *testing.T) {
	s, stop := newServer(t)
	defer stop()
	left := func(path string) (d time.Duration, bounded bool, code int) {
		h := s.chain(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			var at time.Time
			at, bounded = r.Context().Deadline()
			d = time.Until(at)
		}))
		return d, bounded, ask(h, "GET", path, "root").Code
	}
	for path, most := range map[string]time.Duration{"/version": time.Minute, "/version?timeout=5s": 5 * time.Second, "/version?timeout=1h": time.Minute, "/version?timeout=-1s": time.Minute} {
		if d, ok, code := left(path); !ok || d > most || d < most-4*time.Second || code != 200 {
			t.Errorf("%s: %v %v %d", path, d, ok, code)
		}
	}
	if _, ok, _ := left("/api/v1/pods?watch=1"); ok {
		t.Error("a watch has a deadline")
	}
	if _, _, code := left("/version?timeout=abc"); code != 400 {
		t.Errorf("a bad timeout is %d", code)
	}
}

func TestPanicIs500(t *testing.T) {
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.DiscardHandler))
	s, stop := newServer(t)
	defer stop()
	h := s.chain(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") }))
	for range 3 { // a panic gives its place back
		w := ask(h, "GET", "/version", "bob")
		if w.Code != 500 || strings.Contains(w.Body.String(), "boom") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
}

func TestUnauthenticatedClientsKeepNoHTTP2(t *testing.T) {
	s, stop := newServer(t)
	defer stop()
	h := s.chain(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for who, want := range map[string]string{"": "close", "nobody": "close", "root": ""} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "/livez", nil)
		r.ProtoMajor = 2
		if who != "" {
			r.Header.Set("Authorization", "Bearer "+who)
		}
		h.ServeHTTP(w, r)
		if got := w.Header().Get("Connection"); got != want {
			t.Errorf("%q: Connection %q", who, got)
		}
	}
}

// serve answers on an in-memory network until stop.
func serve(t testing.TB, s *Server) (l *memnet.Listener, stop func()) {
	l = memnet.Listen()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l, nil) }()
	return l, func() {
		cancel()
		l.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// A client that never ends its body holds its place for the request timeout.
func TestSlowBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := newServer(t)
		defer stop()
		l, end := serve(t, s)
		defer end()
		conn, err := l.Dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		go fmt.Fprintf(conn, "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer root\r\nContent-Length: 100\r\n\r\n{")
		began := time.Now()
		answer, _ := io.ReadAll(conn)
		if took := time.Since(began); took > time.Minute+10*time.Second || took < 30*time.Second {
			t.Errorf("a slow body took %v", took)
		}
		if !bytes.HasPrefix(answer, []byte("HTTP/1.1 4")) && !bytes.HasPrefix(answer, []byte("HTTP/1.1 504")) {
			t.Errorf("%s", answer)
		}
	})
}

func TestSlowHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := newServer(t)
		defer stop()
		l, end := serve(t, s)
		defer end()
		conn, err := l.Dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		go fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost:")
		began := time.Now()
		_, _ = io.ReadAll(conn)
		if took := time.Since(began); took > 40*time.Second {
			t.Errorf("slow headers took %v", took)
		}
	})
}

func TestSizes(t *testing.T) {
	s, stop := newServer(t)
	defer stop()
	l, end := serve(t, s)
	defer end()
	tr := &http.Transport{DialContext: l.Dial}
	defer tr.CloseIdleConnections()
	post := func(body string, header int) int {
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://x/api/v1/namespaces/default/configmaps", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer root")
		r.Header.Set("Padding", strings.Repeat("x", header))
		resp, err := tr.RoundTrip(r)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	object := `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"k":"%s"}}`
	if code := post(fmt.Sprintf(object, strings.Repeat("x", 500<<10)), 10); code != 201 {
		t.Errorf("half a megabyte: %d", code)
	}
	if code := post(fmt.Sprintf(object, strings.Repeat("x", 3<<20)), 10); code != 413 {
		t.Errorf("more than three megabytes: %d", code)
	}
	if code := post(fmt.Sprintf(object, ""), 2<<20); code != 431 && code != 0 {
		t.Errorf("two megabytes of headers: %d", code)
	}
}

// No token or secret value is ever logged, whatever is done with it.
func TestLogsHoldNoSecrets(t *testing.T) {
	var logged bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&lockedWriter{w: &logged}, &slog.HandlerOptions{Level: slog.LevelDebug})))
	s, stop := newServer(t)
	h := s.Handler()
	const value, encoded, token = "hush-hush-value", "aHVzaC1odXNoLXZhbHVl", "hush-hush-token"
	send := func(method, path, contentType, body, who string) {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		r.Header.Set("Authorization", "Bearer "+who)
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	const secrets = "/api/v1/namespaces/default/secrets"
	secret := `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"},"data":{"k":"` + encoded + `"}}`
	for _, who := range []string{"root", "bob", token} {
		send("POST", secrets, "application/json", secret, who)
		send("POST", secrets, "application/json", secret[:len(secret)-3], who)
		send("POST", secrets, "application/vnd.kubernetes.protobuf", secret, who)
		send("PATCH", secrets+"/a", "application/json-patch+json", `[{"op":"test","path":"/data/k","value":"`+encoded+`x"}]`, who)
		send("PATCH", secrets+"/a", "application/apply-patch+yaml", secret, who)
		send("PATCH", secrets+"/a?fieldManager=m", "application/apply-patch+yaml", secret, who)
		send("GET", secrets+"/a", "", "", who)
		send("GET", secrets, "", "", who)
		send("DELETE", secrets+"/a", "", "", who)
		send("POST", "/apis/authentication.k8s.io/v1/tokenreviews", "application/json", `{"spec":{"token":"`+token+`"}}`, who)
		send("GET", "/api?token="+token, "", "", who)
	}
	var issued string
	{
		r := httptest.NewRequest("POST", "/api/v1/namespaces/default/serviceaccounts", strings.NewReader(`{"metadata":{"name":"sa"}}`))
		r.Header.Set("Authorization", "Bearer root")
		h.ServeHTTP(httptest.NewRecorder(), r)
		w := httptest.NewRecorder()
		r = httptest.NewRequest("POST", "/api/v1/namespaces/default/serviceaccounts/sa/token", strings.NewReader(`{}`))
		r.Header.Set("Authorization", "Bearer root")
		h.ServeHTTP(w, r)
		_, rest, ok := strings.Cut(w.Body.String(), `"token":"`)
		if !ok {
			t.Fatalf("no token: %s", w.Body)
		}
		issued, _, _ = strings.Cut(rest, `"`)
		send("GET", "/api", "", "", issued)
		send("GET", "/api", "", "", issued[:len(issued)-4]+"AAAA")
	}
	stop()
	for _, hidden := range []string{value, encoded, token, issued, issued[:60]} {
		if strings.Contains(logged.String(), hidden) {
			t.Errorf("%q is in the log:\n%s", hidden, logged.String())
		}
	}
}

type lockedWriter struct {
	w  io.Writer
	mu sync.Mutex
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
