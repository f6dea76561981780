package shim

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	eventstypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"
)

// A kill for want of memory is an event at once, once, while what else changes the file is
// none; and its end is no end of the watch for others.
func TestOOMWatch(t *testing.T) {
	s := &Service{events: newPublisher("")}
	count := func(dir, events string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, memoryEvents), []byte(events), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	container := func(id string) (*task, string) {
		t.Helper()
		dir := t.TempDir()
		count(dir, "high 0\noom_kill 0\n")
		c := &task{key: key{"k8s.io", id}, service: s}
		c.groupPaths.Store(&map[string]string{"": dir})
		if err := s.ooms.add(c); err != nil {
			t.Fatal(err)
		}
		if c.oomWatched.Load() == 0 {
			t.Fatal("it is not watched")
		}
		return c, dir
	}
	killed := func() string {
		t.Helper()
		select {
		case e := <-s.events.queue:
			var oom eventstypes.TaskOOM
			if err := typeurl.UnmarshalTo(e.Event, &oom); err != nil {
				t.Fatal(err)
			}
			return oom.ContainerID
		case <-time.After(20 * time.Second):
			t.Fatal("no event")
			return ""
		}
	}
	one, ofOne := container("one")
	two, ofTwo := container("two")
	count(ofOne, "high 7\noom_kill 0\n")
	count(ofTwo, "high 0\noom_kill 1\n")
	if id := killed(); id != "two" {
		t.Errorf("%s is said to be killed", id)
	}
	two.tellOOM() // as at its end
	// systemd removes the group with its last process.
	if err := os.RemoveAll(ofTwo); err != nil {
		t.Fatal(err)
	}
	two.tellOOM()
	s.ooms.remove(two)
	count(ofOne, "high 9\noom_kill 2\n")
	if id := killed(); id != "one" {
		t.Errorf("%s is said to be killed", id)
	}
	s.ooms.remove(one)
	count(ofOne, "oom_kill 3\n")
	three, ofThree := container("three")
	count(ofThree, "oom_kill 1\n")
	if id := killed(); id != "three" {
		t.Errorf("%s is said to be killed, which is not watched", id)
	}
	event := make([]byte, unix.SizeofInotifyEvent)
	binary.NativeEndian.PutUint32(event, ^uint32(0))
	binary.NativeEndian.PutUint32(event[4:], unix.IN_Q_OVERFLOW)
	if got := s.ooms.named(event); len(got) != 1 || got[0] != three {
		t.Errorf("when the kernel forgot events %d containers are looked at", len(got))
	}
	s.ooms.remove(three)
	s.ooms.mu.Lock()
	watched := len(s.ooms.tasks)
	s.ooms.mu.Unlock()
	if watched != 0 || len(s.events.queue) != 0 {
		t.Errorf("%d are watched, %d events wait", watched, len(s.events.queue))
	}

	// Version 1 has nothing to watch.
	first := &task{key: key{"k8s.io", "first"}, service: s}
	first.groupPaths.Store(&map[string]string{"memory": ofOne})
	if err := s.ooms.add(first); err != nil || first.oomWatched.Load() != 0 {
		t.Error(err, first.oomWatched.Load())
	}
	missing := &task{key: key{"k8s.io", "missing"}, service: s}
	missing.groupPaths.Store(&map[string]string{"": ofTwo})
	if err := s.ooms.add(missing); err == nil || !strings.Contains(err.Error(), ofTwo) {
		t.Errorf("a group that is not there: %v", err)
	}
}
