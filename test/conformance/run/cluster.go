package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A cluster is started for the run, with one node by `knarr server`, with more
// by `knarr dev`.
type cluster struct {
	knarr   string
	nodes   int
	dataDir string
	flags   []string
	out     string

	server *exec.Cmd
	ended  chan error
	file   string // the kubeconfig
}

// devName is the dev cluster's.
const devName = "conformance"

func newCluster(knarr string, o options) *cluster {
	return &cluster{knarr: knarr, nodes: o.nodes, dataDir: o.dataDir, flags: strings.Fields(o.flags), out: o.out}
}

func (c *cluster) kubeconfig() string {
	if c.nodes > 1 {
		return c.file
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
		c.file = filepath.Join(c.out, "kubeconfig")
		return c.say(ctx, "dev-up.log", "dev", "up", "--name", devName, "--nodes", fmt.Sprint(c.nodes), "--write-kubeconfig", c.file)
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

// load gives every node the images.
func (c *cluster) load(ctx context.Context, archive string) error {
	if c.nodes > 1 {
		return c.say(ctx, "images.log", "images", "load", "--all-nodes", archive)
	}
	return c.say(ctx, "images.log", "images", "load", "--data-dir", c.dataDir, archive)
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
	if c.nodes > 1 {
		return c.say(ctx, "dev-down.log", "dev", "down", "--name", devName)
	}
	if _, err := os.Stat(filepath.Join(c.dataDir, "cluster.json")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return c.say(ctx, "down.log", c.downArgs()...)
}

func (c *cluster) downArgs() []string {
	return []string{"down", "--data-dir", c.dataDir, "--purge"}
}

// downCommand is what a user types to remove a cluster that was kept.
func (c *cluster) downCommand() string {
	if c.nodes > 1 {
		return c.knarr + " dev down --name " + devName
	}
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
