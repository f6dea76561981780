// Command bench measures knarr and upstream's Kubernetes v1.36.3 alternately on
// this machine, with the same client, TLS and fsync on and limits of rate
// lifted, and prints median, spread and ratio of every line. It reads /proc and
// writes a Markdown table and a chart of it, and below a directory of its own
// while it runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"

	"knarr/test/bench/rig"

	"k8s.io/klog/v2"
)

// A side is one of the two that are compared.
type side string

const (
	knarr    side = "knarr"
	upstream side = "upstream"
)

// A run measures one side once and calls put for each figure.
type run struct {
	e    *env
	side side
	put  func(line string, value float64)
	// pass lets the other side do as much before more is measured.
	pass func(context.Context) error
}

type env struct {
	programs rig.Programs
	dir      string
	image    string
	scale    float64
	profiles string
}

// A bench is what BENCH= selects.
type bench struct {
	name       string
	lines      []line
	run        func(context.Context, *run) error
	asked      bool // runs only when it is asked for: it takes many minutes
	alternates bool // both sides are up at once, and take turns
	pods       bool // runs some, on upstream's node too
	// programs builds others of upstream's, nil if there are none.
	programs func(rig.Programs, context.Context) error
}

// A line is one row of the table.
type line struct {
	name, unit string
	high       bool    // more is better
	target     float64 // how many times better than upstream it shall be; 0: none
}

// benches in the order of TARGETS.
var benches = []bench{
	{name: "api", lines: apiLines, run: runAPI, alternates: true},
	{name: "watch", lines: watchLines, run: runWatch, alternates: true},
	{name: "sched", lines: schedLines, run: runSched},
	{name: "deploy", lines: deployLines, run: runDeploy, alternates: true},
	{name: "controllers", lines: controllersLines, run: runControllers, asked: true},
	{name: "node", lines: nodeLines, run: runNode, pods: true},
	{name: "density", lines: densityLines, run: runDensity, asked: true, pods: true},
	{name: "proxy", lines: proxyLines(100, 1000), run: runProxy(100, 1000), asked: true},
	{name: "proxy-large", lines: proxyLines(10_000, 30_000, 44_000), run: runProxy(10_000, 30_000, 44_000), asked: true},
	{name: "dns", lines: dnsLines, run: runDNS, asked: true, alternates: true, programs: rig.Programs.BuildCoreDNS},
	{name: "select", lines: selectLines, run: runSelect, asked: true},
}

func main() {
	// The client shares the CPUs with the servers: its heap is small, and would
	// be collected fifty times a second; one that only grew would cost page faults.
	debug.SetGCPercent(1000)
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	var (
		repository = flag.String("repository", "../..", "`directory` of the repository")
		cache      = flag.String("cache", "", "`directory` of built upstream programs (default: knarr in the user's cache directory)")
		work       = flag.String("dir", "", "`directory` to run in (default: a temporary one)")
		rounds     = flag.Int("rounds", 3, "`number` of runs of each side")
		which      = flag.String("bench", "", "`names`, comma separated, of what to measure (default: all): "+names())
		only       = flag.String("side", "", "measure only `knarr` or upstream")
		against    = flag.String("against", "", "another `knarr`, in upstream's place: the one before a change")
		out        = flag.String("out", "", "write the table to this `file` too, and its chart beside it")
		chartOf    = flag.String("chart", "", "draw the table in this `file` into an SVG beside it, and measure nothing")
		scale      = flag.Float64("scale", 1, "`factor` on the counts, for a quick look")
		profiles   = flag.String("profiles", "", "`directory` for CPU profiles of the API server, one for each measurement")
	)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := func() error {
		if *chartOf != "" {
			return writeChart(*chartOf)
		}
		selected, err := choose(*which)
		if err != nil {
			return err
		}
		programs, err := rig.Find(*repository, *cache)
		if err != nil {
			return err
		}
		if *against != "" {
			if programs.Against, err = exec.LookPath(*against); err != nil {
				return fmt.Errorf("-against: %w", err)
			}
			if programs.Against, err = filepath.Abs(programs.Against); err != nil {
				return err
			}
		}
		if err := rig.Isolate(ctx, func(ctx context.Context) error { return build(ctx, programs, selected) }); err != nil {
			return err
		}
		return start(ctx, programs, selected, *work, *rounds, side(*only), *out, *scale, *profiles)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func names() string {
	var out []string
	for _, b := range benches {
		out = append(out, b.name)
	}
	return strings.Join(out, ",")
}

// choose are the benches of those names; all that need not be asked for when there are none.
func choose(which string) (selected []bench, err error) {
	if which == "" {
		return slices.DeleteFunc(slices.Clone(benches), func(b bench) bool { return b.asked }), nil
	}
	for name := range strings.SplitSeq(which, ",") {
		i := slices.IndexFunc(benches, func(b bench) bool { return b.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no bench %q; there are %s", name, names())
		}
		selected = append(selected, benches[i])
	}
	return selected, nil
}

// build builds what of upstream the benches want.
func build(ctx context.Context, programs rig.Programs, selected []bench) error {
	err := programs.Build(ctx, anyPods(selected))
	for _, b := range selected {
		if err == nil && b.programs != nil {
			err = b.programs(programs, ctx)
		}
	}
	return err
}

func anyPods(selected []bench) bool {
	return slices.ContainsFunc(selected, func(b bench) bool { return b.pods })
}

func start(ctx context.Context, programs rig.Programs, selected []bench, work string, rounds int, only side, out string, scale float64, profiles string) (err error) {
	if work == "" {
		if work, err = os.MkdirTemp("", "knarr-bench-"); err != nil {
			return err
		}
		defer os.RemoveAll(work)
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	e := &env{programs: programs, dir: work, scale: scale, profiles: profiles}
	if anyPods(selected) {
		if e.image, err = rig.TestImage(ctx, programs, work); err != nil {
			return err
		}
	}
	results := newResults()
	began := time.Now()
	var faults []error
	for round := range rounds {
		for _, b := range selected {
			at := time.Now()
			for s, err := range b.both(ctx, e, only, func(s side, line string, v float64) { results.put(b, line, s, round, v) }) {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				what := fmt.Sprintf("round %d of %d: %s on %s", round+1, rounds, b.name, s)
				if err != nil {
					err = fmt.Errorf("%s: %w", what, err)
					faults = append(faults, err)
					fmt.Fprintln(os.Stderr, err)
					continue
				}
				fmt.Fprintf(os.Stderr, "%s: %s\n", what, time.Since(at).Round(time.Second))
			}
		}
	}
	other := "upstream v1.36.3"
	if programs.Against != "" {
		other = "the other knarr"
	}
	table := results.markdown(selected, other, rounds, time.Since(began))
	fmt.Print(table)
	if out != "" {
		if err := os.WriteFile(out, []byte(table), 0o644); err != nil {
			faults = append(faults, err)
		} else if _, _, err := bars(table); err == nil { // with one side alone there is nothing to draw
			faults = append(faults, writeChart(out))
		}
	}
	return errors.Join(faults...)
}

// both measures both sides, or only one, and says how each ended.
func (b bench) both(ctx context.Context, e *env, only side, put func(s side, line string, v float64)) iter.Seq2[side, error] {
	return func(yield func(side, error) bool) {
		t := newAlternation(knarr)
		var wg sync.WaitGroup
		var ended [2]error
		sides := []side{knarr, upstream}
		for i, s := range sides {
			if only != "" && only != s {
				t.leave(s)
				continue
			}
			r := &run{e: e, side: s, put: func(line string, v float64) { put(s, line, v) }, pass: func(context.Context) error { return nil }}
			if b.alternates {
				r.pass = func(ctx context.Context) error { return t.pass(ctx, s) }
			}
			wg.Go(func() {
				defer t.leave(s)
				if ended[i] = t.wait(ctx, s); ended[i] == nil {
					ended[i] = b.run(ctx, r)
				}
			})
		}
		wg.Wait()
		for i, s := range sides {
			if (only == "" || only == s) && !yield(s, ended[i]) {
				return
			}
		}
	}
}

// count is a number of operations, scaled.
func (r *run) count(n int) int { return max(1, int(float64(n)*r.e.scale)) }

// controlPlane starts a side with an API server and its store, and with the
// controllers and the scheduler when they are wanted.
func (r *run) controlPlane(ctx context.Context, whole bool) (*rig.Cluster, error) {
	c, err := r.startCluster(ctx, whole)
	if err == nil {
		c.Took = time.Since(c.Began)
	}
	return c, err
}

func (r *run) startCluster(ctx context.Context, whole bool) (*rig.Cluster, error) {
	dir := filepath.Join(r.e.dir, string(r.side))
	if programs, own := r.programs(); own {
		if whole {
			return rig.Knarr(ctx, programs, dir, false)
		}
		parts, err := rig.Parts(ctx, programs)
		if err != nil {
			return nil, err
		}
		return rig.Knarr(ctx, programs, dir, false, parts...)
	}
	if whole {
		return rig.Upstream(ctx, r.e.programs, dir, "kube-controller-manager", "kube-scheduler")
	}
	return rig.Upstream(ctx, r.e.programs, dir)
}

// programs are those of this side, and whether its Kubernetes is knarr's.
func (r *run) programs() (p rig.Programs, own bool) {
	p = r.e.programs
	if r.side == knarr {
		return p, true
	}
	p.Knarr = p.Against
	return p, p.Against != ""
}

// startPrepared is a control plane with a client and the namespace of the load.
func (r *run) startPrepared(ctx context.Context, whole bool) (*rig.Cluster, *kubernetes.Clientset, error) {
	c, err := r.controlPlane(ctx, whole)
	if err != nil {
		return nil, nil, err
	}
	client, err := c.Client()
	if err == nil {
		err = prepare(ctx, client)
	}
	if err != nil {
		c.Stop()
		return nil, nil, err
	}
	return c, client, nil
}
