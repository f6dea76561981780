package shim

import (
	"errors"
	"testing"

	"github.com/containerd/errdefs"
)

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
