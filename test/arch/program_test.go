package arch

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"knarr/internal/need"
)

var update = flag.Bool("update", false, "write deps.txt anew")

// sizeLimit is the most that bin/knarr may weigh: people copy it to machines
// with little memory and slow lines.
const sizeLimit = 120 << 20

func TestSize(t *testing.T) {
	st, err := os.Stat(filepath.Join(root, "bin/knarr"))
	if errors.Is(err, fs.ErrNotExist) {
		need.Skip(t, "bin/knarr is not built; make build")
	}
	if err != nil {
		t.Fatal(err)
	}
	if st.Size() > sizeLimit {
		t.Errorf("bin/knarr has %.1f MB, more than %d", float64(st.Size())/(1<<20), sizeLimit>>20)
	}
}

// TestDeps: a module that is newly linked shows in review.
func TestDeps(t *testing.T) {
	pkgs, err := list("-deps", "./cmd/knarr")
	if err != nil {
		t.Fatal(err)
	}
	linked := map[string]bool{}
	for _, p := range pkgs {
		if p.Module != nil && p.Module.Path != strings.TrimSuffix(module, "/") {
			linked[p.Module.Path] = true
		}
	}
	var have []string
	for m := range linked {
		have = append(have, m)
	}
	slices.Sort(have)
	file := filepath.Join(root, "deps.txt")
	if *update {
		text := "# Modules linked into bin/knarr. go test ./test/arch -run TestDeps -update\n" + strings.Join(have, "\n") + "\n"
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := lines(t, file)
	for _, m := range have {
		if !slices.Contains(want, m) {
			t.Errorf("bin/knarr newly links %s; if it must, run with -update", m)
		}
	}
	for _, m := range want {
		if !linked[m] {
			t.Errorf("bin/knarr no longer links %s; run with -update", m)
		}
	}
}
