package kubelet

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/criconfig"
	"knarr/node/kubelet/crilabels"
	"knarr/node/kubelet/podlogs"
	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/runtimestate"
	"knarr/node/kubelet/volume"
)

// sparse is a file size that no machine has memory for.
const sparse = 8 << 40

// A hostile file is one that a container left where the kubelet looks.
var hostileFiles = []struct {
	name string
	make func(path string) error
}{
	{"sparse", func(path string) error {
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			return err
		}
		return os.Truncate(path, sparse)
	}},
	{"link", func(path string) error { return os.Symlink(os.Getenv(childSecret), path) }},
	{"fifo", func(path string) error { return unix.Mkfifo(path, 0o644) }},
}

// The environment of a test binary run again as its own child, whose memory is
// bounded: what a hostile file does to it ends no test, nor the machine.
const (
	childTask   = "KNARR_TEST_TASK"
	childDir    = "KNARR_TEST_DIR"
	childSecret = "KNARR_TEST_SECRET"
	childMemory = 3 << 30
)

// child runs the named test in a process of its own and gives what it printed.
func child(t *testing.T, task, dir, secret string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()[:strings.IndexByte(t.Name()+"/", '/')]+"$", "-test.timeout=20s")
	cmd.Env = append(os.Environ(), childTask+"="+task, childDir+"="+dir, childSecret+"="+secret, "GOMEMLIMIT=1GiB")
	out, err := cmd.CombinedOutput()
	if err != nil {
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "fatal error:") || strings.HasPrefix(line, "panic:") {
				t.Errorf("%s: %s", task, strings.TrimSpace(line))
				return ""
			}
		}
		t.Errorf("%s: %v\n%s", task, err, out)
	}
	_, text, _ := strings.Cut(string(out), "result: ")
	text, _, _ = strings.Cut(text, "\nPASS")
	return text
}

// bound limits this process's memory, for a child.
func bound(t *testing.T) {
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: childMemory, Max: childMemory}); err != nil {
		t.Fatal(err)
	}
}

// TestHostileHostsFile: whatever a container makes of its hosts file, the next
// container gets the right one, and nothing outside is written or read.
func TestHostileHostsFile(t *testing.T) {
	files := podFiles{volume.New(volume.Config{PodsDir: os.Getenv(childDir)}), "cluster.local"}
	p := podtest.Pod("web", "c")
	if os.Getenv(childTask) != "" {
		bound(t)
		if _, err := files.HostsFile(p, []string{"10.9.0.1"}); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, f := range hostileFiles {
		t.Run(f.name, func(t *testing.T) {
			dir := t.TempDir()
			secret := filepath.Join(dir, "secret")
			t.Setenv(childSecret, secret)
			path := filepath.Join(dir, string(p.UID), "etc-hosts")
			for _, err := range []error{os.WriteFile(secret, []byte("secret"), 0o600), os.Mkdir(filepath.Dir(path), 0o755), f.make(path)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			child(t, f.name, dir, secret)
			if st, err := os.Lstat(path); err != nil || !st.Mode().IsRegular() || st.Size() > 4096 {
				t.Fatalf("hosts file: %v, %v", st, err)
			}
			if b, err := os.ReadFile(path); err != nil || !bytes.Contains(b, []byte("10.9.0.1\tweb\n")) {
				t.Errorf("hosts file %q, %v", b, err)
			}
			if b, err := os.ReadFile(secret); err != nil || string(b) != "secret" {
				t.Errorf("the file that the link leads to holds %q, %v", b, err)
			}
		})
	}
}

// TestHostileTerminationMessage: a termination message is the last 4 KiB of a
// regular file.
func TestHostileTerminationMessage(t *testing.T) {
	pods := os.Getenv(childDir)
	k := &Kubelet{volumes: volume.New(volume.Config{PodsDir: pods})}
	path := filepath.Join(pods, "uid-web", "containers", "c", "0badf00d")
	if os.Getenv(childTask) != "" {
		bound(t)
		text, _ := k.terminationMessage(&runtimestate.Container{ContainerStatus: &cri.ContainerStatus{
			Annotations: map[string]string{crilabels.TerminationMessagePath: "/dev/termination-log"},
			Labels:      map[string]string{crilabels.PodUID: "uid-web", crilabels.ContainerName: "c"},
			Mounts:      []*cri.Mount{{ContainerPath: "/dev/termination-log", HostPath: path}},
		}})
		_, _ = os.Stdout.WriteString("result: " + text + "\n")
		return
	}
	for _, f := range hostileFiles {
		t.Run(f.name, func(t *testing.T) {
			dir := t.TempDir()
			secret := filepath.Join(dir, "secret")
			t.Setenv(childSecret, secret)
			path := filepath.Join(dir, path)
			for _, err := range []error{os.WriteFile(secret, []byte("my secret"), 0o600), os.MkdirAll(filepath.Dir(path), 0o755), f.make(path)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			text := child(t, f.name, dir, secret)
			if strings.Contains(text, "my secret") || len(text) > maxMessage {
				t.Errorf("%d bytes result: %.60q", len(text), text)
			}
			if f.name != "sparse" && !strings.Contains(text, "Error on reading termination log") {
				t.Errorf("result %.60q", text)
			}
		})
	}
}

// TestHostileLog: the log kept as the last words of a container is bounded.
func TestHostileLog(t *testing.T) {
	path := filepath.Join(os.Getenv(childDir), "ns_web_uid", "c", "0.log")
	if os.Getenv(childTask) != "" {
		bound(t)
		text, err := podlogs.Tail(path, maxMessageLines, maxMessageLog)
		if err != nil {
			text = err.Error()
		}
		_, _ = os.Stdout.WriteString("result: " + text + "\n")
		return
	}
	for _, f := range hostileFiles {
		t.Run(f.name, func(t *testing.T) {
			dir := t.TempDir()
			secret := filepath.Join(dir, "secret")
			t.Setenv(childSecret, secret)
			path := filepath.Join(dir, path)
			record := "2026-01-02T03:04:05Z stdout F my secret\n"
			for _, err := range []error{os.WriteFile(secret, []byte(record), 0o600), os.MkdirAll(filepath.Dir(path), 0o755), f.make(path)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if text := child(t, f.name, dir, secret); strings.Contains(text, "my secret") || len(text) > maxMessageLog {
				t.Errorf("%d bytes result: %.60q", len(text), text)
			}
		})
	}
}

// TestHostileEnvFile: a variable's file in a volume is read as upstream reads
// it, within bounds, and never from outside of the volume.
func TestHostileEnvFile(t *testing.T) {
	d := &criconfig.Downward{Volumes: map[string]volume.Mounted{"v": {Path: os.Getenv(childDir)}}}
	if os.Getenv(childTask) != "" {
		bound(t)
		text, _, err := d.FileKey(&corev1.FileKeySelector{VolumeName: "v", Path: "env", Key: "KEY"})
		if err != nil {
			text = err.Error()
		}
		_, _ = os.Stdout.WriteString("result: " + text + "\n")
		return
	}
	for _, f := range hostileFiles {
		t.Run(f.name, func(t *testing.T) {
			dir, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
			t.Setenv(childSecret, secret)
			for _, err := range []error{os.WriteFile(secret, []byte("KEY='my secret'\n"), 0o600), f.make(filepath.Join(dir, "env"))} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if text := child(t, f.name, dir, secret); strings.Contains(text, "my secret") || len(text) > 200 || text == "" {
				t.Errorf("%d bytes result: %.60q", len(text), text)
			}
		})
	}
}

// TestVariablesThatDouble: forty variables, each naming the one before twice,
// are no terabyte.
func TestVariablesThatDouble(t *testing.T) {
	if os.Getenv(childTask) == "" {
		if text := child(t, "double", t.TempDir(), ""); !strings.Contains(text, "too large") {
			t.Errorf("result %.100q", text)
		}
		return
	}
	bound(t)
	p := podtest.Pod("p", "c")
	c := &p.Spec.Containers[0]
	c.Env = []corev1.EnvVar{{Name: "V0", Value: strings.Repeat("x", 1<<10)}}
	for i := range 40 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("V", i+1), Value: fmt.Sprintf("$(V%d)$(V%d)", i, i)})
	}
	_, err := criconfig.Container(t.Context(), criconfig.Node{}, criconfig.Inputs{Pod: p, Spec: c})
	_, _ = fmt.Printf("result: %v\n", err)
}
