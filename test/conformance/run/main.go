// Command run runs the conformance specs of upstream's e2e suite, or with
// -beyond the other ones, against a cluster: one that it starts with this
// repository's knarr and removes again, or the one of -kubeconfig; with -node those of
// the suite for a single node. It reads and, with -update, writes passing.txt,
// e2e-passing.txt or e2e-node-passing.txt, reads e2e-left.txt or e2e-node-left.txt, and
// keeps what was said under build/conformance, build/e2e or build/e2e-node.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	kubeconfig  string
	nodes       int
	zones       int
	name        string
	dataDir     string
	flags       string
	ipFamily    string
	beyond      bool
	node        bool
	focus, skip string
	procs       int
	timeout     time.Duration
	out         string
	given       bool // out is the user's choice
	list        string
	left        string
	without     string
	try         bool
	update      bool
	sample      string
	budget      time.Duration
	keep        bool
}

func main() {
	if as := map[string]func([]string) error{"systemctl": asSystemctl, "sudo": asSudo}[filepath.Base(os.Args[0])]; as != nil {
		if err := as(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` that leads to an existing cluster, which must have the images or reach their registry")
	flag.IntVar(&o.nodes, "nodes", 2, "`number` of nodes of the cluster that is started")
	flag.IntVar(&o.zones, "zones", 0, "`number` of zones that the nodes of that cluster are in, one after the other; none of them is then one of the control plane's (default: in none)")
	flag.StringVar(&o.name, "name", "conformance", "`name` of the cluster that is started; runs at the same time need one each, and a -data-dir")
	flag.StringVar(&o.dataDir, "data-dir", "/var/lib/knarr-conformance", "`directory` of the cluster that is started")
	flag.StringVar(&o.flags, "flags", "", "more `flags` for the server that is started")
	flag.StringVar(&o.ipFamily, "ip-family", "", "address `family` of the cluster of several nodes that is started: ipv4, ipv6 or dual (default: ipv4)")
	flag.BoolVar(&o.beyond, "beyond", false, "run specs that are not marked Conformance, in place of those that are")
	flag.BoolVar(&o.node, "node", false, "run upstream's suite for a single node, whose kubelet it configures and starts again, in place of the other")
	flag.StringVar(&o.focus, "focus", "", "run only specs whose name matches this `regexp`")
	flag.StringVar(&o.skip, "skip", "", "run no spec whose name matches this `regexp`")
	flag.IntVar(&o.procs, "procs", 8, "how `many` specs run at once, those marked Serial and of load balancers aside")
	flag.DurationVar(&o.timeout, "timeout", 3*time.Hour, "the longest `time` for all specs")
	flag.StringVar(&o.out, "out", "", "`directory` for logs and reports (default ../../build/conformance, or with -beyond ../../build/e2e)")
	flag.StringVar(&o.list, "list", "", "`file` with the names of the specs that pass (default passing.txt, or with -beyond e2e-passing.txt)")
	flag.StringVar(&o.left, "left", "", "`file` with the specs that cannot run here, each under its reason (default e2e-left.txt, or with -node e2e-node-left.txt)")
	flag.StringVar(&o.without, "without", "", "`file` with specs that are not run, whether the suite has them here or not")
	flag.BoolVar(&o.try, "try", false, "run the specs of -left too: one that passes is there for no reason")
	flag.BoolVar(&o.update, "update", false, "add the specs that passed to the list")
	flag.StringVar(&o.sample, "sample", "", "run a part of the list that this `word` chooses, as much as -budget allows")
	flag.DurationVar(&o.budget, "budget", 10*time.Minute, "the `time` for -sample, all preparation aside")
	flag.BoolVar(&o.keep, "keep", false, "leave the cluster running")
	flag.Parse()
	o.given = o.out != ""
	if o.node {
		o.out, o.list, o.left = cmp.Or(o.out, "../../build/e2e-node"), cmp.Or(o.list, "e2e-node-passing.txt"), cmp.Or(o.left, "e2e-node-left.txt")
	}
	if o.beyond {
		o.out, o.list = cmp.Or(o.out, "../../build/e2e"), cmp.Or(o.list, "e2e-passing.txt")
	}
	o.out, o.list, o.left = cmp.Or(o.out, "../../build/conformance"), cmp.Or(o.list, "passing.txt"), cmp.Or(o.left, "e2e-left.txt")

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	if o.out, err = filepath.Abs(o.out); err != nil {
		return err
	}
	for _, re := range []string{o.focus, o.skip} {
		if _, err := regexp.Compile(re); err != nil {
			return fmt.Errorf("read -focus and -skip: %w", err)
		}
	}
	if o.node {
		return runNode(ctx, o)
	}
	var l lists
	if l.passing, err = readList(o.list); err != nil {
		return err
	}
	if l.left, l.whole, err = readLeft(o.left); err != nil {
		return err
	}
	if l.without, err = readWithout(o.without); err != nil {
		return err
	}
	if l.missing, err = missingDrivers(o); err != nil {
		return err
	}
	if err := makeOut(o.out, o.given); err != nil {
		return err
	}
	programs, err := build(ctx, "./upstream", "e2e.test", "ginkgo")
	if err != nil {
		return err
	}
	knarr, err := filepath.Abs("../../bin/knarr")
	if err != nil {
		return err
	}
	driver, err := filepath.Abs("local-path.yaml")
	if err != nil {
		return err
	}
	kubeconfig := o.kubeconfig
	if kubeconfig == "" {
		sets := []string{"./images", "conformance"}
		if o.beyond || o.node {
			sets = append(sets, "beyond")
		}
		archives, err := build(ctx, sets...)
		if err != nil {
			return err
		}
		c := newCluster(knarr, o)
		defer func() {
			if o.keep {
				fmt.Println("the cluster stays; remove it with:", c.downCommand())
			} else {
				err = errors.Join(err, c.down())
			}
		}()
		if err := c.up(ctx); err != nil {
			return err
		}
		fmt.Println("loading the suite's images")
		for _, a := range archives {
			if err := c.load(ctx, a); err != nil {
				return err
			}
		}
		if err := errors.Join(c.spread(ctx, o.zones), c.room(ctx)); err != nil {
			return err
		}
		if o.beyond {
			if driver, err = c.besides(ctx, driver, !l.lacks(snapshotters)); err != nil {
				return err
			}
		}
		stop, err := serveRegistry(ctx, c, archives)
		if err != nil {
			return err
		}
		defer stop()
		kubeconfig = c.kubeconfig()
	}
	// The program that bin/knarr holds: one spec copies it into a pod.
	kubectl, err := filepath.Abs("../../build/kubectl")
	if err != nil {
		return err
	}
	s := &suite{e2e: programs[0], ginkgo: programs[1], out: o.out, procs: o.procs,
		flags: []string{"--kubeconfig=" + kubeconfig, "--provider=skeleton", "--storage.testdriver=" + driver, "--kubectl-path=" + kubectl, "--e2e-output-dir=" + o.out}}
	if o.kubeconfig == "" { // else it counts them, but with several processes only in the first
		s.flags = append(s.flags, fmt.Sprintf("--num-nodes=%d", o.nodes))
	}
	results, err := s.choose(ctx, o, l)
	if err != nil && len(results) == 0 {
		return err
	}
	return errors.Join(err, conclude(os.Stdout, o, l, results))
}

// build runs one of this module's programs and returns the paths it prints.
func build(ctx context.Context, args ...string) ([]string, error) {
	fmt.Println("building", strings.Join(args, " "), "unless it is there")
	cmd := exec.CommandContext(ctx, "go", append([]string{"run"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", strings.Join(args, " "), err)
	}
	return strings.Fields(string(out)), nil
}

// mark is a file in folders that a run has written: what else is at -out is not the run's to
// remove.
const mark = ".conformance"

// makeOut makes an empty folder for a run, in the place of an earlier run's. Where it is the
// user's choice, what no run has written stays.
func makeOut(dir string, given bool) error {
	switch found, err := os.ReadDir(dir); {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case len(found) > 0:
		if _, err := os.Stat(filepath.Join(dir, mark)); err != nil && given {
			return fmt.Errorf("-out %s: its files are not of an earlier run; give a directory that is empty, or remove it", dir)
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, mark), nil, 0o644)
}
