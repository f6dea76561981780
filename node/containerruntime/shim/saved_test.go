package shim

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHalfMade has a program end while it makes a container: the next one removes what is
// left, of which containerd tells nobody.
func TestHalfMade(t *testing.T) {
	root := t.TempDir()
	s := &Service{bundles: t.TempDir(), tasks: map[key]*task{}}
	begun := &task{key: key{"k8s.io", "begun"}, bundle: filepath.Join(s.bundles, "k8s.io", "begun"), service: s, root: filepath.Join(root, "k8s.io")}
	kept := filepath.Join(begun.root, "begun")
	for _, dir := range []string{begun.bundle, kept} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(kept, "exec.fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := begun.save(nil); err != nil { // as create does before it makes anything
		t.Fatal(err)
	}

	s.restore()
	if len(s.tasks) != 0 {
		t.Errorf("it was taken up: %v", s.tasks)
	}
	if _, err := os.Stat(kept); !os.IsNotExist(err) {
		t.Errorf("libcontainer's directory of it: %v", err)
	}
	if _, err := os.Stat(filepath.Join(begun.bundle, deletedName)); err != nil {
		t.Errorf("containerd would have it deleted again: %v", err)
	}
}
