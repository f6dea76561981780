package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// A suite runs specs of e2e.test or e2e_node.test.
type suite struct {
	e2e, ginkgo, out string
	flags            []string // of the suite
	within           []string // the command that runs ginkgo, if it is not run by itself
	procs            int
	runs             int
}

// How specs are marked in their names.
const (
	conformance = `\[Conformance\]`
	serial      = `\[Serial\]`
	// loadBalancer are those whose Services ask for the same few addresses and ports.
	loadBalancer = `\[Feature:LoadBalancer\]`
	slow         = `\[Slow\]`
)

// choose runs what the flags ask for.
func (s *suite) choose(ctx context.Context, o options, l lists) ([]result, error) {
	if o.sample != "" {
		lots, missing := l.able(l.passing)
		results, err := s.sample(ctx, o, lots[0])
		return results, errors.Join(err, missing)
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	names, err := s.names(ctx)
	if err != nil {
		return nil, err
	}
	if err := l.members(names); err != nil {
		return nil, err
	}
	if err := l.stale(names); err != nil {
		return nil, err
	}
	together, alone := pick(o, l, names)
	if len(together)+len(alone) == 0 {
		return nil, errors.New("no spec matches -focus and -skip")
	}
	lots, missing := l.able(together, alone)
	results, err := s.both(ctx, lots[0], lots[1])
	if err == nil && o.beyond {
		err = s.again(ctx, o, l.passing, results)
	}
	return results, errors.Join(err, missing)
}

// both runs specs that may run beside others, and then those that must not.
func (s *suite) both(ctx context.Context, together, alone []string) ([]result, error) {
	results, err := s.run(ctx, together, s.procs)
	if err != nil {
		return results, err
	}
	more, err := s.run(ctx, alone, 1)
	return append(results, more...), err
}

// pick finds the specs that the flags ask for: those that may run beside others,
// and those that must not.
func pick(o options, l lists, names []string) (together, alone []string) {
	marked, focus, skip, single := regexp.MustCompile(conformance), regexp.MustCompile(o.focus), regexp.MustCompile(o.skip), regexp.MustCompile(serial+"|"+loadBalancer)
	for _, n := range names {
		_, left := l.left[n]
		switch {
		case !o.node && marked.MatchString(n) == o.beyond, left && !o.try:
		case slices.Contains(l.without, n):
		case !focus.MatchString(n), o.skip != "" && skip.MatchString(n):
		case single.MatchString(n):
			alone = append(alone, n)
		default:
			together = append(together, n)
		}
	}
	return together, alone
}

// sample runs specs of the list, in an order that the word decides, in small
// lots for as long as another lot fits into the budget.
func (s *suite) sample(ctx context.Context, o options, listed []string) (results []result, err error) {
	start := time.Now()
	names := shuffle(listed, o.sample)
	var longest time.Duration
	for lot := range slices.Chunk(names, 6*s.procs) {
		if time.Since(start)+longest > o.budget {
			break
		}
		began := time.Now()
		more, err := s.run(ctx, lot, s.procs)
		results = append(results, more...)
		if err != nil {
			return results, err
		}
		longest = max(longest, time.Since(began))
	}
	return results, s.again(ctx, o, listed, results)
}

// again gives each spec of the list that failed among others one more go by
// itself: what passes then is told, its log kept, and does not fail a push.
func (s *suite) again(ctx context.Context, o options, listed []string, results []result) error {
	for i, r := range results {
		if r.verdict != failed || !slices.Contains(listed, r.name) {
			continue
		}
		if err := keepFailure(o.out, r); err != nil {
			return err
		}
		alone, err := s.run(ctx, []string{r.name}, 1)
		if err != nil {
			return err
		}
		if alone[0].verdict == passed {
			fmt.Printf("failed among others, passed by itself: %s\n", r.name)
			results[i] = alone[0]
		}
	}
	return nil
}

// shuffle orders names by a hash of word and name. Specs that run alone and slow ones are
// left to full runs.
func shuffle(names []string, word string) []string {
	hash := func(n string) uint64 {
		h := fnv.New64a()
		h.Write([]byte(word + "\x00" + n))
		return h.Sum64()
	}
	out := slices.DeleteFunc(slices.Clone(names), regexp.MustCompile(serial+"|"+loadBalancer+"|"+slow).MatchString)
	slices.SortFunc(out, func(a, b string) int {
		switch x, y := hash(a), hash(b); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	return out
}

// names are all specs of the suite.
func (s *suite) names(ctx context.Context) ([]string, error) {
	path := filepath.Join(s.out, "specs.json")
	if err := s.exec(ctx, "specs.log", append([]string{s.e2e, "--ginkgo.dry-run", "--ginkgo.json-report=" + path}, s.flags...)...); err != nil {
		return nil, err
	}
	defer os.Remove(path)
	specs, err := readReport(path)
	var names []string
	for _, r := range specs {
		if r.LeafNodeType == types.NodeTypeIt {
			names = append(names, r.FullText())
		}
	}
	return names, err
}

// run runs the specs of these names, several at once.
func (s *suite) run(ctx context.Context, names []string, procs int) ([]result, error) {
	if len(names) == 0 {
		return nil, nil
	}
	s.runs++
	run := fmt.Sprintf("run%d", s.runs)
	fmt.Printf("running %d specs, %d at once; what they say is in %s\n", len(names), procs, filepath.Join(s.out, run+".log"))
	report := run + ".json"
	deadline, _ := ctx.Deadline()
	limit := time.Hour
	if !deadline.IsZero() {
		limit = time.Until(deadline)
	}
	args := append(slices.Clone(s.within), s.ginkgo, "--no-color", "--procs="+fmt.Sprint(procs), "--timeout="+limit.Round(time.Second).String(), "--output-dir="+s.out, "--json-report="+report, "--junit-report="+run+".xml")
	args = append(args, focus(names)...)
	args = append(args, s.e2e, "--")
	args = append(args, s.flags...)
	ran := s.exec(ctx, run+".log", args...)
	specs, err := readReport(filepath.Join(s.out, report))
	if err != nil {
		return nil, errors.Join(ran, err)
	}
	return judge(names, specs)
}

// focus is the flags that select specs by name, each below the length that the
// kernel allows an argument.
func focus(names []string) (flags []string) {
	for lot := range slices.Chunk(names, 100) {
		quoted := make([]string, len(lot))
		for i, n := range lot {
			quoted[i] = regexp.QuoteMeta(n)
		}
		flags = append(flags, "--focus=("+strings.Join(quoted, "|")+")$")
	}
	return flags
}

// exec runs a program, whose output is a log. It is told to stop when ctx ends
// and has a while for what it must undo.
func (s *suite) exec(ctx context.Context, log string, args ...string) error {
	f, err := os.Create(filepath.Join(s.out, log))
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// All of ginkgo's processes are told, as a terminal would.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 2 * time.Minute // the report comes last
	defer func() {
		if cmd.Process != nil { // what it started must not outlive it
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
	}()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %s: %w; see %s", filepath.Base(args[0]), err, f.Name())
	}
	return nil
}

func readReport(path string) ([]types.SpecReport, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var reports []types.Report
	if err := json.Unmarshal(b, &reports); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	var specs []types.SpecReport
	for _, r := range reports {
		specs = append(specs, r.SpecReports...)
	}
	return specs, nil
}
