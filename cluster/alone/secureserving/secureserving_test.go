package secureserving

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/cert"

	"knarr/internal/delegation"
	"knarr/internal/healthz"
)

// defaults are the options without flags.
func defaults(t *testing.T, args ...string) *Options {
	t.Helper()
	o := &Options{}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.Flags(f, 10257)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestValidate(t *testing.T) {
	for args, want := range map[string]string{
		"":                               "",
		"--secure-port=0":                "",
		"--secure-port=70000":            "--secure-port: 70000 is not a port; 0 serves nothing",
		"--bind-address=here":            `--bind-address: "here" is not an IP address`,
		"--tls-cert-file=a":              "--tls-cert-file: give it and --tls-private-key-file, or neither",
		"--tls-min-version=VersionTLS10": "",
		"--tls-min-version=VersionTLS9":  `--tls-min-version: "VersionTLS9" is none of VersionTLS10, VersionTLS11, VersionTLS12 and VersionTLS13`,
		"--tls-cipher-suites=TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305,TLS_RSA_WITH_RC4_128_SHA": "",
		"--tls-cipher-suites=TLS_A":                `--tls-cipher-suites: Cipher suite TLS_A not supported or doesn't exist`,
		"--tls-sni-cert-key=a.crt":                 `--tls-sni-cert-key: "a.crt" is not of the form cert,key or cert,key:names`,
		"--tls-curve-preferences=0":                "--tls-curve-preferences: 0 is not the number of a key exchange",
		"--http2-max-streams-per-connection=-1":    "--http2-max-streams-per-connection: can not be a negative value",
		"--show-hidden-metrics-for-version=1.35":   "",
		"--show-hidden-metrics-for-version=1.34":   "--show-hidden-metrics-for-version must be omitted or have the value '1.35'. Only the previous minor version is allowed",
		"--disabled-metrics=a-b":                   `--disabled-metrics: "a-b" is not the name of a metric`,
		"--allow-metric-labels=m=x":                `--allow-metric-labels: "m" is not of the form metric,label`,
		"--allow-metric-labels-manifest=/nonesuch": "--allow-metric-labels-manifest: open /nonesuch: no such file or directory",
		"--authorization-always-allow-paths=/a*b":  `--authorization-always-allow-paths: "/a*b": a * can only be at the end of a path`,
	} {
		var list []string
		if args != "" {
			list = []string{args}
		}
		if err := defaults(t, list...).Validate(); err == nil && want != "" || err != nil && err.Error() != want {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// TestProtect: what everybody may see, what a known user may, and the words of refusals.
func TestProtect(t *testing.T) {
	kube := fake.NewClientset()
	kube.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		switch review.Spec.Token {
		case "prometheus", "jane":
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: review.Spec.Token}}
		case "admin":
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "admin", Groups: []string{"system:masters"}}}
		}
		return true, review, nil
	})
	kube.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		at := review.Spec.NonResourceAttributes
		if review.Spec.User == "admin" {
			return true, nil, errors.New("an administrator needs no review")
		}
		review.Status.Allowed = review.Spec.User == "prometheus" && at.Verb == "get" && at.Path == "/metrics"
		return true, review, nil
	})
	healthy := error(nil)
	further := prometheus.NewRegistry()
	further.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "further", Help: "more"}))
	c := Component{Name: "kube-controller-manager", Config: map[string]any{"a": 1}, Checks: func(string) []healthz.Check {
		return []healthz.Check{healthz.Of("leaderElection", func() error { return healthy })}
	}, Flags: func() map[string]string { return map[string]string{"a": "b"} }, Metrics: map[string]prometheus.Gatherer{"resources": further}}
	h := defaults(t).protect(&delegation.Delegator{Authentication: kube, Authorization: kube}, c.handler(defaults(t)))
	ask := func(path, token string) (int, string) {
		r := httptest.NewRequest("GET", path, nil)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Header().Get("Cache-Control"); got != "no-cache, private" {
			t.Errorf("%s: Cache-Control: %q", path, got)
		}
		return w.Code, w.Body.String()
	}
	for _, test := range []struct {
		path, token string
		code        int
		body        string
	}{
		{"/healthz", "", 200, "ok"},
		{"/livez", "stranger", 200, "ok"},
		{"/readyz", "", 200, "ok"},
		{"/healthz/x", "", 403, `"message":"forbidden: User \"system:anonymous\" cannot get path \"/healthz/x\""`},
		{"/metrics", "", 403, `"message":"forbidden: User \"system:anonymous\" cannot get path \"/metrics\""`},
		{"/metrics", "stranger", 401, `"reason":"Unauthorized"`},
		{"/metrics", "jane", 403, `"message":"forbidden: User \"jane\" cannot get path \"/metrics\"","reason":"Forbidden"`},
		{"/metrics", "prometheus", 200, "# HELP "},
		{"/metrics/resources", "prometheus", 403, `cannot get path \"/metrics/resources\"`},
		{"/metrics/resources", "admin", 200, "further 0"},
		{"/configz", "prometheus", 403, `cannot get path \"/configz\"`},
		{"/configz", "admin", 200, `{"a":1}`},
		{"/debug/pprof/cmdline", "jane", 403, "Forbidden"},
		{"/debug/pprof/cmdline", "admin", 200, "secureserving"},
		{"/nothing", "admin", 404, "404"},
		{"/healthz?verbose", "", 200, "[+]leaderElection ok\nhealthz check passed\n"},
		{"/readyz?verbose&exclude=leaderElection&exclude=x", "", 200, "[+]leaderElection excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"x\"\nreadyz check passed\n"},
		{"/livez/leaderElection", "admin", 200, "ok"},
		{"/livez/other", "admin", 404, "404"},
		{"/metrics/slis", "admin", 200, `kubernetes_healthcheck{name="leaderElection",type="healthz"} 1`},
		{"/metrics/slis", "admin", 200, "\nprocess_start_time_seconds 1."},
		{"/metrics", "admin", 200, "kubernetes_build_info{"},
		{"/flagz", "admin", 200, "\nkube-controller-manager flagz\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\na: b\n"},
		{"/flagz", "jane", 403, "Forbidden"},
		{"/statusz", "admin", 200, "Binary version: 1.36.3\nEmulation version: 1.36\nPaths: /configz /flagz /healthz /livez /metrics /readyz\n"},
	} {
		if code, body := ask(test.path, test.token); code != test.code || !strings.Contains(body, test.body) {
			t.Errorf("%s by %q: %d %s", test.path, test.token, code, body)
		}
	}
	healthy = errors.New("broken")
	if code, body := ask("/livez/leaderElection", "admin"); code != 500 || body != "internal server error: broken\n" {
		t.Errorf("broken: %d %q", code, body)
	}
	if code, body := ask("/healthz", ""); code != 500 || body != "[-]leaderElection failed: reason withheld\nhealthz check failed\n" {
		t.Errorf("broken: %d %q", code, body)
	}
}

// TestServe: over a real port, with a certificate that is read again when it changes;
// work begins when the port is open, and its end ends the port.
func TestServe(t *testing.T) {
	dir := t.TempDir()
	files := func(name string) {
		t.Helper()
		crt, key, err := cert.GenerateSelfSignedCertKey(name, nil, nil)
		if err == nil {
			err = errors.Join(os.WriteFile(filepath.Join(dir, "tls.crt"), crt, 0o600), os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	files("first.example")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	o := defaults(t, fmt.Sprint("--secure-port=", port), "--bind-address=127.0.0.1", "--tls-cert-file="+dir+"/tls.crt", "--tls-private-key-file="+dir+"/tls.key")
	began, ended := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- o.With(ctx, Component{Name: "kube-scheduler"}, func(ctx context.Context) error { close(began); <-ctx.Done(); return nil })
	}()
	select {
	case <-began:
	case err := <-ended:
		t.Fatal(err)
	}
	server := func() string {
		t.Helper()
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		resp, err := client.Get(fmt.Sprintf("https://127.0.0.1:%d/healthz", port))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, _ := io.ReadAll(resp.Body); string(body) != "ok" {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
		return resp.TLS.PeerCertificates[0].DNSNames[0]
	}
	if name := server(); name != "first.example" {
		t.Errorf("the certificate is %s's", name)
	}
	files("second.example")
	later := time.Now().Add(time.Minute)
	if err := os.Chtimes(filepath.Join(dir, "tls.crt"), later, later); err != nil {
		t.Fatal(err)
	}
	if name := server(); name != "second.example" {
		t.Errorf("after a change the certificate is %s's", name)
	}
	if err := o.With(t.Context(), Component{}, func(context.Context) error { t.Error("work began without its port"); return nil }); err == nil ||
		!strings.HasPrefix(err.Error(), "secure port: --secure-port: ") {
		t.Errorf("a port that is taken: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestClusterAuthorities: where no file names them, the cluster's authorities count.
func TestClusterAuthorities(t *testing.T) {
	crt, _, err := cert.GenerateSelfSignedCertKey("authority", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	a := &authorities{options: defaults(t)}
	a.take(map[string]string{"client-ca-file": string(crt), "requestheader-client-ca-file": string(crt),
		"requestheader-allowed-names": `["front"]`, "requestheader-username-headers": `["X-Remote-User"]`})
	if p := a.proxy.Load(); a.clients.Load() == nil || p == nil || p.Names[0] != "front" || p.User[0] != "X-Remote-User" {
		t.Errorf("%v, %+v", a.clients.Load(), p)
	}
	a.take(nil)
	if a.clients.Load() != nil || a.proxy.Load() != nil {
		t.Error("authorities that were taken back still count")
	}
}
