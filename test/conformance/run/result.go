package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// A verdict is how a spec ended.
type verdict string

const (
	passed  verdict = "passed"
	failed  verdict = "failed"
	skipped verdict = "skipped"
)

// A result is one spec's.
type result struct {
	name    string
	verdict verdict
	took    time.Duration
	why     string // the failure
	output  string
}

// judge finds the verdicts on the specs of these names. A suite that failed
// before its specs is an error.
func judge(names []string, specs []types.SpecReport) ([]result, error) {
	found := map[string]types.SpecReport{}
	for _, s := range specs {
		switch {
		case s.LeafNodeType == types.NodeTypeIt:
			found[s.FullText()] = s
		case s.Failed():
			return nil, fmt.Errorf("the suite's own %s failed: %s", s.LeafNodeType, s.FailureMessage())
		}
	}
	var results []result
	for _, n := range names {
		s, ok := found[n]
		r := result{name: n, verdict: skipped, took: s.RunTime}
		switch {
		case !ok:
			r.verdict, r.why = failed, "the suite has no such spec"
		case s.State == types.SpecStatePassed:
			r.verdict = passed
		case s.State == types.SpecStateInterrupted:
			r.why = "cut off"
		case s.Failed():
			r.verdict, r.why = failed, s.FailureMessage()
			r.output = s.CombinedOutput()
		case s.StartTime.IsZero(): // never begun: the run was ended before
			r.why = "not run"
		default:
			r.why = s.FailureMessage()
		}
		results = append(results, r)
	}
	return results, nil
}

// conclude writes what failed, keeps or grows the list, and fails if a spec of
// the list did, or if one passed that is said not to run here.
func conclude(w io.Writer, o options, l lists, results []result) error {
	slices.SortFunc(results, func(a, b result) int { return strings.Compare(a.name, b.name) })
	count := map[verdict]int{}
	var broken, now, runs []string
	for _, r := range results {
		count[r.verdict]++
		switch r.verdict {
		case failed:
			fmt.Fprintf(w, "failed: %s\n", r.name)
			if err := keepFailure(o.out, r); err != nil {
				return err
			}
			if slices.Contains(l.passing, r.name) {
				broken = append(broken, r.name)
			}
		case passed:
			if _, ok := l.left[r.name]; ok {
				runs = append(runs, r.name)
			} else {
				now = append(now, r.name)
			}
		}
	}
	if err := writeTimes(filepath.Join(o.out, "times.txt"), results); err != nil {
		return err
	}
	if o.update {
		if err := writeList(o.list, append(now, l.passing...)); err != nil {
			return err
		}
	}
	for _, n := range broken {
		fmt.Fprintf(w, "in %s, but failed: %s\n", o.list, n)
	}
	for _, n := range runs {
		fmt.Fprintf(w, "in %s, but passed: %s\n", o.left, n)
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", count[passed], count[failed], count[skipped])
	switch {
	case len(broken) > 0:
		return fmt.Errorf("%d specs of %s failed", len(broken), o.list)
	case len(runs) > 0:
		return fmt.Errorf("%d specs of %s passed; take them out", len(runs), o.left)
	case count[passed]+count[failed] == 0:
		return errors.New("no spec ran")
	}
	return nil
}

var notName = regexp.MustCompile(`[^A-Za-z0-9]+`)

// keepFailure writes a file for a failed spec.
func keepFailure(out string, r result) error {
	dir := filepath.Join(out, "failed")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name := strings.Trim(notName.ReplaceAllString(r.name, "-"), "-")
	return os.WriteFile(filepath.Join(dir, name[:min(len(name), 200)]+".log"), []byte(r.name+"\n\n"+r.why+"\n\n"+r.output), 0o644)
}

// writeTimes says how long each spec took, the longest first, and why one was
// skipped.
func writeTimes(path string, results []result) error {
	byTime := slices.SortedFunc(slices.Values(results), func(a, b result) int { return int(b.took - a.took) })
	var b strings.Builder
	for _, r := range byTime {
		fmt.Fprintf(&b, "%7.1f s  %-7s  %s\n", r.took.Seconds(), r.verdict, r.name)
		if r.verdict == skipped {
			fmt.Fprintf(&b, "%s%s\n", strings.Repeat(" ", 20), strings.ReplaceAll(r.why, "\n", " "))
		}
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
