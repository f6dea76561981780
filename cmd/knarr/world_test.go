package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"knarr/cluster"
)

// A world is an etcd, an API server and a controller manager, each a process
// of its own: upstream's, or knarr under upstream's names. Both get the same
// flags.
type world struct {
	dir, kubeconfig string
}

const kubeconfig = `apiVersion: v1
kind: Config
current-context: here
contexts:
- name: here
  context: {cluster: here, user: admin, namespace: default}
clusters:
- name: here
  cluster: {server: "https://127.0.0.1:%d", certificate-authority: %q}
users:
- name: admin
  user: {token: admin-token}
- name: jane
  user: {token: jane-token}
`

func newWorld(t *testing.T, upstream string) *world {
	w := &world{dir: t.TempDir()}
	bin := filepath.Join(w.dir, "bin")
	must(t, os.Mkdir(bin, 0o755))
	kubectl, _, err := cluster.Kubectl()
	must(t, err)
	must(t, os.Symlink(kubectl, filepath.Join(bin, "kubectl")))
	ports := freePorts(t, 4)
	ca, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	must(t, err)
	w.file(t, "serving.crt", ca)
	w.file(t, "serving.key", key)
	signing, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	authority, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "authority"}, signing)
	must(t, err)
	w.file(t, "ca.crt", pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: authority.Raw}))
	signingKey, err := keyutil.MarshalPrivateKeyToPEM(signing)
	must(t, err)
	w.file(t, "ca.key", signingKey)
	sa, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	saKey, err := keyutil.MarshalPrivateKeyToPEM(sa)
	must(t, err)
	w.file(t, "sa.key", saKey)
	w.file(t, "tokens.csv", []byte("admin-token,admin,1,system:masters\njane-token,jane,2,\"developers,testers\"\n"))
	w.kubeconfig = fmt.Sprintf(kubeconfig, ports[0], filepath.Join(w.dir, "serving.crt"))
	w.file(t, "kubeconfig", []byte(w.kubeconfig))

	etcd := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	peers := fmt.Sprintf("http://127.0.0.1:%d", ports[2])
	w.start(t, upstream, "etcd", "--data-dir=DIR/etcd", "--unsafe-no-fsync", "--listen-client-urls="+etcd, "--advertise-client-urls="+etcd, "--listen-peer-urls="+peers)
	w.ready(t, etcd+"/health", ca)
	server := fmt.Sprintf("https://127.0.0.1:%d", ports[0])
	w.start(t, upstream, "kube-apiserver", "--etcd-servers="+etcd, fmt.Sprint("--secure-port=", ports[0]), "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--tls-cert-file=DIR/serving.crt", "--tls-private-key-file=DIR/serving.key", "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-key-file=DIR/sa.key", "--service-account-signing-key-file=DIR/sa.key",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--token-auth-file=DIR/tokens.csv",
		"--authorization-mode=RBAC", "--client-ca-file=DIR/ca.crt", "--allow-privileged")
	w.ready(t, server+"/readyz", ca)
	// Nodes here are only objects: nobody may find out.
	w.start(t, upstream, "kube-controller-manager", fmt.Sprint("--secure-port=", ports[3]), "--bind-address=127.0.0.1", "--cert-dir=DIR/certs",
		"--kubeconfig=DIR/kubeconfig", "--root-ca-file=DIR/serving.crt", "--leader-elect=false",
		"--cluster-signing-cert-file=DIR/ca.crt", "--cluster-signing-key-file=DIR/ca.key",
		"--controllers=*,-node-lifecycle-controller,-taint-eviction-controller,-pod-garbage-collector-controller")
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) file(t *testing.T, name string, text []byte) {
	must(t, os.WriteFile(filepath.Join(w.dir, name), text, 0o600))
}

// start runs a program until the test ends; what it said is shown if it fails.
func (w *world) start(t *testing.T, upstream, name string, args ...string) {
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "DIR", w.dir)
	}
	path := filepath.Join(upstream, name)
	if upstream == "" { // what TestMain says knarr is called besides
		var err error
		path, err = exec.LookPath(name)
		must(t, err)
	}
	cmd := exec.Command(path, args...)
	var log bytes.Buffer
	cmd.Stderr, cmd.Stdout = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
		if t.Failed() {
			logged := log.Bytes()
			t.Logf("%s said: %s", name, logged[max(0, len(logged)-2000):])
		}
	})
}

// ready blocks until url answers 200.
func (w *world) ready(t *testing.T, url string, ca []byte) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		must(t, err)
		req.Header.Set("Authorization", "Bearer admin-token")
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s is not ready", url)
		}
	}
}

// freePorts are ports that nobody listens on.
func freePorts(t *testing.T, n int) (ports []int) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}
