package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"knarr/test/conformance/programs"
)

// TestDrivers: an image whose program the user has not put into the cache is left
// out, and the archive's name changes when the program appears or changes.
func TestDrivers(t *testing.T) {
	dir := t.TempDir()
	set := []image{{names: []string{"r/plain:1"}}, sidecar("one", "v1"), sidecar("two", "v2")}
	name := func() string {
		key, err := fingerprint(set, dir)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	path := filepath.Join(dir, "two")
	none := name()
	if have, missing := present(set, dir); len(have) != 1 || !slices.Equal(missing, []string{"one v1", "two v2"}) {
		t.Errorf("%d images, missing %q", len(have), missing)
	}
	if err := os.WriteFile(path, []byte("a"), 0o755); err != nil {
		t.Fatal(err)
	}
	first := name()
	if have, missing := present(set, dir); len(have) != 2 || have[1].driver != "two" || !slices.Equal(missing, []string{"one v1"}) {
		t.Errorf("%d images, missing %q", len(have), missing)
	}
	again := name()
	if err := os.Chtimes(path, time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if none == first || first != again || first == name() {
		t.Errorf("names: %s without, %s and %s with it, %s when it changed", none, first, again, name())
	}
}

// TestDriverNames: the images of storage drivers are made of the programs that
// the run looks for.
func TestDriverNames(t *testing.T) {
	var names []string
	for _, im := range slices.Concat(sets["conformance"], sets["beyond"]) {
		if im.driver != "" {
			names = append(names, im.driver)
		}
	}
	if slices.Sort(names); !slices.Equal(names, programs.Drivers) {
		t.Errorf("images of %q, want %q", names, programs.Drivers)
	}
}
