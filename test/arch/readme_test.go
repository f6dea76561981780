package arch

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pages are what newcomers read.
var pages = []string{"README.md", "README.ko.md", "ARCHITECTURE.md", "CONTRIBUTING.md"}

var (
	verbCalled   = regexp.MustCompile("(?m)(?:`|^\\$ (?:sudo )?)(?:bin/)?knarr ([a-z]+(?:-[a-z]+)*)")
	targetCalled = regexp.MustCompile("(?m)(?:`|^\\$ (?:sudo )?|^(?:sudo )?)make ([a-z0-9]+(?:-[a-z0-9]+)*)")
	linked       = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	verbDefined  = regexp.MustCompile(`(?m)^\t+\{(?:name: )?"([a-z-]+)", `)
	targetSet    = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
)

// TestPages: every command that a page tells to type exists, and so does every
// file that it links to.
func TestPages(t *testing.T) {
	verbs := found(t, "cmd/knarr/table.go", verbDefined)
	verbs["help"] = true
	maps.Copy(verbs, found(t, "cluster/alone/alone.go", verbDefined))
	targets := found(t, "Makefile", targetSet)
	if len(verbs) < 4 || len(targets) < 4 {
		t.Fatalf("found only verbs %v and targets %v", verbs, targets)
	}
	for _, page := range pages {
		for v := range found(t, page, verbCalled) {
			if !verbs[v] {
				t.Errorf("%s: there is no knarr %s", page, v)
			}
		}
		for v := range found(t, page, targetCalled) {
			if !targets[v] {
				t.Errorf("%s: there is no make %s", page, v)
			}
		}
		for file := range found(t, page, linked) {
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s links to %s: %v", page, file, err)
			}
		}
	}
}

// TestChart: the chart of the figures has those of the page, in its order. It is
// drawn by a module of its own, whose tests compare it byte by byte.
func TestChart(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(filepath.Join(root, "docs/benchmarks.svg"))
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(page), "\nThe ratios of the whole run before")
	rows := regexp.MustCompile(`(?m)^\| (.+?) \| .+ \| .+ \| ([\d.]+×) ± .*\|$`).FindAllStringSubmatch(table, -1)
	if len(rows) < 20 {
		t.Fatalf("found only %d figures in docs/benchmarks.md", len(rows))
	}
	rest := string(svg)
	for _, row := range rows {
		for _, want := range row[1:] {
			var found bool
			if _, rest, found = strings.Cut(rest, ">"+want+"<"); !found {
				t.Fatalf("docs/benchmarks.svg lacks %s of the line %s of docs/benchmarks.md: make pictures", want, row[1])
			}
		}
	}
}

// TestMacros: what the Makefile calls is defined. Make expands any other name to
// nothing, and says so to nobody.
func TestMacros(t *testing.T) {
	defined := found(t, "Makefile", regexp.MustCompile(`(?m)^define (\w+)$`))
	called := found(t, "Makefile", regexp.MustCompile(`\$\(call (\w+),`))
	if len(called) == 0 {
		t.Fatal("found no calls in the Makefile")
	}
	for name := range called {
		if !defined[name] {
			t.Errorf("Makefile: there is no macro %s", name)
		}
	}
}

func found(t *testing.T, file string, re *regexp.Regexp) map[string]bool {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, m := range re.FindAllSubmatch(b, -1) {
		all[string(m[1])] = true
	}
	return all
}

var required = regexp.MustCompile(`(?m)^\t(\S+/\S+) v\S+$`)

// TestRequirements: each module that go.mod requires directly has its reason.
func TestRequirements(t *testing.T) {
	reasons := found(t, "ARCHITECTURE.md", regexp.MustCompile(`(?m)^\| (\S+/\S+) \|`))
	modules := found(t, "go.mod", required)
	if len(modules) < 20 {
		t.Fatalf("found only %v in go.mod", modules)
	}
	for m := range modules {
		if !reasons[m] {
			t.Errorf("ARCHITECTURE.md gives no reason for %s", m)
		}
	}
	for m := range reasons {
		if !modules[m] {
			t.Errorf("ARCHITECTURE.md gives a reason for %s, which go.mod does not require directly", m)
		}
	}
}

// TestPicture: the tree in ARCHITECTURE.md has every room of the real one.
func TestPicture(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range tree(t) {
		parts := strings.Split(p.name(), "/")
		if room := parts[:min(2, len(parts))]; !strings.Contains(string(page), room[len(room)-1]+"/") {
			t.Errorf("ARCHITECTURE.md does not show %s", strings.Join(room, "/"))
		}
	}
}
