// Package inotify makes watchers of files that are counted among no other's. It reads and
// writes nothing itself; a thread of its own takes another user for it.
//
// The kernel counts what is watched by the effective user, 128 instances by default, and root
// in containers is the same user as root outside: a pod that holds so many would keep this
// process from following logs, and the container runtime from starting at all.
package inotify

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"knarr/internal/run"
)

// NewWatcher is fsnotify's, counted apart.
func NewWatcher() (w *fsnotify.Watcher, err error) {
	err = Apart(func() (err error) {
		w, err = fsnotify.NewWatcher()
		return err
	})
	return w, err
}

// Apart calls f on a thread of its own; the watchers that f makes there are counted for a
// user that nobody else is. In all else f does what the process may do. Where the process may
// not change its user, f runs as it is.
func Apart(f func() error) error {
	return run.OnThread("inotify", func() error {
		if err := otherUser(); err != nil {
			logOnce.Do(func() { slog.Debug("files are watched as one of this user's programs", "err", err) })
		}
		return f()
	})
}

var logOnce sync.Once

// changing: whether the process can be dumped is the same for all threads, and two that
// change at once would both find it as the other one left it.
var changing sync.Mutex

// otherUser gives this thread an effective user alone: files are had, and made, as before, and
// nothing is less allowed. Library functions would change all threads.
func otherUser() error {
	if unix.Geteuid() != 0 {
		return errors.New("this process is not root's")
	}
	changing.Lock()
	defer changing.Unlock()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("read whether the process can be dumped: %w", err)
	}
	if err := setEffective(user()); err != nil {
		return err
	}
	err = func() error {
		setFileUser(0)
		if now := setFileUser(^uintptr(0)); now != 0 { // none is set: it says which it is
			return fmt.Errorf("the user for files is %d", now)
		}
		return unix.Capset(&header, &caps[0])
	}()
	if err != nil {
		err = errors.Join(err, setEffective(0))
	}
	// A change of user takes the process' own files in /proc from those who run it.
	if dumpable == 1 {
		err = errors.Join(err, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
	}
	return err
}

// user is one that no pod can name and that is not guessed.
func user() uintptr { return uintptr(min(rand.Uint32()|1<<31, 1<<32-3)) }

func setEffective(user uintptr) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), user, ^uintptr(0)); errno != 0 {
		return fmt.Errorf("take another user: %w", errno)
	}
	return nil
}

// setFileUser returns the one of before.
func setFileUser(user uintptr) uintptr {
	before, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, user, 0, 0)
	return before
}
