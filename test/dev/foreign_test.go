package dev

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"knarr/internal/need"
)

const onePod = `
apiVersion: v1
kind: Pod
metadata: {name: foreign}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: app, image: "knarr.test/hello:1"}
`

// TestForeignNetwork gives a cluster the pod network of upstream's reference plugins in
// place of its own, which goes without a trace: pods are on the other one, find names
// and the API server, and nobody beside the node asks its DNS.
func TestForeignNetwork(t *testing.T) {
	temp, archive := prepare(t)
	plugins := referencePlugins(t)
	w := newWorld(t, temp, "e2e-1")
	w.knarr("dev", "up", "--name", "e2e", "--dir", w.base, "--nodes", "1", "--timeout", "40s")
	t.Setenv("KUBECONFIG", filepath.Join(w.base, "e2e", "kubeconfig"))
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	w.client = kubernetes.NewForConfigOrDie(cfg)
	node, err := w.client.CoreV1().Nodes().Get(context.Background(), "e2e-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.signal(filepath.Join(w.dir(), "e2e-1"), syscall.SIGTERM)
	w.installPlugins(plugins, node.Spec.PodCIDR)
	w.knarr("dev", "up", "--name", "e2e", "--dir", w.base, "--timeout", "40s", "--", "--flannel-backend=none")
	w.knarr("images", "load", "--all-nodes", "--name", "e2e", "--dir", w.base, archive)
	w.apply(onePod)
	w.knarr("kubectl", "wait", "--for=condition=Ready", "pod/foreign", "--timeout=40s")
	pod, err := w.client.CoreV1().Pods("default").Get(context.Background(), "foreign", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ip, r := netip.MustParseAddr(pod.Status.PodIP), netip.MustParsePrefix(node.Spec.PodCIDR); !r.Contains(ip) {
		t.Errorf("the pod has %s, want one of %s", ip, r)
	}
	links, err := exec.Command("nsenter", "--net="+w.spaces()+"/e2e-1.net", "busybox", "ip", "link").CombinedOutput()
	if err != nil || !strings.Contains(string(links), "foreign0") || strings.Contains(string(links), "knarr") {
		t.Errorf("links of the node, %v:\n%s", err, links)
	}
	if got := w.knarr("kubectl", "exec", "foreign", "--", "nslookup", "kubernetes.default.svc.cluster.local"); !strings.Contains(got, "10.43.0.1") {
		t.Errorf("names: %s", got)
	}
	if out, err := w.try("kubectl", "exec", "foreign", "--", "wget", "-qO-", "http://kubernetes.default:443"); err == nil || !strings.Contains(out, "400 Bad Request") {
		t.Errorf("the API server from a pod: %v\n%s", err, out)
	}
	w.outsiderIsNotAnswered(node.Status.Addresses[0])
}

// outsiderIsNotAnswered asks the node's DNS from this host, which is a neighbour of it.
func (w *world) outsiderIsNotAnswered(node corev1.NodeAddress) {
	w.t.Helper()
	c, err := net.Dial("tcp", net.JoinHostPort(node.Address, "10053"))
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil || os.IsTimeout(err) {
		w.t.Errorf("DNS keeps a neighbour's connection: %v", err)
	}
}

// referencePlugins builds those of upstream.
func referencePlugins(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range []string{"main/bridge", "main/loopback", "ipam/host-local"} {
		build := exec.Command("go", "build", "-C", "../cniplugins", "-o", filepath.Join(dir, filepath.Base(p)), "github.com/containernetworking/plugins/plugins/"+p)
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := build.CombinedOutput(); err != nil {
			need.Skip(t, "needs the reference plugins, a Go module: ", err, string(out))
		}
	}
	return dir
}

// installPlugins puts plugins and a configuration where runtimes look for them, in the
// node's own mount namespace.
func (w *world) installPlugins(plugins, pods string) {
	w.t.Helper()
	conf, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "foreign", "plugins": []any{map[string]any{
		"type": "bridge", "bridge": "foreign0", "isGateway": true,
		"ipam": map[string]any{"type": "host-local", "dataDir": w.dir() + "/leases", "ranges": [][]any{{map[string]any{"subnet": pods}}}, "routes": []any{map[string]any{"dst": "0.0.0.0/0"}}},
	}}})
	if err != nil {
		w.t.Fatal(err)
	}
	file := filepath.Join(plugins, "10-foreign.conflist")
	if err := os.WriteFile(file, conf, 0o644); err != nil {
		w.t.Fatal(err)
	}
	const script = `mkdir -p /etc/cni /opt/cni && mount -t tmpfs tmpfs /etc/cni && mount -t tmpfs tmpfs /opt/cni &&
		mkdir /etc/cni/net.d /opt/cni/bin && cp "$0"/bridge "$0"/loopback "$0"/host-local /opt/cni/bin && cp "$0"/10-foreign.conflist /etc/cni/net.d`
	missing := []string{}
	for _, dir := range []string{"/etc/cni", "/opt/cni"} { // made for mounting over, on this host too
		if _, err := os.Stat(dir); err != nil {
			missing = append(missing, dir)
		}
	}
	w.t.Cleanup(func() {
		for _, dir := range missing {
			_ = os.Remove(dir)
		}
	})
	if out, err := exec.Command("nsenter", "--mount="+w.spaces()+"/e2e-1.mnt", "sh", "-c", script, plugins).CombinedOutput(); err != nil {
		w.t.Fatalf("install the plugins in the node: %v\n%s", err, out)
	}
}
