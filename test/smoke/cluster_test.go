package smoke

import (
	"bytes"
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

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// binary is the knarr under test.
const binary = "../../bin/knarr"

// image is what the containers run.
const image = "knarr.test/app:1"

// A cluster is a running knarr.
type cluster struct {
	t      *testing.T
	dir    string
	image  string // what its containers run
	port   int
	args   []string
	cmd    *exec.Cmd
	log    *os.File
	ended  chan struct{}
	client *kubernetes.Clientset

	filesBefore map[string]bool // when its use of the machine was last counted
}

// newCluster prepares a cluster in a directory of its own, on free ports and
// ranges that a cluster of the machine's own does not use.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	base, err := os.MkdirTemp("", "knarr-smoke-")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, dir: filepath.Join(base, "data"), image: image}
	c.port = freePort(t)
	c.args = []string{"server", "--data-dir", c.dir, "--config", "/dev/null",
		"--https-listen-port", fmt.Sprint(c.port), "--kubelet-port", fmt.Sprint(freePort(t)),
		"--cluster-cidr", "10.142.0.0/16", "--service-cidr", "10.143.0.0/16", "--node-name", "smoke",
		"--service-node-port-range", "31000-31999"}
	if c.log, err = os.Create(filepath.Join(base, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() { // with what every goroutine was doing
			lines := 60
			if c.running() {
				c.stop(syscall.SIGQUIT)
				lines = 6000
			}
			t.Logf("end of the server's log:\n%s", tail(c.log.Name(), lines))
		}
		c.stop(syscall.SIGTERM)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := os.Stat(c.dir); err == nil {
			if out, err := exec.CommandContext(ctx, binary, "down", "--data-dir", c.dir, "--purge").CombinedOutput(); err != nil {
				t.Errorf("knarr down: %v\n%s", err, out)
			}
		}
		os.RemoveAll(base)
	})
	return c
}

func tail(file string, lines int) string {
	b, _ := os.ReadFile(file)
	all := strings.Split(string(b), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// start runs the server; it ends with the test.
func (c *cluster) start() {
	c.t.Helper()
	c.cmd = exec.Command(binary, c.args...)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) { _ = cmd.Wait(); close(ended) }(c.cmd, c.ended)
}

// running reports whether the server has not ended.
func (c *cluster) running() bool {
	if c.cmd == nil {
		return false
	}
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// stop signals the server and waits for its end.
func (c *cluster) stop(sig syscall.Signal) time.Duration {
	if !c.running() {
		return 0
	}
	began := time.Now()
	_ = c.cmd.Process.Signal(sig)
	select {
	case <-c.ended:
	case <-time.After(20 * time.Second):
		c.t.Errorf("the server did not end within 20 s of %v", sig)
		_ = c.cmd.Process.Kill()
		<-c.ended
	}
	return time.Since(began)
}

// connect waits for the kubeconfig and makes the client.
func (c *cluster) connect() {
	c.t.Helper()
	c.wait("the kubeconfig", 20*time.Second, func(context.Context) (bool, error) {
		cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dir, "kubeconfig"))
		if err != nil {
			return false, nil
		}
		cfg.QPS = -1
		c.client, err = kubernetes.NewForConfig(cfg)
		return err == nil, err
	})
}

// readyz reports whether the API server says that it is ready.
func (c *cluster) readyz(ctx context.Context) bool {
	_, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err == nil
}

// wait looks every few milliseconds until ok, and fails the test in time.
func (c *cluster) wait(what string, limit time.Duration, ok func(context.Context) (bool, error)) time.Duration {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	began := time.Now()
	var last error
	for {
		done, err := ok(ctx)
		if done {
			return time.Since(began)
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			last = err
		}
		select {
		case <-ctx.Done():
			out, _ := c.try("get", "pods,svc,deploy,rs,endpointslices", "-A", "-o", "wide")
			c.t.Fatalf("%s: not within %v; last error: %v\n%s", what, limit, last, out)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// command is kubectl with these arguments.
func (c *cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, append([]string{"kubectl"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.dir, "kubeconfig"))
	return cmd
}

func (c *cluster) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := c.command(ctx, args...).CombinedOutput()
	return string(out), err
}

// kubectl runs kubectl and wants it to succeed.
func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// apply gives a manifest to kubectl apply.
func (c *cluster) apply(manifest string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := c.command(ctx, "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(strings.ReplaceAll(manifest, image, c.image))
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("kubectl apply: %v\n%s\n%s", err, out, manifest)
	}
}

// background runs kubectl until the returned function is called, which gives
// what it printed.
func (c *cluster) background(args ...string) (end func() string) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := c.command(ctx, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	return func() string {
		cancel()
		_ = cmd.Wait()
		return out.String()
	}
}
