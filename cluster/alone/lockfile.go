package alone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/inotify"
	"knarr/internal/run"
)

// lockRetry is how often a lock that somebody else holds is tried again: the kernel tells
// nobody that it is free who wants to be able to stop waiting.
const lockRetry = 100 * time.Millisecond

// A lockFile is held by one program at a time: a kubelet that sets a machine up makes room
// for the one that is to stay.
type lockFile struct {
	path string
	// yield says that this program ends when another one opens the file.
	yield bool
}

// hold waits for the lock. The context that it returns ends when the lock is to be given up;
// release gives it up. Without a file nothing is held.
func (l lockFile) hold(ctx context.Context) (_ context.Context, release func(), err error) {
	switch {
	case l.path == "" && l.yield:
		return nil, nil, errors.New("--exit-on-lock-contention: cannot exit on lock file contention: no lock file specified; set --lock-file")
	case l.path == "":
		return ctx, func() {}, nil
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("--lock-file: unable to acquire file lock: %w", err)
	}
	slog.InfoContext(ctx, "acquiring file lock", "path", l.path)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, nil, fmt.Errorf("--lock-file: unable to acquire file lock on %q: %w", l.path, err)
		}
		select {
		case <-ctx.Done():
			return ctx, func() { _ = f.Close() }, nil // what runs in it ends at once
		case <-time.After(lockRetry):
		}
	}
	if !l.yield {
		return ctx, func() { _ = f.Close() }, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	opened, err := watchOpens(l.path)
	if err != nil {
		cancel()
		_ = f.Close()
		return nil, nil, fmt.Errorf("--exit-on-lock-contention: watch %q: %w", l.path, err)
	}
	var wg run.Group
	wg.Go("lock file", func() {
		defer cancel()
		if _, err := opened.Read(make([]byte, 4096)); err == nil {
			slog.InfoContext(ctx, "ending: another program opened the lock file", "path", l.path)
		}
	})
	return ctx, func() {
		_ = opened.Close()
		wg.Wait()
		_ = f.Close()
	}, nil
}

// watchOpens is what can be read from once a file was opened or is gone.
func watchOpens(path string) (*os.File, error) {
	var fd int
	if err := inotify.Apart(func() (err error) {
		fd, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		return err
	}); err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_OPEN|unix.IN_DELETE_SELF); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
