package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// TestStartsAreBounded: containers that stop their execs halfway get no more of this program's
// threads, neither one, nor those of a pod, nor all of them together; the error says which bound
// it was, and what has ended gives its place back.
func TestStartsAreBounded(t *testing.T) {
	named := func(name string, n int) key { return key{"k8s.io", fmt.Sprint(name, n)} }
	for which, test := range map[string]struct {
		already int
		pod     func(i int) key // of the containers before, which have one start each
		same    bool            // they are the same container
	}{
		"container c0 has 16":                   {maxStarting, func(int) key { return named("p", 0) }, true},
		"the containers of sandbox p0 have 32":  {maxStartingPod, func(int) key { return named("p", 0) }, false},
		"the containers of this node have 2000": {maxStartingAll, func(i int) key { return named("p", i+1) }, false},
		"the containers of this node have 1500": {maxStartingAll - keptStarting, func(i int) key { return named("p", max(0, i+1-fewStarting)) }, false},
		"":                                      {maxStartingAll - 1, func(i int) key { return named("p", i+1) }, false},
	} {
		s := &Service{}
		var backs []func()
		for i := range test.already {
			c := named("c", 0)
			if !test.same {
				c = named("c", i+1)
			}
			back, err := s.starts.take(c, test.pod(i))
			if err != nil {
				t.Fatalf("%s: %d: %v", which, i, err)
			}
			backs = append(backs, back)
		}
		c := &task{key: named("c", 0), pod: named("p", 0), service: s, root: t.TempDir(), init: newProcess("", stdio{}), execs: map[string]*process{}}
		err := c.startExec(t.Context(), newProcess("e", stdio{}))
		if which != "" && (!errors.Is(err, errdefs.ErrResourceExhausted) || !strings.HasPrefix(err.Error(), which+" processes that do not get to their start")) {
			t.Errorf("one too many, %s: %v", which, err)
		}
		for range 2 { // one more, and after the others
			if which == "" && (err == nil || errors.Is(err, errdefs.ErrResourceExhausted)) {
				t.Errorf("one in a container that is not there: %v", err)
			}
			for _, back := range backs {
				back()
			}
			backs, which = nil, ""
			err = c.startExec(t.Context(), newProcess("e", stdio{}))
		}
		if s.starts.all != 0 || len(s.starts.pods) != 0 || len(s.starts.containers) != 0 {
			t.Errorf("%d are being started after it, %v, %v", s.starts.all, s.starts.pods, s.starts.containers)
		}
	}
}

// TestPodOf: a container counts for its sandbox, and one that is of none for itself.
func TestPodOf(t *testing.T) {
	c := key{"k8s.io", "c"}
	if got := podOf(c, map[string]string{"io.kubernetes.cri.sandbox-id": "p"}); got != (key{"k8s.io", "p"}) {
		t.Error(got)
	}
	if got := podOf(c, nil); got != c {
		t.Error(got)
	}
}
