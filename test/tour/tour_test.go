// Package tour takes README.md's tour on a cluster of its own, as a newcomer types it. It
// reads the built knarr and README.md, and removes everything again.
package tour

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"knarr/internal/need"
)

const binary, readme = "../../bin/knarr", "../../README.md"

// commands are what README.md's tour types, without those that make and remove the
// cluster, and without what it shows as answers.
func commands(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	_, tour, found := strings.Cut(string(text), "\n## Five minutes\n")
	tour, _, ended := strings.Cut(tour, "\n## ")
	if !found || !ended {
		t.Fatal("README.md has no tour of five minutes")
	}
	for line := range strings.Lines(tour) {
		if c, ok := strings.CutPrefix(strings.TrimSpace(line), "$ "); ok && !strings.HasPrefix(c, "make ") && !strings.HasPrefix(c, "export ") {
			all = append(all, c)
		}
	}
	return all
}

// TestTour types all of it. It ends with the page in a browser, if this machine has one.
func TestTour(t *testing.T) {
	need.Root(t)
	if _, err := os.Stat(binary); err != nil {
		t.Fatal("bin/knarr is not built; run make build")
	}
	for _, port := range []string{"80", "443"} {
		if conn, err := net.DialTimeout("tcp", "127.0.0.1:"+port, time.Second); err == nil {
			conn.Close()
			need.Skip(t, "port "+port+" of this machine is taken by another program")
		}
	}
	dir := start(t)
	typed := commands(t)
	if len(typed) < 10 {
		t.Fatalf("README.md's tour is %q", typed)
	}
	for _, c := range typed {
		if strings.HasPrefix(c, "curl ") {
			if _, err := exec.LookPath("curl"); err != nil {
				need.Skip(t, "needs curl: apt-get install curl")
			}
		}
		out := run(t, dir, c)
		t.Logf("$ %s\n%s", c, out)
		if strings.HasPrefix(c, "curl ") && !strings.HasPrefix(out, "hello from hello-") {
			t.Errorf("the page is %q", out)
		}
	}
	browse(t, dir)
}

// browse opens the page in a browser without a screen.
func browse(t *testing.T, dir string) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Log("not opened in a browser: apt-get install chromium")
		return
	}
	out := run(t, dir, chromium+" --headless --no-sandbox --disable-gpu --ignore-certificate-errors --user-data-dir="+dir+"/browser --dump-dom https://hello.localhost/ 2>/dev/null")
	if !strings.Contains(out, "hello from hello-") {
		t.Errorf("the browser shows %q", out)
	}
	t.Logf("the browser shows %s", out)
}

// start runs a cluster until the test ends. It returns the directory of its data.
func start(t *testing.T) string {
	t.Helper()
	base, err := os.MkdirTemp("", "knarr-tour-")
	if err != nil {
		t.Fatal(err)
	}
	dir, log := filepath.Join(base, "data"), filepath.Join(base, "log")
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "server", "--data-dir", dir, "--config", "/dev/null", "--https-listen-port", fmt.Sprint(freePort(t)), "--kubelet-port", fmt.Sprint(freePort(t)),
		"--cluster-cidr", "10.156.0.0/16", "--service-cidr", "10.157.0.0/16", "--node-name", "demo", "--service-node-port-range", "32761-32767")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if out, err := exec.Command(binary, "down", "--data-dir", dir, "--purge").CombinedOutput(); err != nil {
			t.Errorf("knarr down: %v\n%s", err, out)
		}
		if t.Failed() {
			b, _ := os.ReadFile(log)
			t.Logf("the end of the server's log:\n%s", b[max(0, len(b)-4000):])
		}
		os.RemoveAll(base)
	})
	if out, err := exec.Command(binary, "wait", "--data-dir", dir).CombinedOutput(); err != nil {
		t.Fatalf("knarr wait: %v\n%s", err, out)
	}
	return dir
}

// run types a command at the root of the repository, where knarr is what was built.
func run(t *testing.T, dir, command string) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	command = strings.ReplaceAll(command, "hello.tar", dir+"/hello.tar")
	command = strings.ReplaceAll(command, "knarr images load", "knarr images --data-dir "+dir+" load")
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(root, "bin")+":"+os.Getenv("PATH"), "KUBECONFIG="+filepath.Join(dir, "kubeconfig"))
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("%s: %v\n%s%s", command, err, out, failed.Stderr)
	} else if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return string(out)
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
