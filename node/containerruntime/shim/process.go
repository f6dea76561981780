package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// An exit is how and when a process ended.
type exit struct {
	Status uint32
	At     time.Time
}

// A process is the first one of a container, or one that Exec added.
type process struct {
	id   string // of an Exec
	io   stdio
	spec *specs.Process // of an Exec

	// lifecycle is held while the process starts and while its end is dealt
	// with, so that nobody hears of the end first.
	lifecycle sync.Mutex
	started   atomic.Bool
	exit      exit          // once exited is closed
	exited    chan struct{} // closed at its end

	// wanted ends when somebody gives it up before it is started.
	wanted context.Context
	giveUp context.CancelFunc

	// wait waits for it; nil if it was started before this program.
	wait func() (*os.ProcessState, error)

	// back gives back the place of an Exec's process.
	back func()

	mu     sync.Mutex
	pid    int
	handle *os.File // a pidfd; nil before the start and after the end
	held   held
}

func newProcess(id string, io stdio) *process {
	p := &process{id: id, io: io, exited: make(chan struct{}), back: func() {}}
	p.wanted, p.giveUp = context.WithCancel(context.Background())
	return p
}

// abandon has a process never be started, and its start end if that is under way; false where
// it was started.
func (p *process) abandon() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid != 0 {
		return false
	}
	p.giveUp()
	return true
}

func (p *process) number() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid
}

// opened notes the number of a process that has not been waited for, unless it is not wanted
// any more.
func (p *process) opened(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	// Not blocking: the runtime's poller waits, not a thread for each.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wanted.Err() != nil {
		unix.Close(fd)
		return errUnwanted
	}
	p.pid, p.handle = pid, os.NewFile(uintptr(fd), "pidfd")
	return nil
}

var errFinished = fmt.Errorf("process already finished: %w", errdefs.ErrNotFound)

func (p *process) signal(sig unix.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.handle == nil {
		if p.pid == 0 {
			return fmt.Errorf("process not created: %w", errdefs.ErrFailedPrecondition)
		}
		return errFinished
	}
	var sent error
	raw, err := p.handle.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	}
	if err = errors.Join(err, sent); errors.Is(err, unix.ESRCH) {
		return errFinished
	}
	return err
}

// await returns when the process has ended; it may still be there as a zombie.
func (p *process) await() error {
	p.mu.Lock()
	handle := p.handle
	p.mu.Unlock()
	raw, err := handle.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		return err == nil && n == 1
	})
}

// reap gives the status of a process that has ended.
func (p *process) reap() uint32 {
	if p.wait == nil {
		return p.foreignStatus()
	}
	state, err := p.wait()
	if state == nil {
		warn("wait for process %d: %v", p.pid, err)
		return unknownStatus
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	if !ok {
		return unknownStatus
	}
	return statusOf(unix.WaitStatus(status))
}

// statusOf is an exit status as shells have it.
func statusOf(s unix.WaitStatus) uint32 {
	if s.Signaled() {
		return 128 + uint32(s.Signal())
	}
	return uint32(s.ExitStatus())
}

// unknownStatus is that of a process whose parent was not this program and of
// which the kernel does not tell it.
const unknownStatus = 255

// ended closes what the process needed.
func (p *process) ended(status uint32) {
	p.mu.Lock()
	p.handle.Close()
	p.handle = nil
	p.mu.Unlock()
	p.exit = exit{status, time.Now()}
}

// done waits for the end of a process for as long as ctx lasts.
func (p *process) done(ctx context.Context) bool {
	select {
	case <-p.exited:
		return true
	case <-ctx.Done():
		return false
	}
}
