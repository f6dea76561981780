package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStoragePath: the directory of local volumes is remembered, and stays while there are
// volumes in it.
func TestStoragePath(t *testing.T) {
	l, other := layout{t.TempDir()}, filepath.Join(t.TempDir(), "disk")
	inside := filepath.Join(l.dir, "storage")
	keep := func(dir, want, refused string) {
		t.Helper()
		got, err := l.keepStorage(dir)
		if refused != "" {
			if err == nil || !strings.Contains(err.Error(), refused) {
				t.Errorf("%q: %v, want %q", dir, err, refused)
			}
		} else if err != nil || got != want || l.storage() != want {
			t.Errorf("%q: %s, then %s, want %s: %v", dir, got, l.storage(), want, err)
		}
	}
	keep("", inside, "")
	keep(other, other, "")
	if err := os.MkdirAll(filepath.Join(other, ".volumes", "pvc-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	keep(other, other, "")
	keep("", "", "there are volumes in "+other)
	if err := os.Remove(filepath.Join(other, ".volumes", "pvc-1")); err != nil {
		t.Fatal(err)
	}
	keep("", inside, "")
}
