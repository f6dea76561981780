// Package mutants proves that the tests which guard a hole would see it opened
// again. Each file of testdata names a source file, the lines that close the
// hole, the lines of a mutant without them, and the test that must fail on it.
// It reads the tree and writes nothing: mutants reach the compiler as an overlay.
package mutants

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

const root = "../.."

// A mutant is one file of testdata: a comment of lines "key: value" (hole, file,
// package, run), then one or several pairs of sections "old" and "new".
type mutant struct {
	hole, file, pkg, run string
	swaps                [][2]string
}

func parse(path string) (m mutant, err error) {
	a, err := txtar.ParseFile(path)
	if err != nil {
		return m, err
	}
	into := map[string]*string{"hole": &m.hole, "file": &m.file, "package": &m.pkg, "run": &m.run}
	for line := range strings.Lines(string(a.Comment)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if p := into[key]; p != nil {
			*p = value
		}
	}
	for key, p := range into {
		if *p == "" {
			return m, fmt.Errorf("%s has no line %q", path, key+": …")
		}
	}
	for i := 0; i+1 < len(a.Files); i += 2 {
		if a.Files[i].Name != "old" || a.Files[i+1].Name != "new" {
			return m, fmt.Errorf("%s: sections come in pairs, old and new", path)
		}
		m.swaps = append(m.swaps, [2]string{string(a.Files[i].Data), string(a.Files[i+1].Data)})
	}
	if len(m.swaps) == 0 || len(a.Files)%2 != 0 {
		return m, fmt.Errorf("%s: sections come in pairs, old and new", path)
	}
	return m, nil
}

// source is the mutant's file with the hole open. Each old text must be there
// just once, or nobody knows which hole is meant.
func (m mutant) source() (string, error) {
	b, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	text := string(b)
	for _, s := range m.swaps {
		if n := strings.Count(text, s[0]); n != 1 {
			return "", fmt.Errorf("%s holds %d times, not once:\n%s", m.file, n, s[0])
		}
		text = strings.Replace(text, s[0], s[1], 1)
	}
	return text, nil
}

// TestMutants opens each hole. Without KNARR_MUTANTS=1 (make mutants) it only
// checks that each mutant still applies.
func TestMutants(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txtar"), func(t *testing.T) {
			m, err := parse(f)
			if err != nil {
				t.Fatal(err)
			}
			text, err := m.source()
			if err != nil {
				t.Fatal(err)
			}
			if os.Getenv("KNARR_MUTANTS") == "" {
				return
			}
			if out, failed := m.test(t, text); !failed {
				t.Errorf("%s: %s passes on the mutant\n%s", m.hole, m.run, out)
			} else {
				t.Logf("%s: caught by %s: %s", m.hole, m.run, result(out))
			}
		})
	}
}

// test runs the guarding test on the mutant and reports whether it failed: as a
// test, for a mutant that does not compile proves nothing.
func (m mutant) test(t *testing.T, text string) (out string, failed bool) {
	dir := t.TempDir()
	mutated := filepath.Join(dir, "mutant.go")
	if err := os.WriteFile(mutated, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	at, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {at: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	json := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(json, overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-timeout=3m", "-overlay="+json, "-run", m.run, m.pkg)
	cmd.Dir = root
	b, err := cmd.CombinedOutput()
	out = string(b)
	switch {
	case strings.Contains(out, "[build failed]"), strings.Contains(out, "[setup failed]"), strings.Contains(out, "no tests to run"):
		t.Fatalf("%s: the mutant does not build or runs no test:\n%s", m.hole, out)
	case strings.Contains(out, "panic: test timed out after"):
		t.Fatalf("%s: the test did not end, which proves nothing:\n%s", m.hole, out)
	case err != nil && !strings.Contains(out, "FAIL"):
		t.Fatalf("%s: %v\n%s", m.hole, err, out)
	}
	return out, err != nil
}

// result is the first line by which a test said what is wrong.
func result(out string) string {
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); strings.Contains(line, "_test.go:") || strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") {
			return line
		}
	}
	return "failed"
}
