package encryption

import (
	"bytes"
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/apiserver/storage/storagetest"
)

// TestUpstreamReads holds the keys to what upstream's API server wrote with the
// same file.
func TestUpstreamReads(t *testing.T) {
	keys, err := Load("testdata/upstream.yaml")
	if err != nil {
		t.Fatal(err)
	}
	recorded, err := os.ReadFile("testdata/upstream.txt")
	if err != nil {
		t.Fatal(err)
	}
	of := registry.StoredAs("/registry/")
	for line := range strings.Lines(string(recorded)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		sealed, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			t.Fatal(err)
		}
		gr, ok := of(key)
		if !ok {
			t.Fatalf("%s belongs to nothing", key)
		}
		c := keys.chain(gr)
		plain, stale, err := c.open(sealed, []byte(key))
		if err != nil || stale || !bytes.HasPrefix(plain, []byte("k8s\x00")) && !bytes.HasPrefix(plain, []byte("{")) {
			t.Errorf("%s: %v, stale %v: %.20q", key, err, stale, plain)
		}
		again, err := c.seal(plain, []byte(key))
		if n := bytes.LastIndexByte(sealed[:28], ':') + 1; err != nil || !bytes.Equal(again[:n], sealed[:n]) || len(again) != len(sealed) {
			t.Errorf("%s: sealed anew it is %.30q (%v)", key, again, err)
		}
		// What is authenticated cannot be changed, nor moved when upstream binds it.
		if strings.HasPrefix(string(sealed), "k8s:enc:aesgcm:") {
			if _, _, err := c.open(sealed, []byte(key+"x")); err == nil {
				t.Errorf("%s opens under another key", key)
			}
		}
		if !strings.HasPrefix(string(sealed), "k8s:enc:aescbc:") {
			sealed[len(sealed)-1] ^= 1
			if _, _, err := c.open(sealed, []byte(key)); err == nil {
				t.Errorf("%s opens although it was changed", key)
			}
		}
	}
}

const (
	key1 = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	key2 = "YWJjZGVmMDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODk="
)

func config(entries string) []byte {
	return []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n" + entries)
}

func keysOf(t *testing.T, entries string) *Keys {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	(&Keys{file: file}).set(t, entries)
	k, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *Keys) set(t *testing.T, entries string) {
	t.Helper()
	if err := os.WriteFile(k.file+".new", config(entries), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(k.file+".new", k.file); err != nil {
		t.Fatal(err)
	}
}

func TestWhichEntry(t *testing.T) {
	k := keysOf(t, `
- {resources: [secrets], providers: [{aesgcm: {keys: [{name: a, secret: `+key1+`}]}}]}
- {resources: ["*.apps"], providers: [{aesgcm: {keys: [{name: b, secret: `+key1+`}]}}]}
- {resources: ["*."], providers: [{aesgcm: {keys: [{name: c, secret: `+key1+`}]}}]}
- {resources: ["*.*"], providers: [{identity: {}}]}`)
	for key, want := range map[string]string{
		"/registry/secrets/ns/x":                  "k8s:enc:aesgcm:v1:a:",
		"/registry/configmaps/ns/x":               "k8s:enc:aesgcm:v1:c:",
		"/registry/events/ns/x":                   "k8s:enc:aesgcm:v1:c:",
		"/registry/services/specs/ns/x":           "k8s:enc:aesgcm:v1:c:",
		"/registry/deployments/ns/x":              "k8s:enc:aesgcm:v1:b:",
		"/registry/roles/ns/x":                    "v",
		"/registry/example.com/widgets/ns/x":      "v",
		"/registry/masterleases/127.0.0.1":        "",
		"/registry/ranges/serviceips":             "",
		"/elsewhere/secrets/ns/x":                 "",
		"/registry/secrets":                       "k8s:enc:aesgcm:v1:a:",
		"/registry/services/endpoints/ns/another": "k8s:enc:aesgcm:v1:c:",
	} {
		gr, ok := registry.StoredAs("/registry/")(key)
		if want == "" {
			if ok {
				t.Errorf("%s belongs to %s", key, gr)
			}
			continue
		}
		sealed, err := k.chain(gr).seal([]byte("value"), []byte(key))
		if err != nil || !ok || !strings.HasPrefix(string(sealed), want) {
			t.Errorf("%s: %q, %v", key, sealed, err)
		}
	}
}

func TestMistakes(t *testing.T) {
	good := "[{identity: {}}]"
	for entries, want := range map[string]string{
		"": "resources: Required value: at least one resources is required",
		"- {resources: [], providers: " + good + "}":                                                                                                              "resources[0].resources: Required value: at least one resources[0].resources is required",
		"- {resources: [secrets]}":                                                                                                                                "resources[0].providers: Required value: at least one resources[0].providers is required",
		"- {resources: [Secrets], providers: " + good + "}":                                                                                                       "resource name should not contain capital letters",
		"- {resources: ['*'], providers: " + good + "}":                                                                                                           "use '*.' to encrypt all the resources from core API group",
		"- {resources: [pods.*], providers: " + good + "}":                                                                                                        "encrypting the same resource across groups is not supported",
		"- {resources: [events.events.k8s.io], providers: " + good + "}":                                                                                          "Use 'events' instead",
		"- {resources: [secrets, '*.'], providers: " + good + "}":                                                                                                 "using overlapping resources",
		"- {resources: [secrets, secrets], providers: " + good + "}":                                                                                              "the same resource cannot be specified multiple times",
		"- {resources: ['*.*'], providers: " + good + "}\n- {resources: [secrets], providers: " + good + "}":                                                      `resource "secrets" is masked by earlier rule "*.*"`,
		"- {resources: ['*.'], providers: " + good + "}\n- {resources: [secrets], providers: " + good + "}":                                                       `resource "secrets" is masked by earlier rule "*."`,
		"- {resources: [secrets], providers: [{}]}":                                                                                                               "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity",
		"- {resources: [secrets], providers: [{identity: {}, aescbc: {keys: []}}]}":                                                                               "more than one provider specified in a single element",
		"- {resources: [secrets], providers: [{aescbc: {keys: []}}]}":                                                                                             "resources[0].providers[0].aescbc.keys: Required value: at least one keys is required",
		"- {resources: [secrets], providers: [{aescbc: {keys: [{name: a, secret: '?'}]}}]}":                                                                       `resources[0].providers[0].aescbc.keys[0].secret: Invalid value: "REDACTED": secrets must be base64 encoded`,
		"- {resources: [secrets], providers: [{secretbox: {keys: [{name: a, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}}]}":                                               "secret is not of the expected length, got 16, expected one of [32]",
		"- {resources: [secrets], providers: [{secretbox: {keys: [{secret: " + key1 + "}]}}]}":                                                                    "name is a mandatory field for a key",
		"- {resources: [secrets], providers: [{kms: {name: k, endpoint: 'unix:///k'}}]}":                                                                          "KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead.",
		"- {resources: [secrets], providers: [{kms: {apiVersion: v2, name: 'k:', endpoint: 'unix:///k'}}]}":                                                       `resources[0].providers[0].kms.name: Invalid value: "k:": invalid KMS provider name k:, must not contain ':'`,
		"- {resources: [secrets], providers: [{kms: {apiVersion: v2, name: k, endpoint: 'http://k'}}]}":                                                           `unsupported scheme "http" for KMS provider, only unix is supported`,
		"- {resources: [secrets], providers: [{kms: {apiVersion: v2, name: k, endpoint: 'unix:///k', timeout: 0s}}]}":                                             "timeout should be a positive value",
		"- {resources: [secrets], providers: [{kms: {apiVersion: v2, name: k, endpoint: 'unix:///k', cachesize: 1}}]}":                                            "cachesize is not supported in v2",
		"- {resources: [secrets], providers: [{kms: {apiVersion: v2, name: k, endpoint: 'unix:///k'}}, {kms: {apiVersion: v2, name: k, endpoint: 'unix:///l'}}]}": "duplicate KMS provider name k, names must be unique",
		"- {resources: [secrets], providers: " + good + ", provider: x}":                                                                                          `unknown field "provider"`,
	} {
		_, err := (&parser{counts: newCounts()}).parse(config(entries))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", entries, err, want)
		}
	}
	if _, err := (&parser{}).parse([]byte("kind: Pod\napiVersion: v1")); err == nil {
		t.Error("a Pod is taken for a configuration")
	}
}

// TestStore: sealed, the memory store is still a store.
func TestStore(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Store {
		k := keysOf(t, "- {resources: ['*.*'], providers: [{aesgcm: {keys: [{name: a, secret: "+key1+"}]}}]}")
		s := New(storage.NewMemory(), k, func(string) (schema.GroupResource, bool) {
			return schema.GroupResource{Resource: "secrets"}, true
		})
		t.Cleanup(func() { s.Close() })
		return s
	})
}

// TestRotation: a key that is first seals what is written from then on, and
// what another one sealed is stale but readable; what none opens is an error.
func TestRotation(t *testing.T) {
	one, two := "{aesgcm: {keys: [{name: one, secret: "+key1+"}]}}", "{aescbc: {keys: [{name: two, secret: "+key2+"}]}}"
	k := keysOf(t, "- {resources: [secrets], providers: ["+one+", {identity: {}}]}")
	below := storage.NewMemory()
	defer below.Close()
	s := New(below, k, registry.StoredAs("/registry/"))
	ctx, key := t.Context(), "/registry/secrets/ns/a"
	check := func(wantStale bool) {
		t.Helper()
		kv, _, err := s.Get(ctx, key)
		if err != nil || string(kv.Value) != "value" {
			t.Fatalf("%v, %v", kv, err)
		}
		if stale, err := s.Stale(ctx, key); err != nil || stale != wantStale {
			t.Errorf("stale %v, %v", stale, err)
		}
	}
	rev, _, _, err := below.Put(ctx, key, []byte("value"), 0, 0) // before there was encryption
	if err != nil {
		t.Fatal(err)
	}
	check(true)
	if _, _, _, err = s.Put(ctx, key, []byte("value"), rev, 0); err != nil {
		t.Fatal(err)
	}
	check(false)
	k.set(t, "- {resources: [secrets], providers: ["+two+", "+one+"]}")
	if _, err := k.load(); err != nil {
		t.Fatal(err)
	}
	check(true)
	k.set(t, "- {resources: [secrets], providers: ["+two+"]}")
	if _, err := k.load(); err != nil {
		t.Fatal(err)
	}
	noKey := func(where string, kv *storage.KV) {
		t.Helper()
		if kv == nil || kv.Value != nil || kv.Err == nil || kv.Err.Error() != "no matching prefix found" {
			t.Errorf("%s without its key: %v", where, kv)
		}
	}
	kv, _, err := s.Get(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	noKey("got", kv)
	kvs, _, _, err := s.List(ctx, "/registry/", "", 0, 0)
	if err != nil || len(kvs) != 1 {
		t.Fatal(kvs, err)
	}
	noKey("listed", &kvs[0])
	synctest.Test(t, func(t *testing.T) {
		below := storage.NewMemory()
		defer below.Close()
		s := New(below, k, registry.StoredAs("/registry/"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		batches, err := s.Watch(ctx, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := below.Put(ctx, key, []byte("k8s:enc:aesgcm:v1:one:x"), 0, 0); err != nil {
			t.Fatal(err)
		}
		for b := range batches {
			if len(b.Events) > 0 {
				noKey("watched", &b.Events[0].KV)
				return
			}
		}
		t.Error("the watch ended")
	})
}

// TestFollow: a new file is taken over, a broken one is not.
func TestFollow(t *testing.T) {
	k := keysOf(t, "- {resources: [secrets], providers: [{identity: {}}]}")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx, true, func() {}) }()
	secrets := schema.GroupResource{Resource: "secrets"}
	k.set(t, "- {resources: [secrets], providers: [{aesgcm: {keys: [{name: a, secret: "+key1+"}]}}]}")
	for k.chain(secrets).links[0].prefix == "" {
		if ctx.Err() != nil {
			t.Fatal("the new file was not taken over")
		}
		runtime.Gosched()
	}
	cancel()
	if err := <-done; err != nil { // from here on nobody else loads
		t.Error(err)
	}
	now := k.chain(secrets)
	k.set(t, "- {resources: [secrets]}")
	if _, err := k.load(); err == nil || k.chain(secrets) != now {
		t.Errorf("a broken file: %v", err)
	}
}
