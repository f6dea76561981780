package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestOut: a run empties its own folder and no other that it was given.
func TestOut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	for range 2 { // one that is not there, and an earlier run's
		if err := makeOut(dir, true); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "log"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	home := t.TempDir()
	diary := filepath.Join(home, "diary")
	if err := os.WriteFile(diary, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := makeOut(home, true); err == nil {
		t.Error("a folder with files of others was taken")
	}
	if _, err := os.Stat(diary); err != nil {
		t.Error(err)
	}
	if err := makeOut(home, false); err != nil { // the default folder is the run's, whatever is in it
		t.Error(err)
	}
}
