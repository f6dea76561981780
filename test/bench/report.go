package main

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// results holds every figure of every round.
type results struct {
	values map[string][]float64 // by bench, line and side; then by round, not a number where it failed
}

func newResults() *results { return &results{map[string][]float64{}} }

func (r *results) put(b bench, name string, s side, round int, v float64) {
	if !slices.ContainsFunc(b.lines, func(l line) bool { return l.name == name }) {
		panic("bench " + b.name + " has no line " + name)
	}
	key := b.name + "/" + name + "/" + string(s)
	for len(r.values[key]) < round {
		r.values[key] = append(r.values[key], math.NaN())
	}
	r.values[key] = append(r.values[key], v)
}

// stats are the median and the spread around it, as a part of it: half of what
// lies between the quartiles, or with fewer than four values between all.
func stats(v []float64) (median, spread float64) {
	s := slices.DeleteFunc(slices.Sorted(slices.Values(v)), math.IsNaN)
	if len(s) == 0 {
		return math.NaN(), math.NaN()
	}
	median = s[len(s)/2]
	if len(s)%2 == 0 {
		median = (s[len(s)/2-1] + median) / 2
	}
	if median == 0 {
		return 0, 0
	}
	out := len(s) / 4
	return median, (s[len(s)-1-out] - s[out]) / 2 / median
}

// markdown is the table of what was measured, of knarr and what it was measured
// against.
func (r *results) markdown(selected []bench, other string, rounds int, took time.Duration) string {
	var b strings.Builder
	host, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	fmt.Fprintf(&b, "%s, %d CPUs, Linux %s, %s, median of %d rounds (± half the distance of the quartiles), %s in all\n\n",
		time.Now().UTC().Format("2006-01-02"), runtime.NumCPU(), strings.TrimSpace(string(host)), runtime.Version(), rounds, took.Round(time.Second))
	fmt.Fprintf(&b, "| | knarr | %s | times better, round by round | goal |\n|---|---|---|---|---|\n", other)
	for _, bench := range selected {
		for _, l := range bench.lines {
			us, them := r.values[bench.name+"/"+l.name+"/"+string(knarr)], r.values[bench.name+"/"+l.name+"/"+string(upstream)]
			ours, s1 := stats(us)
			theirs, s2 := stats(them)
			ratio, s3 := stats(ratios(us, them, l.high))
			goal := ""
			if l.target > 0 {
				goal = fmt.Sprintf("%g×", l.target)
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", l.name, figure(ours, s1, l.unit), figure(theirs, s2, l.unit), times(ratio, s3), goal)
		}
	}
	return b.String()
}

// ratios says, round by round, how many times better the first is: what slows
// the machine for a minute slows both sides of a round.
func ratios(us, them []float64, high bool) []float64 {
	var all []float64
	for i := range min(len(us), len(them)) {
		if high {
			all = append(all, us[i]/them[i])
		} else {
			all = append(all, them[i]/us[i])
		}
	}
	return all
}

func times(v, spread float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return ""
	}
	return fmt.Sprintf("%.*f× ± %.0f %%", digitsOf(v), v, spread*100)
}

// digitsOf are the digits after the point that a ratio is worth.
func digitsOf(times float64) int {
	if times < 2 {
		return 2
	}
	return 1
}

func figure(v, spread float64, unit string) string {
	if math.IsNaN(v) {
		return ""
	}
	digits := 0
	if v < 10 {
		digits = 1
	}
	return fmt.Sprintf("%.*f %s ± %.0f %%", digits, v, unit, spread*100)
}
