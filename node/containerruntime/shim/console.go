package shim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"knarr/internal/run"
)

// A console is the terminal of a process. Its master is here, and what goes
// through it is copied: a terminal is no pipe.
type console struct {
	ours, theirs *os.File // a pair of sockets, on which the master comes
	mu           sync.Mutex
	master       *os.File
	stdin        *os.File
	held         []int
	written      chan struct{} // closed when all output was copied; nil without any
}

// outputEnds is how long the output of a terminal may take to be copied after
// the process' end: another one may have the terminal.
const outputEnds = 10 * time.Second

func newConsole() (*console, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("sockets for the console: %w", err)
	}
	return &console{ours: os.NewFile(uintptr(fds[0]), "console"), theirs: os.NewFile(uintptr(fds[1]), "console")}, nil
}

// receive takes the master that the process' first program sent.
func (c *console) receive() (*os.File, error) {
	defer c.ours.Close()
	name, control := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(c.ours.Fd()), name, control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("receive the console: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errors.New("no console came"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(errors.New("no console came"), err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "console"), nil
}

// receiveConsole begins to copy between the terminal and the named pipes.
func (p *process) receiveConsole() error {
	master, err := p.held.console.receive()
	if err != nil {
		return err
	}
	return p.copyConsole(p.held.console, master)
}

func (p *process) copyConsole(c *console, master *os.File) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.master = master
	open := func(path string, held, own int) (*os.File, error) {
		fd, err := unix.Open(path, held|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", path, err)
		}
		c.held = append(c.held, fd)
		fd, err = unix.Open(path, own|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", path, err)
		}
		return os.NewFile(uintptr(fd), path), nil
	}
	if p.io.Stdin != "" {
		in, err := open(p.io.Stdin, unix.O_RDWR, unix.O_RDONLY)
		if err != nil {
			return err
		}
		c.stdin = in
		run.Go("shim: terminal input", func() { _, _ = io.Copy(master, in) })
	}
	if p.io.Stdout == "" {
		run.Go("shim: terminal output", func() { _, _ = io.Copy(io.Discard, master) })
		return nil
	}
	path, _, err := outputPath(p.io.Stdout)
	if err != nil {
		return err
	}
	out, err := open(path, unix.O_RDONLY, unix.O_WRONLY)
	if err != nil {
		return err
	}
	written := make(chan struct{})
	c.written = written
	run.Go("shim: terminal output", func() {
		defer close(written)
		defer out.Close()
		_, _ = io.Copy(out, master) // to the end of the last process with the terminal
	})
	return nil
}

func (c *console) closeStdin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stdin != nil {
		c.stdin.Close()
		c.stdin = nil
	}
}

func (c *console) close() {
	c.closeStdin()
	c.mu.Lock()
	written := c.written
	c.mu.Unlock()
	if written != nil {
		select {
		case <-written:
		case <-time.After(outputEnds):
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ours != nil {
		c.ours.Close()
	}
	if c.master != nil {
		c.master.Close()
	}
	for _, fd := range c.held {
		unix.Close(fd)
	}
	c.held = nil
}

// resize sets the size of the process' terminal.
func (p *process) resize(width, height uint32) error {
	p.mu.Lock()
	c := p.held.console
	p.mu.Unlock()
	if c == nil {
		return nil // others answer so, too
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.master == nil {
		return fmt.Errorf("process not started: %w", errdefs.ErrFailedPrecondition)
	}
	raw, err := c.master.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	size := &unix.Winsize{Row: uint16(min(height, 1<<16-1)), Col: uint16(min(width, 1<<16-1))}
	err = raw.Control(func(fd uintptr) { set = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) })
	return errors.Join(err, set)
}
