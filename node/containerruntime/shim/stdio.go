package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"
)

// A stdio is where a process reads and writes: named pipes, at whose other end
// containerd is, as a rule.
type stdio struct {
	Stdin, Stdout, Stderr string
	Terminal              bool
	// Relayed says that it has other pipes, see relay. What versions before saved has it not.
	Relayed bool
}

// held are the descriptors that this program keeps open for a process. It opens
// the other end of each named pipe and neither reads nor writes there: a
// container whose containerd is being replaced waits instead of being killed by
// the signal of a pipe without a reader, and its input does not end.
//
// They are numbers, not files: the runtime would be woken for each write of each
// container.
type held struct {
	stdin   int // of the other end of the input, 0 for none
	outputs []int
	console *console
	relay   *relay
}

// release closes them. What a terminal or a relay still has to say is waited for.
func (p *process) release() {
	p.mu.Lock()
	h := p.held
	p.held = held{}
	p.mu.Unlock()
	h.close()
}

func (h *held) close() {
	if h.relay != nil {
		ctx, cancel := context.WithTimeout(context.Background(), outputEnds)
		h.relay.close(ctx)
		cancel()
		h.relay = nil
	}
	if h.stdin > 0 {
		unix.Close(h.stdin)
		h.stdin = 0
	}
	for _, fd := range h.outputs {
		unix.Close(fd)
	}
	h.outputs = nil
	if h.console != nil {
		h.console.close()
		h.console = nil
	}
}

// files are a process' own ends, which it inherits.
type files []io.Closer

func (f files) close() {
	for _, c := range f {
		c.Close()
	}
}

// connect opens what a process reads and writes.
func (p *process) connect(child *libcontainer.Process, uid, gid int) (own files, err error) {
	defer func() {
		if err != nil {
			own.close()
			p.release()
		}
	}()
	if p.io.Terminal {
		pair, err := newConsole()
		if err != nil {
			return nil, err
		}
		p.held.console = pair
		child.ConsoleSocket = pair.theirs
		return files{pair.theirs}, nil
	}
	if p.io.Stdin != "" {
		f, err := p.openInput(p.io.Stdin, uid, gid)
		if err != nil {
			return own, err
		}
		own, child.Stdin = append(own, f), f
	}
	for _, o := range []struct {
		name   string
		number int
		set    *io.Writer
	}{{p.io.Stdout, 1, &child.Stdout}, {p.io.Stderr, 2, &child.Stderr}} {
		if o.name == "" {
			continue
		}
		f, err := p.openOutput(o.name, o.number, uid, gid)
		if err != nil {
			return own, err
		}
		own, *o.set = append(own, f), f
	}
	return own, nil
}

// openInput opens a named pipe for a process that reads it.
func (p *process) openInput(path string, uid, gid int) (*os.File, error) {
	if p.io.Relayed {
		return p.relay(path, 0, uid, gid)
	}
	if err := pipe(path, uid, gid); err != nil {
		return nil, err
	}
	hold, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open stdin %s: %w", path, err)
	}
	p.held.stdin = hold
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open stdin %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openOutput opens a named pipe, or a file that is appended to, for a process
// that writes it.
func (p *process) openOutput(name string, number, uid, gid int) (*os.File, error) {
	path, isFile, err := outputPath(name)
	if err != nil {
		return nil, err
	}
	if isFile {
		return os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o644)
	}
	if p.io.Relayed {
		return p.relay(path, number, uid, gid)
	}
	if err := pipe(path, uid, gid); err != nil {
		return nil, err
	}
	if err := p.holdOutput(path); err != nil {
		return nil, err
	}
	// There is a reader, so this does not wait for one.
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open output %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// holdOutput opens the reader's end of an output.
func (p *process) holdOutput(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open output %s: %w", path, err)
	}
	p.held.outputs = append(p.held.outputs, fd)
	return nil
}

// outputPath takes the name of an output apart: a path of a named pipe, or a URI.
func outputPath(name string) (path string, isFile bool, err error) {
	u, err := url.Parse(name)
	if err != nil {
		return "", false, fmt.Errorf("unable to parse stdout uri: %w", err)
	}
	switch u.Scheme {
	case "":
		return name, false, nil
	case "fifo":
		return u.Path, false, nil
	case "file":
		return u.Path, true, nil
	}
	return "", false, fmt.Errorf("unknown STDIO scheme %s: %w", u.Scheme, errdefs.ErrNotImplemented)
}

// pipe makes sure that path is a named pipe, and whose it is: a process that is
// not root opens its outputs again, by /dev/stdout.
func pipe(path string, uid, gid int) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode().Type() != os.ModeNamedPipe {
		return fmt.Errorf("%s is not a named pipe: %w", path, errdefs.ErrInvalidArgument)
	}
	if uid == 0 && gid == 0 {
		return nil
	}
	return os.Lchown(path, uid, gid)
}

// closeStdin lets the process see the end of its input, once containerd has
// closed its end too.
func (p *process) closeStdin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held.stdin > 0 {
		unix.Close(p.held.stdin)
		p.held.stdin = 0
	}
	if p.held.console != nil {
		p.held.console.closeStdin()
	}
	if p.held.relay != nil {
		p.held.relay.closeStdin()
	}
}

// hold opens again what a program before this one held for a process.
func (p *process) hold() error {
	var errs []error
	if path := p.io.Stdin; path != "" {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		if err == nil {
			p.held.stdin = fd
		}
		errs = append(errs, err)
	}
	for _, name := range []string{p.io.Stdout, p.io.Stderr} {
		if path, isFile, err := outputPath(name); name != "" && err == nil && !isFile {
			errs = append(errs, p.holdOutput(path))
		}
	}
	return errors.Join(errs...)
}
