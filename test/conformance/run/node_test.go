package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestPlace: a program is the same file under its other name, and a copy of it where the two
// are on different file systems.
func TestPlace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, []byte("content"), 0o755); err != nil {
		t.Fatal(err)
	}
	elsewhere, err := os.MkdirTemp("/dev/shm", "place-")
	if err != nil {
		t.Fatal("needs another file system: ", err)
	}
	defer os.RemoveAll(elsewhere)
	for _, dir := range []string{t.TempDir(), elsewhere} {
		name := filepath.Join(dir, "other")
		if err := place(file, name); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(name)
		if st, statErr := os.Stat(name); err != nil || statErr != nil || string(b) != "content" || st.Mode().Perm() != 0o755 {
			t.Errorf("%s: %q, %v, %v, %v", name, b, st, err, statErr)
		}
	}
}
