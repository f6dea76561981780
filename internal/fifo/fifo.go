// Package fifo stands for github.com/containerd/fifo, by which containerd reads what
// containers and shims write. There each that is open costs a buffer of 32 kB or two, a
// second descriptor, and until the other end is open a thread; a node has three to a pod.
// Here one that waits to be read has a descriptor and nothing else. It makes, opens, reads
// and writes named pipes.
package fifo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// What reading, writing and asking for the descriptor give, as with the library.
var (
	ErrClosed      = errors.New("fifo closed")
	ErrCtrlClosed  = errors.New("control of closed fifo")
	ErrRdFrmWRONLY = errors.New("reading from write-only fifo")
	ErrReadClosed  = errors.New("reading from a closed fifo")
	ErrWrToRDONLY  = errors.New("writing to read-only fifo")
	ErrWriteClosed = errors.New("writing to a closed fifo")
)

// IsFifo says whether there is a named pipe at path.
func IsFifo(path string) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.Mode()&fs.ModeNamedPipe != 0, err
}

// OpenFifo opens the named pipe fn by flag, which is one of os.O_RDONLY, O_WRONLY and
// O_RDWR. With O_CREAT it is made if it is not there, with perm. With O_NONBLOCK, or
// O_RDWR, the other end need not be open yet: reads and writes wait for it. Until it is,
// the end of ctx closes the pipe.
func OpenFifo(ctx context.Context, fn string, flag int, perm os.FileMode) (io.ReadWriteCloser, error) {
	f, err := open(ctx, fn, flag, perm)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// OpenFifoDup2 is OpenFifo, and makes the descriptor fd another one of the pipe.
func OpenFifoDup2(ctx context.Context, fn string, flag int, perm os.FileMode, fd int) (io.ReadWriteCloser, error) {
	f, err := open(ctx, fn, flag, perm)
	if err != nil {
		return nil, fmt.Errorf("fifo error: %w", err)
	}
	if err := f.await(ErrCtrlClosed); err != nil {
		return nil, err
	}
	if err := unix.Dup2(int(f.file.Fd()), fd); err != nil {
		return nil, errors.Join(fmt.Errorf("dup2 error: %w", err), f.Close())
	}
	return f, nil
}

type fifo struct {
	access int
	opened chan struct{} // closed once there is file or err
	file   *os.File
	err    error
	// met says that the other end was open, or need not be.
	met atomic.Bool

	mu     sync.Mutex
	closed bool
	path   string // to open the other end by, where this one waits for it
	unbind func() bool
}

func open(ctx context.Context, fn string, flag int, perm os.FileMode) (*fifo, error) {
	if _, err := os.Stat(fn); err != nil {
		if !errors.Is(err, fs.ErrNotExist) || flag&unix.O_CREAT == 0 {
			return nil, err
		}
		if err := unix.Mkfifo(fn, uint32(perm.Perm())); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("error creating fifo %v: %w", fn, err)
		}
	}
	f := &fifo{access: flag & unix.O_ACCMODE, opened: make(chan struct{})}
	blocks := flag&unix.O_NONBLOCK == 0 && f.access != unix.O_RDWR
	var err error
	if blocks || f.access == unix.O_WRONLY {
		err = f.openLater(fn)
	} else {
		f.file, err = os.OpenFile(fn, f.access|unix.O_NONBLOCK, 0)
		f.met.Store(f.access == unix.O_RDWR)
		close(f.opened)
	}
	if err != nil {
		return nil, err
	}
	if ctx.Done() != nil && !f.met.Load() {
		f.bind(ctx)
	}
	if blocks {
		<-f.opened
		return f, f.err
	}
	return f, nil
}

// openLater opens the pipe once its other end is, which takes a thread until then: the
// kernel opens a writer for nothing less.
func (f *fifo) openLater(fn string) error {
	// What is there now, whatever is put into its place meanwhile.
	same, err := os.OpenFile(fn, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	f.path = fmt.Sprintf("/proc/self/fd/%d", same.Fd())
	go func() {
		file, err := os.OpenFile(f.path, f.access, 0)
		f.mu.Lock()
		defer f.mu.Unlock()
		if err == nil && f.closed {
			_ = file.Close()
			file, err = nil, fmt.Errorf("fifo %v was closed before opening", fn)
		}
		f.file, f.err = file, err
		f.met.Store(true)
		_ = same.Close()
		close(f.opened)
	}()
	return nil
}

// bind closes the pipe if ctx ends before the other end is there.
func (f *fifo) bind(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unbind = context.AfterFunc(ctx, func() {
		if !f.met.Load() && !f.writers() {
			_ = f.Close()
		}
	})
}

// writers says whether a pipe that is open for reading has, or had, a writer.
func (f *fifo) writers() bool {
	select {
	case <-f.opened:
	default:
		return false
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	var copied [2]int
	if err := unix.Pipe2(copied[:], unix.O_CLOEXEC); err != nil {
		return false
	}
	defer unix.Close(copied[0])
	defer unix.Close(copied[1])
	there := false
	_ = raw.Control(func(d uintptr) {
		// It takes nothing away, and fails where there is nothing yet, but may be.
		n, err := unix.Tee(int(d), copied[1], 1, unix.SPLICE_F_NONBLOCK)
		there = n > 0 || err == unix.EAGAIN || left(int(d))
	})
	return there
}

// Close may be called at any time, more than once; what waits returns.
func (f *fifo) Close() error {
	f.mu.Lock()
	was, unbind := f.closed, f.unbind
	f.closed = true
	var end *os.File
	select {
	case <-f.opened:
	default: // the thread that waits is let go by the other end
		if !was {
			end, _ = os.OpenFile(f.path, unix.O_RDWR|unix.O_NONBLOCK, 0)
		}
	}
	f.mu.Unlock()
	if was {
		return nil
	}
	if unbind != nil {
		unbind()
	}
	<-f.opened
	if end != nil {
		_ = end.Close()
	}
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}

// await returns once the pipe is open.
func (f *fifo) await(closed error) error {
	<-f.opened
	if f.err != nil {
		return closed
	}
	return nil
}

// Read waits for a writer, and for what it writes. When all have closed the pipe, the
// error is io.EOF.
func (f *fifo) Read(b []byte) (n int, err error) {
	if len(b) == 0 {
		return 0, nil
	}
	return f.read(func(fd int) (int, error) { return unix.Read(fd, b) })
}

// read tries to read whenever there may be something.
func (f *fifo) read(try func(fd int) (int, error)) (n int, err error) {
	if f.access == unix.O_WRONLY {
		return 0, ErrRdFrmWRONLY
	}
	if err := f.await(ErrReadClosed); err != nil {
		return 0, err
	}
	raw, err := f.file.SyscallConn()
	if err != nil {
		return 0, f.closedError()
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		for {
			if n, failed = try(int(fd)); failed != unix.EINTR {
				break
			}
		}
		return failed != unix.EAGAIN && (failed != nil || n > 0 || left(int(fd)))
	})
	switch {
	case err != nil:
		return 0, f.closedError()
	case failed != nil:
		return 0, &fs.PathError{Op: "read", Path: f.file.Name(), Err: failed}
	}
	f.met.Store(true)
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// left says whether there were writers and are none any longer: while there has been
// none the kernel gives a reader nothing, as at the end.
func left(fd int) bool {
	polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	_, err := unix.Poll(polled, 0)
	return err == nil && polled[0].Revents&unix.POLLHUP != 0
}

// closedError is what the library says of a pipe that is closed: something else before
// there was a writer.
func (f *fifo) closedError() error {
	if !f.met.Load() {
		return ErrReadClosed
	}
	return &fs.PathError{Op: "read", Path: f.file.Name(), Err: fs.ErrClosed}
}

// buffers are those of pipes that have something to read just now.
var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// WriteTo copies all that comes to w, which io.Copy asks for, and holds no buffer while
// nothing comes.
func (f *fifo) WriteTo(w io.Writer) (written int64, err error) {
	var buffer *[32 << 10]byte
	for {
		n, err := f.read(func(fd int) (int, error) {
			buffer = buffers.Get().(*[32 << 10]byte)
			n, err := unix.Read(fd, buffer[:])
			if n <= 0 {
				buffers.Put(buffer)
			}
			return n, err
		})
		if err == io.EOF {
			return written, nil
		}
		if err != nil {
			return written, err
		}
		m, err := w.Write(buffer[:n])
		buffers.Put(buffer)
		written += int64(m)
		if err == nil && m < n {
			err = io.ErrShortWrite
		}
		if err != nil {
			return written, err
		}
	}
}

// Write waits for a reader.
func (f *fifo) Write(b []byte) (int, error) {
	if f.access == unix.O_RDONLY {
		return 0, ErrWrToRDONLY
	}
	if err := f.await(ErrWriteClosed); err != nil {
		return 0, err
	}
	return f.file.Write(b)
}

// SyscallConn waits for the other end, where opening did not.
func (f *fifo) SyscallConn() (syscall.RawConn, error) {
	if err := f.await(ErrClosed); err != nil {
		return nil, err
	}
	return f.file.SyscallConn()
}
