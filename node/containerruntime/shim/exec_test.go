package shim

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

// A delete that was done and not heard of is done once more.
func TestDeletedTwice(t *testing.T) {
	c := &task{bundle: t.TempDir()}
	if err := os.WriteFile(filepath.Join(c.bundle, savedName), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.deleted(); err != nil {
			t.Error(err)
		}
	}
	c.bundle = filepath.Join(c.bundle, "gone")
	if err := c.deleted(); err != nil {
		t.Error(err)
	}
}

// A container that stops its execs halfway gets no more of this program's threads.
func TestStartsAreBounded(t *testing.T) {
	c := &task{key: key{"k8s.io", "c"}, init: newProcess("", stdio{}), execs: map[string]*process{}, starting: maxStarting}
	if err := c.startExec(newProcess("e", stdio{})); !errors.Is(err, errdefs.ErrResourceExhausted) {
		t.Errorf("one too many: %v", err)
	}
	if c.starting != maxStarting {
		t.Errorf("%d are being started", c.starting)
	}
}
