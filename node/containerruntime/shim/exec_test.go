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

// Containers that stop their execs halfway get no more of this program's threads, neither one
// nor all of them together.
func TestStartsAreBounded(t *testing.T) {
	for _, test := range []struct{ own, all int }{{maxStarting, maxStarting}, {3, maxStartingAll}} {
		s := &Service{}
		s.starting.Store(int32(test.all))
		c := &task{key: key{"k8s.io", "c"}, service: s, root: t.TempDir(), init: newProcess("", stdio{}), execs: map[string]*process{}, starting: test.own}
		if err := c.startExec(newProcess("e", stdio{})); !errors.Is(err, errdefs.ErrResourceExhausted) {
			t.Errorf("one too many: %v", err)
		}
		if c.starting != test.own || s.starting.Load() != int32(test.all) {
			t.Errorf("%d are being started, of all containers %d", c.starting, s.starting.Load())
		}
		s.starting.Store(0)
		c.starting = 0
		if err := c.startExec(newProcess("e", stdio{})); err == nil || errors.Is(err, errdefs.ErrResourceExhausted) {
			t.Errorf("one in a container that is not there: %v", err)
		}
		if c.starting != 0 || s.starting.Load() != 0 {
			t.Errorf("%d are being started after it, of all containers %d", c.starting, s.starting.Load())
		}
	}
}
