package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/run"
	"knarr/internal/unixsocket"
)

// meet notes which process is at the other end of a connection.
func (f *front) meet(conn net.Conn) {
	peer, err := unixsocket.Peer(conn.(*net.UnixConn))
	if err == nil && f.process != nil && f.process.pid == int(peer.Pid) && f.process.ended.Err() == nil {
		return // what is known of its end says more when this process started it
	}
	f.process = nil
	if err == nil && peer.Pid <= 1 {
		err = fmt.Errorf("the shim is process %d", peer.Pid)
	}
	if err == nil {
		f.process, err = processOf(int(peer.Pid))
	}
	if err != nil {
		f.log.Error("find the shim's process", "err", err)
	}
}

// processOf gives the process of a number that is in use.
func processOf(pid int) (*shimProcess, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // for the poller: no thread waits
		unix.Close(fd)
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open process %d: %w", pid, err), file.Close())
	}
	ended, end := context.WithCancel(context.Background())
	p := &shimProcess{pid: pid, ended: ended, state: "not a child of this process"}
	p.signal = func(sig os.Signal) (err error) {
		cerr := raw.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), sig.(unix.Signal), nil, 0) })
		return errors.Join(cerr, err)
	}
	run.Go("container runtime: wait for the shim", func() {
		defer end()
		defer file.Close()
		_ = raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return err == nil && n == 1
		})
	})
	return p, nil
}

// tell has a shim of another version become this one; its containers stay its children.
// One that cannot be told goes on as it is.
func (f *front) tell() bool {
	p := f.process
	if p == nil {
		return false
	}
	if err := p.signal(unix.SIGHUP); err != nil {
		f.log.Error("replace the shim", "err", err)
		return false
	}
	f.log.Info("the shim is told to become this version's", "pid", p.pid)
	return true
}

// replace waits for a shim that was told to become this version's, and ends one that does
// not: no other could run beside it.
func (f *front) replace(ctx context.Context, p *shimProcess) (net.Conn, error) {
	began := time.Now()
	conn, err := f.dial(ctx, p, f.current)
	if err == nil {
		f.log.Info("the shim is this version's", "pid", p.pid)
		return conn, nil
	}
	if ctx.Err() != nil {
		return nil, err
	}
	if p.ended.Err() == nil {
		defer f.hang(nil)
		f.ends.WithLabelValues(shimOutdated).Inc()
		f.end(ctx, p, p.ended.Done(), &absence{since: began, err: fmt.Errorf("the shim has not become this version's: %w", err)})
	} else {
		f.ends.WithLabelValues(shimEnded).Inc()
		f.log.Error("the shim has not become this version's", "err", err)
	}
	return nil, err
}
