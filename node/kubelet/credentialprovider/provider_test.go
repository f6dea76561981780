package credentialprovider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

// The test's own program is the plugin, when it is run with PLUGIN set.
func TestMain(m *testing.M) {
	mode := os.Getenv("PLUGIN")
	if mode == "" {
		os.Exit(m.Run())
	}
	os.Exit(answer(mode, os.Getenv("PLUGIN_LOG")))
}

// answer is what a plugin does: it notes the request and writes an answer.
func answer(mode, log string) int {
	in, _ := io.ReadAll(os.Stdin)
	f, _ := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	fmt.Fprintf(f, "%s %s\n", strings.Join(os.Args[1:], ","), in)
	f.Close()
	var r api.CredentialProviderRequest
	_ = json.Unmarshal(in, &r)
	switch mode {
	case "fails":
		fmt.Fprint(os.Stderr, "no such user")
		return 3
	case "floods":
		_, _ = io.Copy(os.Stdout, zeros{})
		return 0
	case "hangs":
		select {}
	case "garbage":
		fmt.Print(`{"apiVersion":"` + r.APIVersion + `","kind":"CredentialProviderResponse","secret":"hunter2"}`)
		return 0
	case "other version":
		r.APIVersion = "credentialprovider.kubelet.k8s.io/v1beta1"
	}
	password := "p"
	if mode == "echo" {
		password = r.ServiceAccountToken
	}
	out := &api.CredentialProviderResponse{
		TypeMeta:     metav1.TypeMeta{Kind: "CredentialProviderResponse", APIVersion: r.APIVersion},
		CacheKeyType: api.PluginCacheKeyType(os.Getenv("CACHE")), Auth: map[string]api.AuthConfig{"*.example.com": {Username: "u", Password: password}},
	}
	if d, err := time.ParseDuration(os.Getenv("LASTS")); err == nil {
		out.CacheDuration = &metav1.Duration{Duration: d}
	}
	b, _ := json.Marshal(out)
	fmt.Print(string(b))
	return 0
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// A bench is a plugin, and what it was asked.
type bench struct {
	*Plugins
	t        *testing.T
	log      string
	mu       sync.Mutex
	tokens   int // requested
	noToken  error
	account  *corev1.ServiceAccount
	failures int
}

// plugin makes one that answers in a mode, with further lines of its configuration.
func newBench(t *testing.T, mode string, env map[string]string, more string) *bench {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "plugin")); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, log: filepath.Join(dir, "log"), account: &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{UID: "sa-uid", Annotations: map[string]string{"role": "r", "zone": "z", "other": "o"}}}}
	config := good + "  args: [one, two]\n  env:\n  - {name: PLUGIN, value: " + mode + "}\n  - {name: PLUGIN_LOG, value: " + b.log + "}\n"
	for k, v := range env {
		config += fmt.Sprintf("  - {name: %s, value: %s}\n", k, v)
	}
	b.Plugins, err = New(Config{
		File: write(t, filepath.Join(dir, "config.yaml"), config+more), BinDir: dir,
		Account: func(context.Context, string, string) (*corev1.ServiceAccount, error) { return b.account, nil },
		Token: func(_ context.Context, namespace, name string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.tokens++; b.noToken != nil {
				return nil, b.noToken
			}
			if r.UID != "sa-uid" || len(r.Spec.Audiences) != 1 || r.Spec.BoundObjectRef.Kind != "Pod" {
				t.Errorf("token request %+v", r)
			}
			r = r.DeepCopy()
			r.Status.Token = fmt.Sprintf("token-%s-%s-%s", namespace, name, r.Spec.BoundObjectRef.UID)
			r.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(time.Hour))
			return r, nil
		},
		Ran: func(_ string, _ time.Duration, failed bool) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if failed {
				b.failures++
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// requests are what the program was asked so far.
func (b *bench) requests() []string {
	text, err := os.ReadFile(b.log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Fatal(err)
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}

func (b *bench) ask(image, account, uid string) []Credentials {
	return b.Lookup(context.Background(), Request{Image: image, Namespace: "ns", Pod: "p" + uid, PodUID: types.UID(uid), Account: account})
}

// TestAnswer: a program gets the request, its arguments and variables, and what it
// answers is for all pods of the node.
func TestAnswer(t *testing.T) {
	b := newBench(t, "answers", map[string]string{"CACHE": "Image"}, "")
	want := []Credentials{{Pattern: "*.example.com", Username: "u", Password: "p"}}
	if got := b.ask("a.example.com/x", "sa", "1"); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	if got := b.requests(); !slices.Equal(got, []string{`one,two {"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"a.example.com/x"}`}) {
		t.Errorf("%q", got)
	}
	if got := b.ask("example.com/x", "sa", "1"); got != nil || len(b.requests()) != 1 {
		t.Errorf("asked for an image that it is not for: %+v", got)
	}
}

// TestCached: an answer serves as widely and as long as it says.
func TestCached(t *testing.T) {
	for _, c := range []struct {
		scope, lasts string
		runs         int // for two images of one registry, one of another, the first again
	}{
		{"Image", "1h", 3}, {"Registry", "1h", 2}, {"Global", "1h", 1}, {"Global", "0s", 4}, {"Image", "", 3},
	} {
		b := newBench(t, "answers", map[string]string{"CACHE": c.scope, "LASTS": `"` + c.lasts + `"`}, "")
		for _, image := range []string{"a.example.com/x", "a.example.com/y", "b.example.com/x", "a.example.com/x"} {
			if got := b.ask(image, "", "1"); len(got) != 1 {
				t.Errorf("%s: %+v", image, got)
			}
		}
		if got := len(b.requests()); got != c.runs {
			t.Errorf("%s for %q: %d runs, want %d", c.scope, c.lasts, got, c.runs)
		}
	}
}

func attributes(cacheType string, required bool) string {
	return fmt.Sprintf("  tokenAttributes: {serviceAccountTokenAudience: reg, requireServiceAccount: %v, cacheType: %s, requiredServiceAccountAnnotationKeys: [%s], optionalServiceAccountAnnotationKeys: [zone, none]}\n",
		required, cacheType, map[bool]string{true: "role"}[required])
}

// TestToken: a program that wants one gets a token of the pod's service account, and its
// answers are for this account alone.
func TestToken(t *testing.T) {
	b := newBench(t, "answers", map[string]string{"CACHE": "Global", "LASTS": "1h"}, attributes("ServiceAccount", true))
	got := b.ask("a.example.com/x", "sa", "1")
	if len(got) != 1 || got[0].Account == nil || *got[0].Account != (Account{"sa-uid", "ns", "sa"}) {
		t.Fatalf("%+v", got)
	}
	if r := b.requests()[0]; !strings.Contains(r, `"serviceAccountToken":"token-ns-sa-1","serviceAccountAnnotations":{"role":"r","zone":"z"}`) {
		t.Error(r)
	}
	b.ask("a.example.com/y", "sa", "2") // another pod of the account
	if got := len(b.requests()); got != 1 {
		t.Errorf("%d runs for one service account", got)
	}
	b.ask("a.example.com/x", "other", "3")
	if got := len(b.requests()); got != 2 {
		t.Errorf("%d runs for two service accounts", got)
	}
	b.account.Annotations["role"] = "changed"
	b.ask("a.example.com/x", "sa", "1")
	if got := len(b.requests()); got != 3 {
		t.Errorf("%d runs after an annotation changed", got)
	}
	delete(b.account.Annotations, "role")
	if got := b.ask("a.example.com/x", "sa", "1"); got != nil {
		t.Errorf("without a required annotation: %+v", got)
	}
	if got := b.ask("a.example.com/x", "", "1"); got != nil || len(b.requests()) != 3 {
		t.Errorf("without a service account: %+v", got)
	}
}

// TestTokenCache: with the cache type Token each pod's token has its own answer; the token
// itself is kept, and serves while no other is to be had.
func TestTokenCache(t *testing.T) {
	b := newBench(t, "echo", map[string]string{"CACHE": "Global", "LASTS": "1h"}, attributes("Token", false))
	for _, uid := range []string{"1", "2", "1"} {
		if got := b.ask("a.example.com/x", "sa", uid); len(got) != 1 || got[0].Password != "token-ns-sa-"+uid {
			t.Errorf("%+v", got)
		}
	}
	if len(b.requests()) != 2 || b.tokens != 2 {
		t.Errorf("%d runs, %d tokens", len(b.requests()), b.tokens)
	}
	if got := b.ask("a.example.com/x", "", "1"); len(got) != 1 || got[0].Account != nil || len(b.requests()) != 3 {
		t.Errorf("without a service account: %+v", got)
	}
	b.noToken = errors.New("no")
	if got := b.ask("a.example.com/x", "sa", "3"); got != nil {
		t.Errorf("without a token: %+v", got)
	}
	// A token must not serve longer than itself.
	b = newBench(t, "echo", map[string]string{"CACHE": "Global"}, attributes("ServiceAccount", true))
	if got := b.ask("a.example.com/x", "sa", "1"); got != nil {
		t.Errorf("the token itself, for a service account: %+v", got)
	}
}

// TestBadPlugins: a program that fails, floods or answers nonsense is an error that
// does not quote its answer.
func TestBadPlugins(t *testing.T) {
	for mode, want := range map[string]string{
		"fails":         "error execing credential provider plugin plugin for image a.example.com/x: exit status 3: no such user",
		"floods":        "its output is larger than",
		"garbage":       "error decoding credential provider plugin response from stdout",
		"other version": "apiVersion from credential plugin response did not match expected apiVersion:credentialprovider.kubelet.k8s.io/v1, actual apiVersion:credentialprovider.kubelet.k8s.io/v1beta1",
		"answers":       "credential provider plugin did not return a valid cacheKeyType: ",
	} {
		b := newBench(t, mode, nil, "")
		_, err := b.all[0].lookup(context.Background(), Request{Image: "a.example.com/x"})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", mode, err)
		}
		if want := map[string]int{"fails": 1, "floods": 1}[mode]; b.failures != want {
			t.Errorf("%s: %d failures counted", mode, b.failures)
		}
	}
	b := newBench(t, "hangs", nil, "")
	if err := syscall.Mkfifo(b.log, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = os.ReadFile(b.log) // returns when the program has written its request
		cancel()
	}()
	if _, err := b.all[0].lookup(ctx, Request{Image: "a.example.com/x"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestOneRun: pods that want the same at once share a run.
func TestOneRun(t *testing.T) {
	b := newBench(t, "answers", map[string]string{"CACHE": "Image", "LASTS": "1h"}, "")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if got := b.ask("a.example.com/x", "", "1"); len(got) != 1 {
				t.Errorf("%+v", got)
			}
		})
	}
	wg.Wait()
	if got := len(b.requests()); got != 1 {
		t.Errorf("%d runs", got)
	}
}

func TestMissing(t *testing.T) {
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "c.yaml"), good)
	for _, c := range []struct{ file, dir, want string }{
		{file, filepath.Join(dir, "none"), "plugin binary directory " + dir + "/none did not exist"},
		{"", dir, "credential provider config path is empty"},
		{file, dir, "plugin binary executable " + dir + "/plugin did not exist"},
		{write(t, filepath.Join(dir, "bad.yaml"), strings.Replace(good, "matchImages", "args", 1)), dir, "failed to validate credential provider config: providers.matchImages: Required value"},
	} {
		if _, err := New(Config{File: c.file, BinDir: c.dir}); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// TestCache: what is full forgets what has expired, or else what expires first.
func TestCache(t *testing.T) {
	now := time.Unix(0, 0)
	c := cache{most: 2}
	c.put("a", 1, now.Add(2), now)
	c.put("b", 2, now.Add(1), now)
	c.put("c", 3, now.Add(3), now)
	if _, ok := c.get("b", now); ok || len(c.all) != 2 {
		t.Errorf("%v", c.all)
	}
	c.put("d", 4, now.Add(9), now.Add(5))
	if _, ok := c.get("d", now.Add(6)); !ok || len(c.all) != 1 {
		t.Errorf("%v", c.all)
	}
	if _, ok := c.get("d", now.Add(10)); ok {
		t.Error("expired")
	}
}

// What a program answers is an error or credentials, whatever it is.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Image","cacheDuration":"5m","auth":{"*.example.com":{"username":"u","password":"p"}}}`))
	f.Add([]byte(`{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheDuration":-1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeAnswer(b, v1)
		if err == nil && (r.Kind != "CredentialProviderResponse" || r.APIVersion != v1 || r.CacheKeyType == "") {
			t.Fatalf("taken: %+v", r)
		}
	})
}
