package vm

import (
	"slices"
	"strings"
)

// A result is a test's, with the lines from its beginning to its end.
type result struct {
	name, outcome string
	took          string // as go test prints it
	output        string
}

// results are those of the tests that are no part of another, as go test -v
// prints them. One that began and did not end has failed.
func results(output string) (all []result) {
	var lines strings.Builder
	running := ""
	end := func(name, outcome, took string) {
		all = append(all, result{name, outcome, took, lines.String()})
		lines.Reset()
		running = ""
	}
	for line := range strings.Lines(output) {
		if name, ok := strings.CutPrefix(line, "=== RUN   "); ok && !strings.Contains(name, "/") {
			running = strings.TrimSpace(name)
		}
		lines.WriteString(line)
		if rest, ok := strings.CutPrefix(line, "--- "); ok {
			outcome, rest, _ := strings.Cut(rest, ": ")
			name, took, _ := strings.Cut(strings.TrimSpace(rest), " ")
			end(name, outcome, took)
		}
	}
	if running != "" {
		end(running, "FAIL", "")
	}
	return all
}

func failed(all []result) bool {
	return slices.ContainsFunc(all, func(r result) bool { return r.outcome == "FAIL" })
}
