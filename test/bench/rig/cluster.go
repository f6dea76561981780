package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// A Cluster is running processes and how to reach them as an administrator.
type Cluster struct {
	Dir       string
	Server    string // URL of the API server
	Admin     string // kubeconfig
	Began     time.Time
	Took      time.Duration // to answer /readyz
	Processes []*Process
	// Services and Pods are its ranges; ClusterDNS is where pods ask for names.
	Services, Pods, ClusterDNS string

	pki *authority
	// store and api are the flags of ControlPlane's programs.
	store, api []string
	ownNode    bool     // knarr's server runs the node
	images     []string // archives of its static pods' images
	static     []string // their names
	cleanup    []func()
}

// Programs says where the programs are.
type Programs struct {
	Repository string // of knarr
	Knarr      string // bin/knarr
	Against    string // another one, in upstream's place; empty: upstream itself
	Upstream   string // directory of upstream's
	Made       string // directory of runc and the shim, built by make
	Kinds      string // file with a valid object of each kind
	PodsOfNode int    // how many pods a node takes; 0: as many as by default
	cache      string
}

// Stop ends every process and removes what they left.
func (c *Cluster) Stop() {
	for _, p := range slices.Backward(c.Processes) {
		p.stop()
	}
	for _, f := range slices.Backward(c.cleanup) {
		f()
	}
	for _, pid := range pidsOf(c.Dir) { // shims and what they hold
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	unmount(c.Dir)
}

// unmount undoes all mounts below dir, the last first.
func unmount(dir string) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return
	}
	for _, line := range slices.Backward(strings.Split(string(b), "\n")) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			_ = syscall.Unmount(f[4], syscall.MNT_DETACH)
		}
	}
}

// Alive is an error when one of the processes has ended.
func (c *Cluster) Alive() error {
	for _, p := range c.Processes {
		if err := p.Ended(); err != nil {
			return err
		}
	}
	return nil
}

// Config reaches the API server with protobuf and no limits on rate.
func (c *Cluster) Config() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Admin)
	if err != nil {
		return nil, err
	}
	// The library keeps connections by the names of files, and another cluster
	// may have lived in this directory, with other certificates.
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return nil, err
	}
	cfg.CAFile, cfg.CertFile, cfg.KeyFile = "", "", ""
	cfg.QPS = -1
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.WarningHandler = rest.NoWarnings{}
	return cfg, nil
}

// Client is a client with that config.
func (c *Cluster) Client() (*kubernetes.Clientset, error) {
	cfg, err := c.Config()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(cfg)
}

// CPU is what the processes started have used so far.
func (c *Cluster) CPU() (time.Duration, error) {
	var sum time.Duration
	var errs []error
	for _, p := range c.Processes {
		d, err := CPU(p.Pid())
		sum += d
		errs = append(errs, err)
	}
	return sum, errors.Join(errs...)
}

const (
	restWindow = 50 * time.Millisecond
	restUse    = 10 * time.Millisecond // of CPU within the window: what an idle upstream uses
	restTime   = 3 * time.Second
)

// Rest waits until the processes have ended what their last operations left
// them to do, three seconds at most: a collection of garbage goes on for half a
// second, and would take its CPU from whoever is measured next.
func (c *Cluster) Rest(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, restTime)
	defer cancel()
	before, err := c.CPU()
	for err == nil {
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil
			}
			return ctx.Err()
		case <-time.After(restWindow):
		}
		var now time.Duration
		now, err = c.CPU()
		if err == nil && now-before <= restUse {
			return nil
		}
		before = now
	}
	return err
}

// Memory is what all processes of the cluster, also those its processes
// started, hold and held at most, bytes resident.
func (c *Cluster) Memory() (now, peak int64) {
	for _, pid := range pidsOf(c.Dir) {
		n, p, err := Memory(pid)
		if err == nil {
			now, peak = now+n, peak+p
		}
	}
	return now, peak
}

// await asks every few milliseconds until ok says yes.
func (c *Cluster) await(ctx context.Context, what string, ok func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok(ctx)
		if err == nil {
			return nil
		}
		if e := c.Alive(); e != nil {
			return fmt.Errorf("wait for %s: %w", what, e)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, ctx.Err(), err)
		}
	}
}

// ready waits for /readyz.
func (c *Cluster) ready(ctx context.Context) error {
	client, err := c.Client()
	for err != nil { // knarr writes its kubeconfig as it starts
		if e := c.Alive(); e != nil {
			return e
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the kubeconfig: %w", err)
		case <-time.After(2 * time.Millisecond):
		}
		client, err = c.Client()
	}
	return c.await(ctx, "/readyz", func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// run starts a process of this cluster.
func (c *Cluster) run(name, path string, args ...string) error {
	return c.runIn(name, path, nil, args...)
}

// runIn is run with more environment.
func (c *Cluster) runIn(name, path string, env []string, args ...string) error {
	p, err := start(c.Dir, name, path, env, args...)
	if err != nil {
		return err
	}
	c.Processes = append(c.Processes, p)
	return nil
}

func newCluster(dir string) (*Cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	return &Cluster{Dir: dir, Began: time.Now()}, os.MkdirAll(dir, 0o755)
}

// freePorts are ports of loopback that nobody has.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
