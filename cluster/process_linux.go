package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// endTime is how long a process may take to end.
const endTime = 10 * time.Second

// end asks a process to end and returns once it has: not when it has let go of
// its files, but when it is no more. still says, once the process cannot be
// mistaken for another any more, whether it is the one that is meant.
func end(ctx context.Context, pid int, still func() bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !still() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	const look = 20 * time.Millisecond // at ctx
	for left := endTime; left > 0; left -= look {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(look.Milliseconds()))
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for process %d: %w", pid, err)
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
	return fmt.Errorf("process %d did not end within 10 s of SIGTERM; stop it by hand", pid)
}
