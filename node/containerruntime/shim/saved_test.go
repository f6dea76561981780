package shim

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHalfDone has a program end while it makes one container and removes another: the next
// one removes what is left, of which containerd tells nobody.
func TestHalfDone(t *testing.T) {
	root := t.TempDir()
	s := &Service{bundles: []string{t.TempDir()}, tasks: map[key]*task{}}
	for id, init := range map[string]*process{"made": nil, "removed": {pid: 1 << 30}} {
		c := &task{key: key{"k8s.io", id}, bundle: filepath.Join(s.bundles[0], "k8s.io", id), service: s, root: filepath.Join(root, "k8s.io"), init: init}
		kept := filepath.Join(c.root, id) // libcontainer's, whose state is not there yet, or no more
		for _, dir := range []string{c.bundle, kept} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mkfifo(filepath.Join(kept, "exec.fifo"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := c.save(nil); err != nil {
			t.Fatal(err)
		}

		s.restore(nil)
		if len(s.tasks) != 0 {
			t.Errorf("%s: it was taken up: %v", id, s.tasks)
		}
		if _, err := os.Stat(kept); !os.IsNotExist(err) {
			t.Errorf("%s: libcontainer's directory: %v", id, err)
		}
		if _, err := os.Stat(filepath.Join(c.bundle, deletedName)); err != nil {
			t.Errorf("%s: containerd would have it deleted again: %v", id, err)
		}
	}
}
