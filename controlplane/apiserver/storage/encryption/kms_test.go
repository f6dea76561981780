package encryption

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kmsapi "k8s.io/kms/apis/v2"
)

// A plugin keeps keys that are told by their names.
type plugin struct {
	kmsapi.UnimplementedKeyManagementServiceServer
	key          atomic.Value // its name
	seals, opens atomic.Int32
	ill          atomic.Bool
	notes        map[string][]byte
	version      string
}

func (p *plugin) cipher(name string) provider {
	key := sha256.Sum256([]byte(name))
	c, err := newGCM(key[:])
	if err != nil {
		panic(err)
	}
	return c
}

func (p *plugin) Status(context.Context, *kmsapi.StatusRequest) (*kmsapi.StatusResponse, error) {
	health := "ok"
	if p.ill.Load() {
		health = "ill"
	}
	return &kmsapi.StatusResponse{Version: p.version, Healthz: health, KeyId: p.key.Load().(string)}, nil
}

func (p *plugin) Encrypt(_ context.Context, r *kmsapi.EncryptRequest) (*kmsapi.EncryptResponse, error) {
	p.seals.Add(1)
	name := p.key.Load().(string)
	sealed, err := p.cipher(name).seal(r.Plaintext, nil)
	return &kmsapi.EncryptResponse{Ciphertext: sealed, KeyId: name, Annotations: p.notes}, err
}

func (p *plugin) Decrypt(_ context.Context, r *kmsapi.DecryptRequest) (*kmsapi.DecryptResponse, error) {
	p.opens.Add(1)
	if p.ill.Load() {
		return nil, errors.New("the plugin is ill")
	}
	plain, _, err := p.cipher(r.KeyId).open(r.Ciphertext, nil)
	return &kmsapi.DecryptResponse{Plaintext: plain}, err
}

// newPlugin serves at a socket.
func newPlugin(t *testing.T) (p *plugin, socket string) {
	p = &plugin{version: "v2", notes: map[string][]byte{"version.example.com": []byte("1"), "place.example.com": []byte("here")}}
	p.key.Store("first")
	socket = filepath.Join(t.TempDir(), "kms.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(srv, p)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	return p, socket
}

func pluginConfig(socket string) string {
	return "- {resources: [secrets], providers: [{kms: {apiVersion: v2, name: test, timeout: 2s, endpoint: 'unix://" + socket + "'}}, {identity: {}}]}"
}

// again makes the plugin's last answer too old.
func (k *Keys) again() error {
	for _, p := range *k.plugins.Load() {
		p.askMu.Lock()
		p.until = time.Time{}
		p.askMu.Unlock()
	}
	return k.Check()
}

// TestKMS: one seed seals many values, another key of the plugin's takes over
// without a restart, and what the old one sealed is still read.
func TestKMS(t *testing.T) {
	p, socket := newPlugin(t)
	k := keysOf(t, pluginConfig(socket))
	secrets := schema.GroupResource{Resource: "secrets"}
	about := []byte("/registry/secrets/default/a")
	var sealed [][]byte
	for range 3 {
		one, err := k.chain(secrets).seal([]byte("hidden"), about)
		if err != nil || !bytes.HasPrefix(one, []byte("k8s:enc:kms:v2:test:")) || bytes.Contains(one, []byte("hidden")) {
			t.Fatalf("sealed %q, %v", one, err)
		}
		sealed = append(sealed, one)
	}
	opened := func(k *Keys, stale bool) {
		t.Helper()
		for _, one := range sealed {
			plain, old, err := k.chain(secrets).open(one, about)
			if err != nil || string(plain) != "hidden" || old != stale {
				t.Errorf("opened %q, stale %v, %v", plain, old, err)
			}
		}
	}
	opened(k, false)
	if p.seals.Load() != 1 || p.opens.Load() != 0 {
		t.Errorf("the plugin sealed %d and opened %d keys for three values", p.seals.Load(), p.opens.Load())
	}
	if _, _, err := k.chain(secrets).open(sealed[0], []byte("/registry/secrets/default/b")); err == nil {
		t.Error("a value opens under another key")
	}
	p.key.Store("second")
	if err := k.again(); err != nil {
		t.Fatal(err)
	}
	opened(k, true)
	other := keysOf(t, pluginConfig(socket)) // after a restart
	opened(other, true)
	if p.opens.Load() != 1 {
		t.Errorf("the plugin opened %d keys for three values of one seed", p.opens.Load())
	}
	p.key.Store("")
	if err := k.again(); err == nil || !strings.Contains(err.Error(), `kmsv2 Provider test is not healthy, error: got invalid KMSv2 KeyID hash "": keyID is empty`) {
		t.Errorf("a key without a name: %v", err)
	}
	p.key.Store("second")
	p.ill.Store(true)
	if err := k.again(); err == nil || !strings.Contains(err.Error(), "kms-provider-0: kmsv2 Provider test is not healthy, error: got unexpected healthz status: ill") {
		t.Errorf("an ill plugin: %v", err)
	}
	fresh := keysOf(t, pluginConfig(socket))
	if _, _, err := fresh.chain(secrets).open(sealed[0], about); err == nil || !strings.Contains(err.Error(), "failed to decrypt DEK, error: rpc error: code = Unknown desc = the plugin is ill") {
		t.Errorf("opened by an ill plugin: %v", err)
	}
	w := *(*k.plugins.Load())[0].writer.Load()
	w.expires = time.Now().Add(-time.Second)
	(*k.plugins.Load())[0].writer.Store(&w)
	if _, err := k.chain(secrets).seal([]byte("x"), about); err == nil || !strings.HasPrefix(err.Error(), fmt.Sprintf("encryptedDEKSource with keyID hash %q expired at ", hashOf("second"))) {
		t.Errorf("sealed with what is too old: %v", err)
	}
}

// TestKMSAway: without its plugin a server starts; values it cannot open are
// told apart from others, and it does not wait for each of them.
func TestKMSAway(t *testing.T) {
	p, socket := newPlugin(t)
	k := keysOf(t, pluginConfig(socket))
	secrets := schema.GroupResource{Resource: "secrets"}
	one, err := k.chain(secrets).seal([]byte("hidden"), nil)
	if err != nil {
		t.Fatal(err)
	}
	away := keysOf(t, strings.Replace(pluginConfig(socket+".gone"), "2s", "100ms", 1))
	if _, err := away.chain(secrets).seal([]byte("x"), nil); err == nil || err.Error() != "got unexpected nil transformer" {
		t.Errorf("sealed by nobody: %v", err)
	}
	_, _, err = away.chain(secrets).open(one, nil)
	if err == nil || !strings.Contains(err.Error(), "failed to decrypt DEK, error: rpc error: code = DeadlineExceeded") {
		t.Errorf("opened by nobody: %v", err)
	}
	if _, _, again := away.chain(secrets).open(one, nil); again == nil || again.Error() != err.Error() {
		t.Errorf("asked again at once: %v", again)
	}
	if plain, _, err := away.chain(secrets).open([]byte("plain"), nil); err != nil || string(plain) != "plain" {
		t.Errorf("a value in the clear: %q, %v", plain, err)
	}
	// A file whose plugin is away is not taken over, and one that is gone from it
	// is not asked any more.
	k.set(t, pluginConfig(socket+".gone"))
	if _, err := k.load(); err == nil {
		t.Error("took over a plugin that is away")
	}
	if plain, stale, err := k.chain(secrets).open(one, nil); err != nil || stale || string(plain) != "hidden" {
		t.Errorf("after that: %q, %v, %v", plain, stale, err)
	}
	if p.opens.Load() != 0 {
		t.Error("the key was not remembered")
	}
}

func TestEnvelope(t *testing.T) {
	e := envelope{data: []byte("d"), keyID: "k", source: []byte("s"), annotations: map[string][]byte{"a.example.com": []byte("v")}, kind: seedSource}
	got, err := parseEnvelope(e.append(nil))
	if err != nil || fmt.Sprint(*got) != fmt.Sprint(e) {
		t.Errorf("%v, %v", got, err)
	}
	for want, change := range map[string]func(*envelope){
		"encrypted data is empty": func(e *envelope) { e.data = nil },
		"failed to validate encrypted DEK source: encrypted DEK source is empty":                                          func(e *envelope) { e.source = nil },
		"failed to validate encrypted DEK source: encrypted DEK source is 1025 bytes, which exceeds the max size of 1024": func(e *envelope) { e.source = make([]byte, 1025) },
		"failed to validate key id: keyID is empty":                                                                       func(e *envelope) { e.keyID = "" },
		"failed to validate key id: keyID is 1025 bytes, which exceeds the max size of 1024":                              func(e *envelope) { e.keyID = strings.Repeat("x", 1025) },
		"unknown encryptedDEKSourceType: 2":                                                                               func(e *envelope) { e.kind = 2 },
	} {
		bad := e
		change(&bad)
		if _, err := parseEnvelope(bad.append(nil)); err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}
