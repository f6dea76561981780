package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/anypb"
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
		"container c0 has 16":                   {starting.container, func(int) key { return named("p", 0) }, true},
		"the containers of sandbox p0 have 32":  {starting.pod, func(int) key { return named("p", 0) }, false},
		"the containers of this node have 2000": {starting.all, func(i int) key { return named("p", i+1) }, false},
		"the containers of this node have 1500": {starting.all - starting.kept, func(i int) key { return named("p", max(0, i+1-starting.few)) }, false},
		"":                                      {starting.all - 1, func(i int) key { return named("p", i+1) }, false},
	} {
		s := &Service{}
		var backs []func()
		for i := range test.already {
			c := named("c", 0)
			if !test.same {
				c = named("c", i+1)
			}
			back, err := s.starts.take(starting, c, test.pod(i))
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

// TestExecsAreBounded: what is not deleted keeps its place, of a container, of its pod and of
// the node, until it is, or its container.
func TestExecsAreBounded(t *testing.T) {
	s := &Service{tasks: map[key]*task{}}
	named := func(kind string, i int) key { return key{"k8s.io", fmt.Sprint(kind, i)} }
	c := func(i int) *task {
		return &task{key: named("c", i), pod: named("p", 0), service: s, root: t.TempDir(), init: newProcess("", stdio{}), execs: map[string]*process{}}
	}
	add := func(c *task, i int) error {
		return c.addExec(&api.ExecProcessRequest{ID: c.id, ExecID: strconv.Itoa(i), Spec: &anypb.Any{Value: []byte(`{"args":["a"],"cwd":"/"}`)}})
	}
	first, second, third := c(0), c(1), c(2)
	for _, c := range []*task{first, second} {
		for i := range undeleted.container {
			if err := add(c, i); err != nil {
				t.Fatal(err)
			}
		}
	}
	for c, want := range map[*task]string{first: "container c0 has 500 processes that are not deleted", third: "the containers of sandbox p0 have 1000 processes that are not deleted"} {
		if err := add(c, 10000); !errors.Is(err, errdefs.ErrResourceExhausted) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("one too many: %v, want %s", err, want)
		}
	}
	p := first.execs["0"]
	if err := first.deleteExec(p); err != nil {
		t.Fatal(err)
	}
	if err := first.deleteExec(p); err != nil || s.execs.all != 2*undeleted.container-1 {
		t.Errorf("deleted twice: %v, and %d are there", err, s.execs.all)
	}
	if err := add(first, 0); err != nil {
		t.Errorf("in the place of one that is deleted: %v", err)
	}
	s.forget(first)
	if err := add(first, 0); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("in a container that is deleted: %v", err)
	}
	s.forget(second)
	if s.execs.all != 0 || len(s.execs.pods) != 0 || len(s.execs.containers) != 0 {
		t.Errorf("%d are there after their containers, %v, %v", s.execs.all, s.execs.pods, s.execs.containers)
	}
}
