package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"knarr/internal/delegation"
	"knarr/internal/healthz"
)

type fakeHost struct{ log string }

func (fakeHost) Pods() []corev1.Pod        { return nil }
func (fakeHost) RunningPods() []corev1.Pod { return nil }
func (f fakeHost) Log(_, pod, _ string, _ bool) (string, func(context.Context) bool, error) {
	if pod != "p" {
		return "", nil, NotFound("pod %q does not exist", pod)
	}
	return f.log, func(context.Context) bool { return false }, nil
}
func (fakeHost) ExecURL(context.Context, Target) (string, error)        { return "", nil }
func (fakeHost) AttachURL(context.Context, Target) (string, error)      { return "", nil }
func (fakeHost) PortForwardURL(context.Context, Target) (string, error) { return "", nil }
func (fakeHost) Run(_ context.Context, t Target) ([]byte, error) {
	return []byte(strings.Join(t.Command, "|")), nil
}
func (fakeHost) Checkpoint(_ context.Context, t Target, timeout int64) (string, error) {
	switch t.Container {
	case "c":
		return fmt.Sprintf("/%s-%s-%d", t.Pod, t.Namespace, timeout), nil
	case "absent":
		return "", NotFound("container absent does not exist")
	}
	return "", errors.New("no CRIU")
}
func (fakeHost) Summary(context.Context, bool) (any, error) { return map[string]int{"n": 1}, nil }
func (fakeHost) SharedImages() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte("image")) })
}
func (fakeHost) SystemLogs() http.Handler         { return http.NotFoundHandler() }
func (fakeHost) Metrics() map[string]http.Handler { return nil }
func (fakeHost) Health() http.Handler             { return healthz.New("kubelet", nil) }
func (fakeHost) Configz() any                     { return nil }
func (fakeHost) LogLevel(int)                     {}
func (fakeHost) Pages() Pages {
	return Pages{Flags: func() map[string]string { return map[string]string{"max-pods": "7"} }, Status: true}
}

func TestRoutes(t *testing.T) {
	log := filepath.Join(t.TempDir(), "l")
	if err := os.WriteFile(log, []byte("2026-01-02T03:04:05Z stdout F one\n2026-01-02T03:04:05Z stderr F two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := New(fakeHost{log}, nil)
	for _, c := range []struct {
		method, path string
		code         int
		body         string
	}{
		{"GET", "/healthz", 200, "ok"},
		{"GET", "/pods", 200, `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}`},
		{"GET", "/containerLogs/ns/p/c", 200, "one\ntwo\n"},
		{"GET", "/containerLogs/ns/p/c?tailLines=1", 200, "two\n"},
		{"GET", "/containerLogs/ns/p/c?stream=Stdout", 200, "one\n"},
		{"GET", "/containerLogs/ns/p/c?tailLines=-1", 422, "{\"message\": \"Invalid request.\"}\n"},
		{"GET", "/containerLogs/ns/p/c?tailLines=few", 400, "{\"message\": \"Unable to decode query.\"}\n"},
		{"GET", "/containerLogs/ns/p/c?sinceTime=noon", 400, "{\"message\": \"Unable to decode query.\"}\n"},
		{"GET", "/containerLogs/ns/p/c?sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z", 422, "{\"message\": \"Invalid request.\"}\n"},
		{"GET", "/containerLogs/ns/p/c?stream=Stdout&tailLines=1", 422, "{\"message\": \"Invalid request.\"}\n"},
		{"GET", "/containerLogs/ns/p/c?stream=stdout", 422, "{\"message\": \"Invalid request.\"}\n"},
		{"GET", "/containerLogs/ns/p/c?tail=all&tailLines=1", 200, "one\ntwo\n"},
		{"GET", "/containerLogs/ns/q/c", 404, "pod \"q\" does not exist\n"},
		{"POST", "/exec/ns/p/c?command=x&output=1", 400, "Upgrade request required\n"}, // before the runtime is asked for a stream
		{"POST", "/exec/ns/p/c?command=x", 400, "you must specify at least 1 of stdin, stdout, stderr\n"},
		{"POST", "/portForward/ns/p?port=0", 400, "unable to parse \"0\" as a port\n"},
		{"POST", "/run/ns/p/c?cmd=a+b", 200, "a|b"},
		{"POST", "/checkpoint/ns/p/c", 200, `{"items":["/p-ns-0"]}`},
		{"POST", "/checkpoint/ns/p/c?timeout=1&timeout=7", 200, `{"items":["/p-ns-7"]}`},
		{"POST", "/checkpoint/ns/p/c?timeout=soon", 404, "cannot parse value of timeout parameter\n"},
		{"POST", "/checkpoint/ns/p/absent", 404, "container absent does not exist\n"},
		{"POST", "/checkpoint/ns/p/d", 500, "checkpointing of ns/p/d failed (no CRIU)\n"},
		{"GET", "/stats/summary", 200, `{"n":1}`},
		{"PUT", "/debug/flags/v", 400, "strconv.ParseUint: parsing \"\": invalid syntax\n"},
		{"GET", "/debug/flags/v", 406, "unsupported http method\n"},
		{"GET", "/nothing", 404, "404 page not found\n"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
		if w.Code != c.code || w.Body.String() != c.body {
			t.Errorf("%s %s: %d %q", c.method, c.path, w.Code, w.Body.String())
		}
	}
}

// bareHost is a kubelet's without pages about the program.
type bareHost struct{ fakeHost }

func (bareHost) Pages() Pages { return Pages{} }

// TestPages: those about the program are there if they are to be, and not where nothing is
// to be found out, nor for everybody.
func TestPages(t *testing.T) {
	full := New(fakeHost{}, nil)
	for _, c := range []struct {
		what string
		h    http.Handler
		path string
		code int
		body string
	}{
		{"served", full, "/flagz", 200, "\nmax-pods: 7\n"},
		{"served", full, "/statusz", 200, "\nPaths: /configz /flagz /healthz /metrics\n"},
		{"features off", New(bareHost{}, nil), "/flagz", 404, ""},
		{"features off", New(bareHost{}, nil), "/statusz", 404, ""},
		{"without debugging", Restrict(full, Limits{NoDebugging: true}), "/flagz", 404, ""},
		{"without debugging", Restrict(full, Limits{NoDebugging: true}), "/statusz", 404, ""},
		{"without debugging", Restrict(full, Limits{NoDebugging: true}), "/configz", 404, ""},
		{"without debugging", Restrict(full, Limits{NoDebugging: true}), "/checkpoint/ns/p/c", 404, ""},
		{"without debugging", Restrict(full, Limits{NoDebugging: true}), "/containerLogs/ns/p/c", 405, ""},
		{"served", full, "/debug/pprof/", 200, "goroutine"},
		{"served", full, "/debug/pprof/cmdline", 200, "server.test"},
		{"served", full, "/debug/pprof/goroutine?debug=1", 200, "goroutine profile"},
		{"not known", New(fakeHost{}, &Auth{Delegator: &delegation.Delegator{}}), "/debug/pprof/heap", 401, ""},
		{"read only", ReadOnly(fakeHost{}), "/debug/pprof/", 404, ""},
		{"read only", ReadOnly(fakeHost{}), "/flagz", 404, ""},
		{"read only", ReadOnly(fakeHost{}), "/statusz", 404, ""},
		{"not known", New(fakeHost{}, &Auth{Delegator: &delegation.Delegator{}}), "/statusz", 401, ""},
	} {
		w := httptest.NewRecorder()
		c.h.ServeHTTP(w, httptest.NewRequest("GET", c.path, nil))
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.body) {
			t.Errorf("%s: %s: %d %s", c.what, c.path, w.Code, w.Body)
		}
	}
}

func TestNobodyUnknownComesIn(t *testing.T) {
	h := New(fakeHost{}, &Auth{Delegator: &delegation.Delegator{}})
	for path, code := range map[string]int{"/healthz": 401, "/healthz/ping": 401, "/healthz/syncloop": 401, "/pods": 401, "/metrics": 401, "/run/ns/p/c": 401, "/": 401} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != code {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// shows is a connection of a client with a certificate, and who signs it.
func shows(t *testing.T, user string, groups []string) (*tls.ConnectionState, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: user, Organization: groups}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(c)
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}}, pool
}

// Images are for nodes alone, whatever else the settings allow everybody.
func TestSharedImagesAreForNodes(t *testing.T) {
	for _, c := range []struct {
		user   string
		groups []string
		code   int
	}{
		{"system:node:n", []string{"system:nodes"}, 200},
		{"system:node:n", []string{"other"}, 403},
		{"admin", []string{"system:nodes"}, 403},
		{"admin", []string{"system:masters"}, 403},
	} {
		connection, pool := shows(t, c.user, c.groups)
		h := New(fakeHost{}, &Auth{Delegator: &delegation.Delegator{ClientCA: func() *x509.CertPool { return pool }}, AlwaysAllow: true})
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "/v2/a/manifests/1?ns=r.io", nil)
		r.TLS = connection
		h.ServeHTTP(w, r)
		if w.Code != c.code {
			t.Errorf("%s of %v: %d %s", c.user, c.groups, w.Code, w.Body)
		}
	}
	w := httptest.NewRecorder()
	New(fakeHost{}, &Auth{Delegator: &delegation.Delegator{}, Anonymous: true, AlwaysAllow: true}).ServeHTTP(w, httptest.NewRequest("GET", "/v2/", nil))
	if w.Code != 403 {
		t.Errorf("nobody: %d", w.Code)
	}
}

func TestAttributes(t *testing.T) {
	for path, want := range map[string][]string{
		"/pods": {"pods", "proxy"}, "/podsx": {"proxy"}, "/stats/summary": {"stats"}, "/metrics/resource": {"metrics"}, "/logs/x": {"log"}, "/checkpoint/a/b/c": {"checkpoint"},
		"/exec/a/b/c": {"proxy"}, "/containerLogs/a/b/c": {"proxy"}, "/configz": {"configz", "proxy"},
		"/flagz": {"configz"}, "/statusz": {"statusz"}, "/statuszx": {"proxy"},
	} {
		var got []string
		for _, a := range attributes("POST", path) {
			got = append(got, a.sub)
			if a.verb != "create" {
				t.Errorf("%s: %s", path, a.verb)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v", path, got)
		}
	}
}

func TestLogOptions(t *testing.T) {
	q, _ := url.ParseQuery("follow=true&tailLines=3&limitBytes=9&sinceTime=2026-01-02T03:04:05Z&timestamps=true&previous=true")
	o, previous, _, err := logOptions(q)
	if err != nil || !o.Follow || o.Tail != 3 || o.Limit != 9 || !o.Timestamps || !previous || !o.Since.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
		t.Errorf("%+v %v %v", o, previous, err)
	}
}

func TestHealthz(t *testing.T) {
	h := Healthz()
	for path, code := range map[string]int{"/healthz": 200, "/healthz/ping": 200, "/healthz/syncloop": 404, "/pods": 404, "/metrics": 404, "/": 404} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != code || code == 200 && w.Body.String() != "ok" {
			t.Errorf("%s: %d %q", path, w.Code, w.Body)
		}
	}
}

// leveled notes how much is to be logged.
type leveled struct {
	fakeHost
	level *int
}

func (l leveled) LogLevel(verbosity int) { *l.level = verbosity }

// TestLogLevel: the level of the log is set by who may, where it can be set at all.
func TestLogLevel(t *testing.T) {
	var level int
	h := New(leveled{level: &level}, nil)
	for _, c := range []struct {
		h      http.Handler
		body   string
		code   int
		answer string
		level  int
	}{
		{h: h, body: "6", code: 200, answer: "successfully set klog.logging.verbosity to 6\n", level: 6},
		{h: h, body: "-1", code: 400, answer: "strconv.ParseUint: parsing \"-1\": invalid syntax\n", level: 6},
		{h: Restrict(h, Limits{NoFlags: true}), body: "2", code: 405, answer: "flags endpoint is disabled.\n", level: 6},
		{h: Restrict(h, Limits{NoDebugging: true}), body: "2", code: 404, answer: "404 page not found\n", level: 6},
		{h: ReadOnly(leveled{level: &level}), body: "2", code: 404, answer: "404 page not found\n", level: 6},
		{h: New(leveled{level: &level}, &Auth{Delegator: &delegation.Delegator{}}), body: "2", code: 401, answer: "Unauthorized\n", level: 6},
	} {
		w := httptest.NewRecorder()
		c.h.ServeHTTP(w, httptest.NewRequest("PUT", "/debug/flags/v", strings.NewReader(c.body)))
		if w.Code != c.code || w.Body.String() != c.answer || level != c.level {
			t.Errorf("%s: %d %q, level %d", c.body, w.Code, w.Body, level)
		}
	}
}
