package encryption

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/keyutil"

	"knarr/controlplane/apiserver/storage"
)

// TestUpstreamKMS: upstream's API server and this one read what the other wrote
// with the same plugin.
func TestUpstreamKMS(t *testing.T) {
	programs := os.Getenv("KNARR_UPSTREAM")
	if programs == "" {
		t.Skip("compares with upstream's etcd and kube-apiserver: name their directory in KNARR_UPSTREAM")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, socket := newPlugin(t)
	k := keysOf(t, pluginConfig(socket))
	dir := t.TempDir()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(err)
	pem, err := keyutil.MarshalPrivateKeyToPEM(key)
	must(err)
	must(os.WriteFile(filepath.Join(dir, "sa.key"), pem, 0o600))
	must(os.WriteFile(filepath.Join(dir, "tokens"), []byte("root,root,1,system:masters\n"), 0o600))
	store, peers, secure := port(t), port(t), port(t)
	start := func(name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, filepath.Join(programs, name), args...)
		must(cmd.Start())
		t.Cleanup(func() {
			cancel()
			_ = cmd.Wait()
		})
	}
	start("etcd", "--data-dir="+filepath.Join(dir, "data"), "--listen-client-urls=http://"+store, "--advertise-client-urls=http://"+store,
		"--listen-peer-urls=http://"+peers, "--initial-advertise-peer-urls=http://"+peers, "--initial-cluster=default=http://"+peers)
	_, number, err := net.SplitHostPort(secure)
	must(err)
	start("kube-apiserver", "--etcd-servers=http://"+store, "--bind-address=127.0.0.1", "--secure-port="+number, "--cert-dir="+dir,
		"--service-cluster-ip-range=10.96.0.0/16", "--service-account-key-file="+filepath.Join(dir, "sa.key"), "--service-account-signing-key-file="+filepath.Join(dir, "sa.key"),
		"--service-account-issuer=https://issuer", "--token-auth-file="+filepath.Join(dir, "tokens"), "--encryption-provider-config="+k.file)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	ask := func(method, path, body string) (int, string) {
		r, err := http.NewRequestWithContext(ctx, method, "https://"+secure+path, strings.NewReader(body))
		must(err)
		r.Header.Set("Authorization", "Bearer root")
		r.Header.Set("Content-Type", "application/json")
		answer, err := client.Do(r)
		if err != nil {
			return 0, err.Error()
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		must(err)
		return answer.StatusCode, string(text)
	}
	for code := 0; code != http.StatusOK; code, _ = ask("GET", "/readyz", "") {
		must(ctx.Err())
	}
	if code, text := ask("POST", "/api/v1/namespaces/default/secrets", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"theirs"},"stringData":{"k":"hidden"}}`); code != http.StatusCreated {
		t.Fatal(text)
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + store}, Context: ctx})
	must(err)
	defer etcd.Close()
	const path = "/registry/secrets/default/"
	theirs, err := etcd.Get(ctx, path+"theirs")
	must(err)
	of := func(string) (schema.GroupResource, bool) { return schema.GroupResource{Resource: "secrets"}, true }
	memory := storage.NewMemory()
	defer memory.Close()
	_, _, _, err = memory.Put(ctx, path+"theirs", theirs.Kvs[0].Value, 0, 0)
	must(err)
	sealed := New(memory, k, of)
	read, _, err := sealed.Get(ctx, path+"theirs")
	must(err)
	if read.Err != nil || !strings.Contains(string(read.Value), "hidden") {
		t.Fatalf("upstream's value: %v %q", read.Err, read.Value)
	}
	// The same object under another name, sealed here.
	_, _, _, err = sealed.Put(ctx, path+"oursss", []byte(strings.ReplaceAll(string(read.Value), "theirs", "oursss")), 0, 0)
	must(err)
	ours, _, err := memory.Get(ctx, path+"oursss")
	must(err)
	_, err = etcd.Put(ctx, path+"oursss", string(ours.Value))
	must(err)
	code, text := ask("GET", "/api/v1/namespaces/default/secrets/oursss", "")
	if code != http.StatusOK || !strings.Contains(text, "aGlkZGVu") {
		t.Errorf("upstream reads ours: %d %s", code, text)
	}
}

func port(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprint(l.Addr())
}
