package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A cluster is started for the run, with one node by `knarr server`, with more
// by `knarr dev`.
type cluster struct {
	knarr   string
	nodes   int
	name    string // the dev cluster's
	dataDir string
	flags   []string
	family  string
	out     string

	server *exec.Cmd
	ended  chan error
}

// offByDefault turns on what the API server has that is off in a cluster as it comes,
// for the specs not marked Conformance.
var offByDefault = []string{
	"--kube-apiserver-arg=feature-gates=" + strings.Join([]string{"HPAScaleToZero=true", "StorageVersionAPI=true", "StorageVersionMigrator=true",
		"ClusterTrustBundle=true", "ClusterTrustBundleProjection=true", "PodCertificateRequest=true"}, ","),
	"--kube-apiserver-arg=runtime-config=certificates.k8s.io/v1beta1=true,storagemigration.k8s.io/v1beta1=true",
}

func newCluster(knarr string, o options) *cluster {
	flags := strings.Fields(o.flags)
	if o.beyond {
		settings := filepath.Join(filepath.Dir(knarr), "../test/conformance/kubelet.yaml")
		flags = slices.Concat([]string{"--kubelet-config", settings}, offByDefault, flags)
	}
	return &cluster{knarr: knarr, nodes: o.nodes, name: o.name, dataDir: o.dataDir, flags: flags, family: o.ipFamily, out: o.out}
}

func (c *cluster) kubeconfig() string {
	if c.nodes > 1 {
		return filepath.Join(c.dataDir, c.name, "kubeconfig")
	}
	return filepath.Join(c.dataDir, "kubeconfig")
}

// up starts the cluster after removing what a run that was killed left, and
// waits until it is ready.
func (c *cluster) up(ctx context.Context) error {
	if err := c.down(); err != nil {
		return err
	}
	fmt.Printf("starting a cluster of %d nodes\n", c.nodes)
	if c.nodes > 1 {
		args := []string{"dev", "up", "--name", c.name, "--dir", c.dataDir, "--nodes", fmt.Sprint(c.nodes)}
		if c.family != "" {
			args = append(args, "--ip-family", c.family)
		}
		if len(c.flags) > 0 {
			args = append(append(args, "--"), c.flags...)
		}
		return c.say(ctx, "up.log", args...)
	}
	log, err := os.Create(filepath.Join(c.out, "server.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	c.server = exec.Command(c.knarr, append([]string{"server", "--data-dir", c.dataDir, "--config", os.DevNull}, c.flags...)...)
	c.server.Stdout, c.server.Stderr = log, log
	// A group of its own: an interrupt at the terminal is for us to pass on.
	c.server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.server.Start(); err != nil {
		return err
	}
	c.ended = make(chan error, 1)
	go func() { c.ended <- c.server.Wait() }()
	return c.say(ctx, "wait.log", "wait", "--data-dir", c.dataDir, "--timeout", "2m")
}

// room reports whether pods can be put on every node: under pressure none are, and
// the suite would wait for them without a word.
func (c *cluster) room(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, c.knarr, "kubectl", "get", "nodes", "-o",
		`jsonpath={range .items[*]}{.metadata.name}{range .status.conditions[?(@.status=="True")]} {.type}{end}{"\n"}{end}`)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig())
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("get nodes: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if node, conditions, _ := strings.Cut(strings.TrimSpace(line), " "); strings.Contains(conditions, "Pressure") {
			return fmt.Errorf("node %s is under pressure (%s), so no pod would be put on it; free disk or memory of this machine, for instance with `go clean -cache`", node, conditions)
		}
	}
	return nil
}

// spread puts the nodes into zones. Hints count no node of a control plane, while a
// DaemonSet of the suite runs on it.
func (c *cluster) spread(ctx context.Context, zones int) error {
	for i := range c.nodes {
		if zones < 1 {
			return nil
		}
		if err := c.say(ctx, "zones.log", "kubectl", "--kubeconfig", c.kubeconfig(), "label", "node", fmt.Sprintf("%s-%d", c.name, i+1),
			fmt.Sprintf("topology.kubernetes.io/zone=zone-%d", i%zones+1), "node-role.kubernetes.io/control-plane-"); err != nil {
			return err
		}
	}
	return nil
}

// nodeDirs are where the nodes keep their data.
func (c *cluster) nodeDirs() (dirs []string) {
	if c.nodes == 1 {
		return []string{c.dataDir}
	}
	for i := range c.nodes {
		dirs = append(dirs, filepath.Join(c.dataDir, c.name, fmt.Sprintf("%s-%d", c.name, i+1)))
	}
	return dirs
}

// host is this machine's address as the nodes reach it.
func (c *cluster) host() (netip.Addr, error) {
	if c.nodes == 1 {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
	}
	hosts, err := c.hosts()
	if err != nil {
		return netip.Addr{}, err
	}
	return hosts.Addr().Next(), nil // the first is the machine's
}

// hosts is the network that the nodes of several are in.
func (c *cluster) hosts() (netip.Prefix, error) {
	b, err := os.ReadFile(filepath.Join(c.dataDir, c.name, "dev.json"))
	if err != nil {
		return netip.Prefix{}, err
	}
	var dev struct{ Hosts netip.Prefix }
	if err := json.Unmarshal(b, &dev); err != nil {
		return netip.Prefix{}, fmt.Errorf("read the cluster's addresses: %w", err)
	}
	return dev.Hosts.Masked(), nil
}

// load gives every node the images.
func (c *cluster) load(ctx context.Context, archive string) error {
	if c.nodes > 1 {
		return c.say(ctx, "images.log", "images", "load", "--dir", c.dataDir, "--name", c.name, "--all-nodes", archive)
	}
	return c.say(ctx, "images.log", "images", "load", "--data-dir", c.dataDir, archive)
}

// addons installs what specs beyond conformance expect of a cluster and upstream
// keeps beside its components: the kinds of snapshots, and their controller.
func (c *cluster) addons(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return fmt.Errorf("look for upstream's sources: %w", err)
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), "cluster", "addons", "volumesnapshots")
	return c.say(ctx, "addons.log", "kubectl", "--kubeconfig", c.kubeconfig(), "apply",
		"-f", filepath.Join(dir, "crd"), "-f", filepath.Join(dir, "volume-snapshot-controller"))
}

// down removes the cluster, or nothing if there is none.
func (c *cluster) down() error {
	if c.server != nil {
		_ = c.server.Process.Signal(syscall.SIGTERM)
		select {
		case <-c.ended:
		case <-time.After(time.Minute):
			_ = c.server.Process.Kill()
			<-c.ended
		}
		c.server = nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	there := filepath.Join(c.dataDir, "cluster.json")
	if c.nodes > 1 {
		there = filepath.Join(c.dataDir, c.name)
	}
	if _, err := os.Stat(there); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return c.say(ctx, "down.log", c.downArgs()...)
}

func (c *cluster) downArgs() []string {
	if c.nodes > 1 {
		return []string{"dev", "down", "--name", c.name, "--dir", c.dataDir}
	}
	return []string{"down", "--data-dir", c.dataDir, "--purge"}
}

// downCommand is what a user types to remove a cluster that was kept.
func (c *cluster) downCommand() string {
	return c.knarr + " " + strings.Join(c.downArgs(), " ")
}

// say runs a verb of knarr; what it says is in a log, and in the error.
func (c *cluster) say(ctx context.Context, log string, args ...string) error {
	cmd := exec.CommandContext(ctx, c.knarr, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.CombinedOutput()
	if werr := os.WriteFile(filepath.Join(c.out, log), out, 0o644); werr != nil {
		return werr
	}
	if err != nil {
		return fmt.Errorf("run knarr %s: %w\n%s", strings.Join(args[:min(len(args), 2)], " "), err, out)
	}
	return nil
}
