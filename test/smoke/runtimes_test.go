package smoke

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/need"
)

const pauseImage = "knarr.test/pause:1"

// A foreign is another container runtime, with its configuration in a directory and
// programs in another.
type foreign struct {
	name string
	// files are its configuration, by path, with DIR, BIN and REGISTRY in them.
	files map[string]string
	args  []string
}

var foreigns = []foreign{
	{"containerd", map[string]string{"config.toml": `version = 2
root = "DIR/root"
state = "DIR/state"
[grpc]
address = "DIR/sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "REGISTRY/pause:1"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "BIN/runc"
`}, []string{"--config", "DIR/config.toml"}},
	{"crio", map[string]string{"crio.conf": `[crio]
root = "DIR/root"
runroot = "DIR/state"
storage_driver = "overlay"
version_file = "DIR/version"
version_file_persist = ""
clean_shutdown_file = "DIR/clean"
[crio.api]
listen = "DIR/sock"
[crio.runtime]
conmon = "BIN/conmon"
conmon_cgroup = "pod"
cgroup_manager = "cgroupfs"
pinns_path = "BIN/pinns"
namespaces_dir = "DIR/ns"
default_runtime = "runc"
container_exits_dir = "DIR/exits"
container_attach_socket_dir = "DIR/a"
hooks_dir = []
[crio.runtime.runtimes.runc]
runtime_path = "BIN/runc"
runtime_root = "DIR/runc"
monitor_path = "BIN/conmon"
[crio.image]
pause_image = "REGISTRY/pause:1"
insecure_registries = ["REGISTRY"]
pause_command = "/app"
signature_policy = "DIR/policy.json"
`, "policy.json": `{"default": [{"type": "insecureAcceptAnything"}]}`,
		"conf.d/none": ""}, []string{"--config", "DIR/crio.conf", "--config-dir", "DIR/conf.d"}},
}

// TestForeignRuntimes is a part of a cluster's day on each other container runtime whose
// programs are in the directory that KNARR_RUNTIMES names: containerd with its shim and
// runc, and CRI-O as crio with pinns, conmon and runc. The pods' network is knarr's.
func TestForeignRuntimes(t *testing.T) {
	bin := os.Getenv("KNARR_RUNTIMES")
	if bin == "" {
		t.Skip("it needs other runtimes' programs: make runtimes RUNTIMES=DIR")
	}
	need.Root(t)
	ran := 0
	for _, f := range foreigns {
		if _, err := os.Stat(filepath.Join(bin, f.name)); err != nil {
			continue
		}
		ran++
		t.Run(f.name, func(t *testing.T) { foreignRuntime(t, f, bin) })
	}
	if ran == 0 {
		t.Fatalf("%s has neither containerd nor crio", bin)
	}
}

func foreignRuntime(t *testing.T, f foreign, bin string) {
	removeWhatIsNew(t, "/etc/cni/net.d", "/etc/cni", "/opt/cni/bin", "/opt/cni", "/run/netns")
	dir, err := os.MkdirTemp("", "kr-") // a socket's path has 107 bytes at most, and a container's id 64
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	registry := serveImages(t, buildImage(t), buildPause(t))
	client := startForeign(t, f, bin, dir, registry)
	c := newCluster(t)
	c.args = append(c.args, "--container-runtime-endpoint", "unix://"+filepath.Join(dir, "sock"))
	c.start()
	c.connect()
	defer func() {
		if t.Failed() && c.running() {
			out, _ := c.try("get", "events", "-A", "-o", "custom-columns=M:.message")
			t.Logf("events:\n%s", out)
		}
	}()
	c.wait("node Ready", 30*time.Second, c.nodeReady)
	c.image = registry + strings.TrimPrefix(image, "knarr.test")
	c.apply(manifest)
	c.kubectl("-n", "smoke", "rollout", "status", "deployment/web", "--timeout=90s")
	c.kubectl("-n", "smoke", "wait", "--for=condition=Ready", "pod/client", "--timeout=60s")
	if v := c.kubectl("get", "node", "smoke", "-o", "jsonpath={.status.nodeInfo.containerRuntimeVersion}"); !strings.HasPrefix(v, map[string]string{"containerd": "containerd://", "crio": "cri-o://"}[f.name]) {
		t.Errorf("the node's runtime is %s", v)
	} else {
		t.Log(v)
	}
	for _, step := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"service", service}, {"scale", scale}, {"rolling update", rollingUpdate}, {"logs", logs}, {"exec", execs}, {"attach", attach},
		{"port-forward", portForward}, {"cp", cp}, {"liveness", liveness}, {"crash loop", crashLoop}, {"server killed", serverKilled},
	} {
		if !t.Run(step.name, func(t *testing.T) { outer := c.t; c.t = t; defer func() { c.t = outer }(); step.run(t, c) }) {
			t.FailNow()
		}
	}
	c.stop(syscall.SIGTERM)
	if n := pods(t, client); n == 0 {
		t.Error("the runtime's pods have ended with knarr's process")
	}
	if out, err := exec.Command(binary, "down", "--data-dir", c.dir, "--purge").CombinedOutput(); err != nil {
		t.Fatalf("knarr down: %v\n%s", err, out)
	}
	if n := pods(t, client); n != 0 {
		t.Errorf("the runtime has %d pods after knarr down", n)
	}
	if left, err := filepath.Glob("/[eo][tp][ct]/cni/*/*knarr*"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// removeWhatIsNew removes those of some directories that are not there yet, once they are
// empty: runtimes make them.
func removeWhatIsNew(t *testing.T, dirs ...string) {
	for _, dir := range dirs {
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			defer t.Cleanup(func() { _ = os.Remove(dir) })
		}
	}
}

// pods counts what the runtime has.
func pods(t *testing.T, client runtimeapi.RuntimeServiceClient) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	list, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

// startForeign starts a runtime that ends with the test, and waits until it answers.
func startForeign(t *testing.T, f foreign, bin, dir, registry string) runtimeapi.RuntimeServiceClient {
	t.Helper()
	fill := strings.NewReplacer("DIR", dir, "BIN", bin, "REGISTRY", registry).Replace
	for name, text := range f.files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(fill(text)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	args := make([]string, len(f.args))
	for i, a := range f.args {
		args[i] = fill(a)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(bin, f.name), args...)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil && t.Failed() {
			t.Log(err)
		}
		if t.Failed() {
			t.Logf("end of %s' log:\n%s", f.name, tail(log.Name(), 40))
		}
	})
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	client := runtimeapi.NewRuntimeServiceClient(conn)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := client.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatalf("%s does not answer: %v", f.name, err)
	}
	return client
}

// buildPause makes the archive of an image whose program only waits.
func buildPause(t *testing.T) string {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal("busybox-static is not installed; make test installs it")
	}
	path := filepath.Join(t.TempDir(), "pause.tar")
	if err := writeImage(path, pauseImage, busybox, "../../build/pause"); err != nil {
		t.Fatal(err)
	}
	return path
}

// serveImages is a registry on loopback that has the images of some archives under the
// names that they have without their hosts.
func serveImages(t *testing.T, archives ...string) (address string) {
	t.Helper()
	blobs, named := map[string][]byte{}, map[string]string{}
	for _, path := range archives {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for r := tar.NewReader(bytes.NewReader(b)); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			if digest, ok := strings.CutPrefix(h.Name, "blobs/sha256/"); ok {
				blobs["sha256:"+digest] = content
			} else if h.Name == "index.json" {
				var index struct {
					Manifests []struct {
						Digest      string
						Annotations map[string]string
					}
				}
				if err := json.Unmarshal(content, &index); err != nil {
					t.Fatal(err)
				}
				for _, m := range index.Manifests {
					_, name, _ := strings.Cut(m.Annotations["org.opencontainers.image.ref.name"], "/")
					repository, tag, _ := strings.Cut(name, ":")
					named[fmt.Sprintf("/v2/%s/manifests/%s", repository, tag)] = m.Digest
				}
			}
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		digest, ok := named[r.URL.Path]
		if !ok {
			digest = r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		}
		content, ok := blobs[digest]
		switch {
		case r.URL.Path == "/v2/":
		case !ok:
			http.NotFound(w, r)
		default:
			if strings.Contains(r.URL.Path, "/manifests/") {
				w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			}
			w.Header().Set("Docker-Content-Digest", digest)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
		}
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return l.Addr().String()
}
