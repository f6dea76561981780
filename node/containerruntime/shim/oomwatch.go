package shim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"knarr/internal/inotify"
	"knarr/internal/run"
)

// An oomWatch hears at once of processes that the kernel kills for want of memory, in
// containers whose control groups are systemd's: it removes one with its last process, so
// that the count may be gone when the container's end is seen. Others keep theirs until the
// container is deleted, and are read then.
type oomWatch struct {
	mu    sync.Mutex
	file  *os.File // of the kernel's inotify; nil before the first container
	tasks map[int32]*task
}

// add watches a container's count from now on.
func (w *oomWatch) add(t *task) error {
	paths, err := t.groups()
	if err != nil {
		return err
	}
	dir, unified := paths[""]
	if !unified || dir == "" {
		return nil // version 1 has no file that can be watched so
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		if err := w.open(); err != nil {
			return fmt.Errorf("watch for containers that run out of memory: %w", err)
		}
	}
	number, err := w.with(func(fd int) (int, error) {
		return unix.InotifyAddWatch(fd, filepath.Join(dir, memoryEvents), unix.IN_MODIFY)
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	w.tasks[int32(number)] = t
	t.oomWatched.Store(int32(number))
	return nil
}

// remove ends that. The kernel may have done so, when the group went.
func (w *oomWatch) remove(t *task) {
	number := t.oomWatched.Swap(0)
	if number == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tasks[number] == t {
		delete(w.tasks, number)
		_, _ = w.with(func(fd int) (int, error) { return unix.InotifyRmWatch(fd, uint32(number)) })
	}
}

func (w *oomWatch) with(f func(fd int) (int, error)) (n int, err error) {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(fd uintptr) { n, err = f(int(fd)) })
	return n, errors.Join(cerr, err)
}

// open begins to listen. The instance is counted among nobody else's, or root in a pod could
// use up all that there may be.
func (w *oomWatch) open() error {
	var fd int
	err := inotify.Apart(func() (err error) {
		fd, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		return err
	})
	if err != nil {
		return err
	}
	w.file, w.tasks = os.NewFile(uintptr(fd), "inotify"), map[int32]*task{}
	run.Go("shim: containers that run out of memory", w.listen)
	return nil
}

// listen reads what the kernel says for as long as this program runs.
func (w *oomWatch) listen() {
	buf := make([]byte, 4096)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			warn("watch for containers that run out of memory: %v", err)
			return
		}
		for _, t := range w.named(buf[:n]) {
			t.tellOOM()
		}
	}
}

// named are the containers of these events, and forgets those whose group has gone.
func (w *oomWatch) named(events []byte) (changed []*task) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(events) >= unix.SizeofInotifyEvent {
		number, mask := int32(binary.NativeEndian.Uint32(events)), binary.NativeEndian.Uint32(events[4:])
		size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		if mask&unix.IN_Q_OVERFLOW != 0 { // the kernel forgot some, of whom it does not say
			changed = slices.AppendSeq(changed, maps.Values(w.tasks))
		}
		if t := w.tasks[number]; t != nil && mask&unix.IN_MODIFY != 0 {
			changed = append(changed, t)
		}
		if mask&unix.IN_IGNORED != 0 {
			delete(w.tasks, number)
		}
		events = events[min(size, len(events)):]
	}
	return changed
}
