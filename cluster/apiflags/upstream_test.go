package apiflags

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/keyutil"

	"knarr/controlplane/apiserver"
	"knarr/internal/apitest"
)

// With -update the answers are upstream's: of the program KNARR_KUBE_APISERVER
// on the etcd KNARR_ETCD.
var update = flag.Bool("update", false, "record upstream's answers")

const recorded = "testdata/upstream.json"

// TestUpstream: the same files and requests get the same answers.
func TestUpstream(t *testing.T) {
	want := map[string]map[string]string{}
	if *update {
		for n, s := range scenarios {
			t.Run(s.name, func(t *testing.T) {
				e := newElsewhere(t)
				want[s.name] = s.play(t, e, s.upstream(t, e, n))
			})
		}
		text, err := json.MarshalIndent(want, "", "  ")
		if err == nil {
			err = os.WriteFile(recorded, append(text, '\n'), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			e := newElsewhere(t)
			got := s.play(t, e, s.here(t, e))
			for _, name := range slices.Sorted(maps.Keys(want[s.name])) {
				if got[name] != want[s.name][name] {
					t.Errorf("%s\n got %s\nwant %s", name, got[name], want[s.name][name])
				}
			}
			if len(got) != len(want[s.name]) {
				t.Errorf("%d answers, %d recorded", len(got), len(want[s.name]))
			}
		})
	}
}

// here starts our server with the scenario's flags.
func (s *scenario) here(t *testing.T, e *elsewhere) (url string) {
	t.Helper()
	flags, err := Parse(s.prepare(e))
	if err != nil {
		t.Fatal(err)
	}
	api, _ := apitest.New(t, func(c *apiserver.Config) {
		c.ServiceAccountKey = e.rsa
		if err := flags.Apply(c); err != nil {
			t.Fatal(err)
		}
	})
	srv := httptest.NewUnstartedServer(api.Handler())
	srv.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	srv.EnableHTTP2 = false
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv.URL
}

// prepare writes the scenario's files and fills its flags in.
func (s *scenario) prepare(e *elsewhere) (flags []string) {
	e.file("tokens.csv", "root,admin,1,system:masters\nbob,bob,2,\"team,staff\"\nallowed,allowed,3\ndenied,denied,4\nboth,both,5\nnobody,nobody,6\n")
	for name, text := range s.files {
		e.file(name, text)
	}
	for _, f := range append([]string{"token-auth-file=DIR/tokens.csv"}, s.flags...) {
		flags = append(flags, e.fill(f))
	}
	return flags
}

// upstream starts upstream's server with the scenario's flags.
func (s *scenario) upstream(t *testing.T, e *elsewhere, n int) (url string) {
	t.Helper()
	key, err := keyutil.MarshalPrivateKeyToPEM(e.rsa)
	if err != nil {
		t.Fatal(err)
	}
	e.file("sa.key", string(key))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	args := []string{
		"--etcd-servers=" + os.Getenv("KNARR_ETCD"), "--etcd-prefix=/authn" + strconv.Itoa(n) + "-" + strconv.Itoa(port), "--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port), "--cert-dir=" + e.path("certs"), "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-key-file=" + e.path("sa.key"), "--service-account-signing-key-file=" + e.path("sa.key"),
	}
	if !strings.Contains(strings.Join(s.flags, " "), "service-account-issuer") {
		args = append(args, "--service-account-issuer=https://kubernetes.default.svc.cluster.local")
	}
	if !strings.Contains(strings.Join(s.flags, " "), "authorization-") {
		args = append(args, "--authorization-mode=Node,RBAC")
	}
	for _, f := range s.prepare(e) {
		args = append(args, "--"+f)
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), os.Getenv("KNARR_KUBE_APISERVER"), args...)
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	url = "https://127.0.0.1:" + strconv.Itoa(port)
	e.ready(url)
	return url
}

func (e *elsewhere) ready(url string) {
	e.t.Helper()
	until := time.Now().Add(time.Minute)
	for time.Now().Before(until) {
		if code, _ := e.ask(url, ask{path: "/readyz", token: static("root")}); code == http.StatusOK {
			return
		}
	}
	e.t.Fatal("the server did not become ready")
}

// ask is one request.
type ask struct {
	name, path, body string
	token            func(*elsewhere) string
	review           func(*elsewhere) string // the token that a TokenReview is about
	headers          map[string]string
	waitForReload    bool
	shown            bool   // what the webhook was asked is part of the answer
	cert             string // common name of a certificate of the proxies' CA; "!" before: of no CA
}

func static(token string) func(*elsewhere) string { return func(*elsewhere) string { return token } }

func (e *elsewhere) ask(url string, a ask) (code int, body string) {
	e.t.Helper()
	config := &tls.Config{InsecureSkipVerify: true}
	if a.cert != "" {
		cn, self := strings.CutPrefix(a.cert, "!")
		der, key := e.cert(cn, !self)
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
		}
	}
	tr := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if a.review != nil {
		a.body = `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":` + string(jsonOf(a.review(e))) + `}}`
	}
	method := http.MethodGet
	if a.body != "" {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(ctx, method, url+a.path, strings.NewReader(a.body))
	e.must(err)
	r.Header.Set("Content-Type", "application/json")
	if a.token != nil {
		r.Header.Set("Authorization", "Bearer "+a.token(e))
	}
	for k, v := range a.headers {
		r.Header.Set(k, v)
	}
	resp, err := tr.RoundTrip(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	e.must(err)
	if warning := resp.Header.Get("Warning"); warning != "" {
		e.warned = warning
	}
	return resp.StatusCode, string(text)
}

const whoami = `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`

// play makes the requests and returns the answers without what no two runs
// share.
func (s *scenario) play(t *testing.T, e *elsewhere, url string) map[string]string {
	t.Helper()
	for _, body := range s.objects {
		var o struct{ Kind string }
		e.must(json.Unmarshal([]byte(body), &o))
		path := "/apis/rbac.authorization.k8s.io/v1/" + strings.ToLower(o.Kind) + "s"
		if o.Kind == "ServiceAccount" {
			path = "/api/v1/namespaces/default/serviceaccounts"
		}
		if code, answer := e.ask(url, ask{path: path, body: body, token: static("root")}); code != http.StatusCreated {
			t.Fatalf("%d %s", code, answer)
		}
	}
	if s.issuers { // they are asked in the background
		until := time.Now().Add(20 * time.Second)
		for code := 0; code != http.StatusCreated; {
			if code, _ = e.ask(url, ask{path: whoPath, body: whoami, token: func(e *elsewhere) string { return e.token(s.usual) }}); time.Now().After(until) {
				t.Fatal("the issuer was not asked")
			}
		}
	}
	got := map[string]string{}
	for _, a := range s.asks {
		if a.path == "" {
			a.path, a.body = whoPath, whoami
		}
		e.last.Store(nil)
		e.warned = ""
		code, body := e.ask(url, a)
		for until := time.Now().Add(10 * time.Second); a.waitForReload && code >= 400 && time.Now().Before(until); {
			code, body = e.ask(url, a)
		}
		if got[a.name] != "" {
			t.Fatalf("two requests are called %s", a.name)
		}
		got[a.name] = fmt.Sprint(code, " ", e.blank(plain(body)))
		if e.warned != "" {
			got[a.name] += " with " + e.warned
		}
		if lastReview := e.last.Load(); lastReview != nil && a.shown {
			got[a.name] += " after " + *lastReview
		}
	}
	return got
}

const whoPath = "/apis/authentication.k8s.io/v1/selfsubjectreviews"

// issuedTo is what a token says of who made it and for whom.
func issuedTo(token string) string {
	payload, err := b64.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		return err.Error()
	}
	var c struct {
		Issuer   string          `json:"iss"`
		Audience json.RawMessage `json:"aud"`
		Expiry   int64           `json:"exp"`
		NotYet   int64           `json:"nbf"`
	}
	if err := json.Unmarshal(payload, &c); err != nil {
		return err.Error()
	}
	return fmt.Sprint(c.Issuer, " ", string(c.Audience), " ", c.Expiry-c.NotYet)
}

// plain is a body without times, and of a review its status alone.
func plain(body string) string {
	var v map[string]any
	if json.Unmarshal([]byte(body), &v) != nil {
		return strings.TrimSpace(body)
	}
	if status, ok := v["status"].(map[string]any); ok {
		if token, ok := status["token"].(string); ok {
			return string(jsonOf(v["spec"])) + " " + issuedTo(token)
		}
		v = status
		for _, rules := range []string{"resourceRules", "nonResourceRules"} { // in no order
			if list, ok := v[rules].([]any); ok {
				slices.SortFunc(list, func(a, b any) int { return bytes.Compare(jsonOf(a), jsonOf(b)) })
			}
		}
	}
	for _, list := range []string{"items", "resources"} {
		if items, ok := v[list].([]any); ok {
			return fmt.Sprint(len(items), " ", list)
		}
	}
	return string(jsonOf(v))
}
