package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"knarr/cluster"
	"knarr/internal/run"
)

// Options are the flags of `knarr dev up`.
type Options struct {
	// Nodes is how many there are; 0: as many as before, or 2.
	Nodes int
	// Servers is how many of them, the first ones, are servers; 0: as many as
	// before, or 1.
	Servers int
	// IPFamily is one of IPFamilies; empty: as before, or ipv4.
	IPFamily string
	// Outside lets the nodes reach what this host reaches.
	Outside bool
	// ServerArgs are more flags for knarr server.
	ServerArgs []string
	// Progress gets a line for each step.
	Progress io.Writer
}

const maxNodes = 100

// maxServers is where more servers only slow each other down.
const maxServers = 9

// Validate reports everything wrong with the options.
func (o Options) Validate() error {
	var errs []error
	if o.Nodes < 0 || o.Nodes > maxNodes {
		errs = append(errs, fmt.Errorf("--nodes %d: one machine takes 1 to %d", o.Nodes, maxNodes))
	}
	if o.IPFamily != "" && !slices.Contains(IPFamilies, o.IPFamily) {
		errs = append(errs, fmt.Errorf("--ip-family %q: there are %s", o.IPFamily, strings.Join(IPFamilies, ", ")))
	}
	switch {
	case o.Servers < 0 || o.Servers > maxServers:
		errs = append(errs, fmt.Errorf("--servers %d: a cluster has 1 to %d", o.Servers, maxServers))
	case o.Nodes > 0 && o.Servers > o.Nodes:
		errs = append(errs, fmt.Errorf("--servers %d: servers are nodes too; give at least --nodes %d", o.Servers, o.Servers))
	}
	return errors.Join(errs...)
}

// Up makes the cluster be there and waits until all nodes are Ready and answer
// DNS. What is there already, or was left by a crash, is taken over.
func (c *Cluster) Up(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	began := time.Now()
	say := func(format string, args ...any) { fmt.Fprintf(o.Progress, format+"\n", args...) }
	s, err := c.plan(o)
	if err != nil {
		return err
	}
	say("cluster %s: nodes %s, pods %s, services %s", c.name, s.all(family.hosts), s.all(family.pods), s.all(family.services))
	if err := errors.Join(c.ensureBridge(s), c.ensureFirewall(s), c.ensureRun()); err != nil {
		return err
	}
	for n := 1; n <= s.Nodes; n++ {
		if !c.hasSpaces(n) {
			if err := c.makeSpaces(n); err != nil {
				return err
			}
		}
		if err := c.plug(n, s); err != nil {
			return err
		}
	}
	nodeProcesses := &nodeProcesses{cluster: c, ended: make(chan error, s.Nodes), started: map[int]time.Time{}}
	if err := c.startGate(s); err != nil {
		return err
	}
	if err := nodeProcesses.start(1, "server", append(c.serverArgs(1, s, "--cluster-cidr", s.all(family.pods), "--service-cidr", s.all(family.services)), o.ServerArgs...), say); err != nil {
		return err
	}
	if s.Nodes > 1 {
		for _, file := range []string{cluster.TokenFile(c.data(1)), cluster.ServerTokenFile(c.data(1))} {
			if err := nodeProcesses.appear(ctx, file); err != nil {
				return err
			}
		}
	}
	for n := 2; n <= s.Servers; n++ {
		if err := nodeProcesses.start(n, "server", append(c.serverArgs(n, s, "--server", firstURL(s), "--token-file", cluster.ServerTokenFile(c.data(1))), o.ServerArgs...), say); err != nil {
			return err
		}
	}
	for n := s.Servers + 1; n <= s.Nodes; n++ {
		if err := nodeProcesses.start(n, "agent", []string{
			"--server", firstURL(s), "--token-file", cluster.TokenFile(c.data(1)), "--node-ip", s.addresses(n),
		}, say); err != nil {
			return err
		}
	}
	if err := nodeProcesses.appear(ctx, cluster.Kubeconfig(c.data(1))); err != nil {
		return err
	}
	if err := c.writeKubeconfig(s); err != nil {
		return err
	}
	say("waiting for %s", strings.ReplaceAll(c.names(1, s.Nodes), ",", ", "))
	if err := nodeProcesses.wait(ctx, s, !disables(o.ServerArgs, "coredns")); err != nil {
		return err
	}
	say("Ready after %s. Try:\n  export KUBECONFIG=%s\n  knarr kubectl get nodes -o wide\n  knarr images load --all-nodes%s ARCHIVE.tar\nknarr dev down%s removes it all again.",
		time.Since(began).Round(10*time.Millisecond), c.Kubeconfig(), c.flags(), c.flags())
	return nil
}

// disables reports whether flags take a part away.
func disables(args []string, part string) bool {
	return strings.Contains(strings.Join(args, " "), part)
}

// serverArgs are the flags of a server, besides those of the user.
func (c *Cluster) serverArgs(n int, s state, more ...string) []string {
	args := append([]string{"--node-ip", s.addresses(n), "--embedded-registry-trusted"}, more...)
	if s.Servers > 1 {
		args = append(args, "--tls-san", s.address(0).String())
	}
	return args
}

// firstURL is where the first server is, serverURL where this host finds one.
func firstURL(s state) string {
	return "https://" + netip.AddrPortFrom(s.address(1), apiPort).String()
}

func serverURL(s state) string {
	if s.Servers > 1 {
		return "https://" + netip.AddrPortFrom(s.address(0), apiPort).String()
	}
	return firstURL(s)
}

// names are those of the nodes from one to another.
func (c *Cluster) names(first, last int) string {
	var names []string
	for n := first; n <= last; n++ {
		names = append(names, c.node(n))
	}
	return strings.Join(names, ",")
}

// plan gives the cluster's state: as it was made, or as it will be.
func (c *Cluster) plan(o Options) (state, error) {
	s, made, err := c.load()
	if err != nil {
		return s, err
	}
	if o.Outside {
		if there, err := hasDefaultRoute(); err != nil || !there {
			return s, errors.Join(err, errors.New("--outside: this host has no default route, so there is no outside; leave it out"))
		}
	}
	if made {
		if o.Nodes != 0 && o.Nodes < s.Nodes {
			return s, fmt.Errorf("--nodes %d: cluster %s has %d; knarr dev down%s removes it first", o.Nodes, c.name, s.Nodes, c.flags())
		}
		if o.Servers != 0 && o.Servers != s.Servers {
			return s, fmt.Errorf("--servers %d: cluster %s was made with %d; knarr dev down%s removes it first", o.Servers, c.name, s.Servers, c.flags())
		}
		if o.IPFamily != "" && o.IPFamily != s.ipFamily() {
			return s, fmt.Errorf("--ip-family %s: cluster %s was made with %s; knarr dev down%s removes it first", o.IPFamily, c.name, s.ipFamily(), c.flags())
		}
		s.Nodes = max(s.Nodes, o.Nodes)
		s.Outside = s.Outside || o.Outside
		return s, c.store(s)
	}
	if entries, err := os.ReadDir(c.dir); err == nil && len(entries) > 0 {
		return s, fmt.Errorf("%s holds files that are no cluster's; give another --name or --dir", c.dir)
	}
	s.Nodes, s.Servers, s.Outside = o.Nodes, max(1, o.Servers), o.Outside
	if s.Nodes == 0 {
		s.Nodes = max(2, s.Servers)
	}
	others, err := list(c.base)
	if err != nil {
		return s, err
	}
	var theirs []state
	for _, other := range others {
		theirs = append(theirs, other.state)
	}
	used, err := inUse(theirs)
	if err != nil {
		return s, err
	}
	if err = s.chooseAll(o.IPFamily, used); err != nil {
		return s, err
	}
	return s, c.store(s)
}

// A nodeProcesses are the nodes' processes that this command started.
type nodeProcesses struct {
	cluster *Cluster
	ended   chan error
	started map[int]time.Time // by number of the node
}

// start runs a node's knarr in its namespaces, unless it runs already. It
// outlives this command.
func (w *nodeProcesses) start(n int, verb string, args []string, say func(string, ...any)) error {
	c := w.cluster
	if cluster.Running(c.data(n)) {
		say("%s %s runs already", verb, c.node(n))
		return nil
	}
	cmd, err := c.command(n, verb, append([]string{"--node-name", c.node(n), "--config", os.DevNull}, args...)...)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(c.log(n), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	begin, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	began := time.Now()
	if err := c.within(n, spaces, cmd.Start); err != nil {
		return fmt.Errorf("start %s: %w", c.node(n), err)
	}
	w.started[n] = began
	say("starting %s %s (%s)", verb, c.node(n), c.log(n))
	run.Go("dev up: wait", func() {
		_ = cmd.Wait()
		w.ended <- fmt.Errorf("%s ended: %s; its log is %s, and knarr dev down%s removes everything", c.node(n), lastLine(c.log(n), begin), c.log(n), c.flags())
	})
	return nil
}

// command is knarr on a node's data directory.
func (c *Cluster) command(n int, verb string, args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, append([]string{verb, "--data-dir", c.data(n)}, args...)...)
	cmd.Dir = "/"
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "KNARR_") && !strings.HasPrefix(v, "KUBECONFIG=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	return cmd, nil
}

// lastLine is the last line of a process's log, which it began at an offset.
func lastLine(file string, begin int64) string {
	b, err := os.ReadFile(file)
	if err != nil || int64(len(b)) <= begin {
		return "it said nothing"
	}
	lines := bytes.Split(bytes.TrimSpace(b[begin:]), []byte("\n"))
	return string(bytes.TrimPrefix(lines[len(lines)-1], []byte("knarr: ")))
}

// appear waits for a file that a node writes.
func (w *nodeProcesses) appear(ctx context.Context, file string) error {
	return w.until(ctx, func(context.Context) error {
		_, err := os.Stat(file)
		return err
	})
}

// until asks again until there is no error, or a node has ended.
func (w *nodeProcesses) until(ctx context.Context, ok func(context.Context) error) error {
	for {
		err := ok(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case err := <-w.ended:
			return err
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return fmt.Errorf("interrupted; knarr dev up%[1]s goes on, knarr dev down%[1]s removes everything", w.cluster.flags())
			}
			return fmt.Errorf("not ready in time: %w; the logs are %s, and knarr dev down%s removes everything", err, filepath.Join(w.cluster.dir, "*.log"), w.cluster.flags())
		}
	}
}

// writeKubeconfig gives the administrator's as it serves on this host.
func (c *Cluster) writeKubeconfig(s state) error {
	cfg, err := clientcmd.LoadFromFile(cluster.Kubeconfig(c.data(1)))
	if err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", c.node(1), err)
	}
	for _, to := range cfg.Clusters {
		to.Server = serverURL(s)
	}
	b, err := clientcmd.Write(*cfg)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	next := c.Kubeconfig() + ".new"
	if err := os.WriteFile(next, b, 0o600); err != nil {
		return err
	}
	return os.Rename(next, c.Kubeconfig())
}
