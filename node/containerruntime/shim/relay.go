package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"knarr/internal/run"
)

// defaultProfile is the AppArmor profile that containerd gives to those who want none of their own.
const defaultProfile = "cri-containerd.apparmor.d"

// relayed says whether a security module may keep a process from containerd's named pipes.
// SELinux takes descriptors away at its exec that its domain may not use, as it may not use
// what has the label of /run; AppArmor looks at the path of a named pipe that the process opens
// again, by /dev/stdout. Both let pipes without a name be. containerd's own profile allows all
// files, so that those with it need no copier.
func relayed(p *specs.Process) bool {
	if p.SelinuxLabel != "" {
		return true
	}
	switch p.ApparmorProfile {
	case "", "unconfined", defaultProfile:
		return false
	}
	return true
}

// A relay is the standard input and outputs of a process that has pipes without a name in place
// of containerd's.
//
// What goes through is moved by the kernel from pipe to pipe. None of it is ever in this
// program's memory: it costs none, and is not lost where another program takes this one's
// place, which is when containerd does not read.
type relay struct {
	mu      sync.Mutex
	streams []*stream
}

// A stream is one of them.
type stream struct {
	number int           // of the descriptor that the process has
	pipe   *os.File      // the end of its pipe that it does not have
	named  *os.File      // the end of containerd's pipe that containerd does not have
	held   int           // the other end of that, as for processes that have it themselves; 0 for none
	over   chan struct{} // closed when nothing more is moved

	closing atomic.Bool // an error is no wonder any more
}

// relay gives what a process has in place of a named pipe, and begins to move.
func (p *process) relay(path string, number, uid, gid int) (theirs *os.File, err error) {
	if err := pipe(path, 0, 0); err != nil { // it stays root's: the process does not open it
		return nil, err
	}
	s := &stream{number: number}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	held, own := unix.O_RDONLY, unix.O_WRONLY
	if number == 0 {
		held, own = unix.O_RDWR, unix.O_RDONLY
	}
	const flags = unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOFOLLOW
	if s.held, err = unix.Open(path, held|flags, 0); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	fd, err := unix.Open(path, own|flags, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	s.named = os.NewFile(uintptr(fd), path)
	if theirs, s.pipe, err = unnamed(number, uid, gid); err != nil {
		return nil, err
	}
	p.addStream(s)
	return theirs, nil
}

// unnamed makes a pipe for a process, whose it is: one that is not root opens its outputs again.
// Only this program's end does not block.
func unnamed(number, uid, gid int) (theirs, ours *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	their, our := fds[1], fds[0]
	if number == 0 {
		their, our = fds[0], fds[1]
	}
	if uid != 0 || gid != 0 {
		err = unix.Fchown(our, uid, gid)
	}
	if err = errors.Join(err, unix.SetNonblock(our, true)); err != nil {
		unix.Close(their)
		unix.Close(our)
		return nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	name := "pipe " + strconv.Itoa(number)
	return os.NewFile(uintptr(their), name), os.NewFile(uintptr(our), name), nil
}

// addStream moves what comes through a stream, to its end.
func (p *process) addStream(s *stream) {
	p.mu.Lock()
	if p.held.relay == nil {
		p.held.relay = &relay{}
	}
	r := p.held.relay
	p.mu.Unlock()
	s.over = make(chan struct{})
	r.mu.Lock()
	r.streams = append(r.streams, s)
	r.mu.Unlock()
	to, from := s.named, s.pipe
	if s.number == 0 {
		to, from = s.pipe, s.named
	}
	run.Go("shim: relay", func() {
		defer close(s.over)
		// Who reads sees the end: of an output that the last process with it has closed, of
		// an input that containerd has.
		defer s.named.Close()
		defer s.pipe.Close()
		if err := move(to, from); err != nil && !errors.Is(err, unix.EPIPE) && !s.closing.Load() {
			warn("move between pipes: %v", err)
		}
	})
}

// moveMost is how much is asked to be moved at once; a pipe has less.
const moveMost = 1 << 20

// move moves what comes through one pipe into another until nobody has the first one for
// writing, or either is closed.
func move(to, from *os.File) error {
	in, err := from.SyscallConn()
	if err != nil {
		return err
	}
	out, err := to.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var n int64
		var moved error
		err := in.Read(func(source uintptr) bool {
			err := out.Control(func(target uintptr) {
				for moved = unix.EINTR; moved == unix.EINTR; {
					n, moved = unix.Splice(int(source), nil, int(target), nil, moveMost, unix.SPLICE_F_NONBLOCK)
				}
			})
			if err != nil {
				moved = err
			}
			switch {
			case moved != unix.EAGAIN, ready(source, unix.POLLIN):
				return true
			case ready(source, unix.POLLHUP):
				// splice wants room even for an end. What was written last may have come
				// since it was looked for.
				if !ready(source, unix.POLLIN) {
					n, moved = 0, nil
				}
				return true
			}
			return false
		})
		switch {
		case err != nil:
			return err
		case moved == unix.EAGAIN: // there is no room for what there is
			if err := out.Write(func(target uintptr) bool { return ready(target, unix.POLLOUT|unix.POLLERR) }); err != nil {
				return err
			}
		case moved != nil:
			return fmt.Errorf("splice: %w", moved)
		case n == 0:
			return nil
		}
	}
}

func ready(fd uintptr, events int16) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: events}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 1 && poll[0].Revents&events != 0
}

// closeStdin has the input end with containerd's end of it.
func (r *relay) closeStdin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.streams {
		if s.number == 0 && s.held > 0 {
			unix.Close(s.held)
			s.held = 0
		}
	}
}

// close waits for what the outputs still have to say for as long as ctx lasts, then closes all.
func (r *relay) close(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.streams {
		if s.number == 0 {
			continue
		}
		select {
		case <-s.over:
		case <-ctx.Done():
		}
	}
	for _, s := range r.streams {
		s.close()
	}
	r.streams = nil
}

// close closes what there is of a stream, and waits for its mover, which then ends.
func (s *stream) close() {
	s.closing.Store(true)
	for _, f := range []*os.File{s.pipe, s.named} {
		if f != nil {
			f.Close()
		}
	}
	if s.over != nil {
		<-s.over
	}
	if s.held > 0 {
		unix.Close(s.held)
		s.held = 0
	}
}

// streamName is by which a stream of a process is handed to the next program: not by the
// container's name, of which the environment has no room for thousands.
func streamName(pid, number int) string { return strconv.Itoa(pid) + "/" + strconv.Itoa(number) }

// hand passes copies of what is open to the next program: for each stream its pipe, its end of
// the named one, and the other end of that unless it was closed.
func (r *relay) hand(pid int, pass func(name string, fd int)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.streams {
		pipe, err := duplicate(s.pipe)
		if err != nil {
			continue // it is over
		}
		named, err := duplicate(s.named)
		if err != nil {
			unix.Close(pipe)
			continue
		}
		name := streamName(pid, s.number)
		pass(name, pipe)
		pass(name, named)
		if s.held == 0 {
			continue
		}
		if held, err := unix.FcntlInt(uintptr(s.held), unix.F_DUPFD_CLOEXEC, 3); err == nil {
			pass(name, held)
		}
	}
}

// duplicate gives a descriptor of a file that belongs to the runtime's poller.
func duplicate(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 3) })
	return fd, errors.Join(cerr, err)
}

// inheritRelay goes on with the streams of a process that the program before this one left. One
// that is not among them was over.
func (p *process) inheritRelay(left leftFiles) error {
	if left == nil && p.io.Stdin+p.io.Stdout+p.io.Stderr != "" {
		return errors.New("its pipes ended with the program before")
	}
	for number := range 3 {
		fds := left.take(streamName(p.pid, number))
		if len(fds) == 0 {
			continue
		}
		if len(fds) > 3 || len(fds) < 2 {
			closeAll(fds)
			return fmt.Errorf("%d files were left of its pipe %d", len(fds), number)
		}
		s := &stream{number: number}
		if len(fds) == 3 {
			s.held = fds[2]
		}
		// They do not block: that stays with what is open, not with its number.
		s.pipe, s.named = os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "named pipe")
		p.addStream(s)
	}
	return nil
}
