package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/run"
	"knarr/internal/unixsocket"
)

var errShimEnded = errors.New("the shim has ended")

// connect gives a connection to a shim of this version.
func (f *front) connect(ctx context.Context) (net.Conn, error) {
	path := filepath.Join(f.state, shimSocketName)
	conn, err := net.Dial("unix", path)
	if err == nil && f.replace(conn) {
		conn.Close()
		conn, err = dialWithin(ctx, path, f.current)
	}
	if err == nil {
		return conn, nil
	}
	process, err := f.spawn()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(process.ended, func() { cancel(errShimEnded) })()
	conn, err = dialWithin(ctx, path, func() bool { return true })
	if err != nil && process.ended.Err() != nil {
		err = fmt.Errorf("%w: %s: %s", errShimEnded, process.state, lastLines(f.logPath()))
	}
	return conn, err
}

// shimStart bounds the start of a shim with many containers.
const shimStart = 30 * time.Second

func dialWithin(ctx context.Context, path string, ready func() bool) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, shimStart)
	defer cancel()
	for {
		var err error
		if ready() {
			var conn net.Conn
			if conn, err = net.Dial("unix", path); err == nil {
				return conn, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for %s: %w", path, ctx.Err()), err)
		case <-time.After(time.Millisecond):
		}
	}
}

// A shimProcess is a shim that this process started.
type shimProcess struct {
	ended context.Context // done once it has ended
	state string          // how, thereafter
}

// spawn starts the shim, in a session of its own. The log of the one before is kept: what
// ended it is written there.
func (f *front) spawn() (*shimProcess, error) {
	if info, err := os.Stat(f.logPath()); err == nil && info.Size() > 0 {
		_ = os.Rename(f.logPath(), f.logPath()+".1") // nodes do not go without a shim for it
	}
	log, err := os.OpenFile(f.logPath(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(f.program, "-address", f.socket, "serve")
	cmd.Dir, cmd.Stderr = "/", log
	// Of its threads few have work at a time; it passes this on to the first
	// programs of containers.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended, end := context.WithCancel(context.Background())
	p := &shimProcess{ended: ended}
	run.Go("container runtime: wait for the shim", func() {
		defer end()
		_ = cmd.Wait() // the state says the same
		p.state = cmd.ProcessState.String()
	})
	f.process = p
	return p, nil
}

func (f *front) logPath() string { return filepath.Join(f.state, shimLogName) }

// lastWords is what is known of the end of a shim, for the log.
func (f *front) lastWords() (args []any) {
	if p := f.process; p != nil {
		select {
		case <-p.ended.Done():
			args = append(args, "state", p.state)
		case <-time.After(shimAgain): // its socket is closed before it is waited for
		}
	}
	if last := lastLines(f.logPath()); last != "" {
		args = append(args, "last", last)
	}
	return args
}

// maxLastLines is how much of the shim's log, in bytes, this process' log has.
const maxLastLines = 2 << 10

// lastLines gives the end of a shim's log: from the beginning of a panic where there is one,
// or of what goroutines were at, for stacks come after what happened, else the last lines.
func lastLines(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return ""
	}
	const read = 64 << 10
	cut := max(info.Size()-read, 0)
	b, err := io.ReadAll(io.NewSectionReader(file, cut, read))
	if err != nil {
		return ""
	}
	text := "\n" + strings.ToValidUTF8(string(b), "")
	if i := max(strings.LastIndex(text, "\npanic: "), strings.LastIndex(text, "\nfatal error: "), strings.LastIndex(text, "\nSIGQUIT: ")); i >= 0 {
		text = text[i:min(i+maxLastLines, len(text))]
	} else if len(text) > maxLastLines {
		_, text, _ = strings.Cut(text[len(text)-maxLastLines:], "\n")
	}
	return strings.TrimSpace(strings.ToValidUTF8(text, ""))
}

// current says whether the shim that runs is the program that would be started.
func (f *front) current() bool {
	is, err := os.ReadFile(filepath.Join(f.state, shimProgramName))
	if err != nil {
		return false
	}
	info, err := os.Stat(f.program)
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && string(is) == fmt.Sprintf("%d %d %d", stat.Ino, stat.Size, info.ModTime().UnixNano())
}

// replace tells a shim of another version to become this one; its containers stay
// its children.
func (f *front) replace(conn net.Conn) bool {
	if f.current() {
		return false
	}
	other, err := unixsocket.Peer(conn.(*net.UnixConn))
	if err == nil && other.Pid <= 1 {
		err = fmt.Errorf("the shim is process %d", other.Pid)
	}
	if err == nil {
		err = unix.Kill(int(other.Pid), unix.SIGHUP)
	}
	if err != nil {
		f.log.Error("replace the shim", "err", err)
		return false
	}
	f.log.Info("the shim is replaced by this version's")
	return true
}

// An absence is that of a shim, or of its answers: since when, and why.
type absence struct {
	since time.Time
	err   error
}

// shimMissed is how long no shim may be there before the node is not ready: another one takes
// up the containers within a second, and a start with many of them takes longer.
const shimMissed = shimStart

// missing notes why there is no shim.
func (f *front) missing(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone.err = err
}

// intercept has the runtime not ready while nothing starts or ends containers: containerd
// itself, which answers, does not know.
func (f *front) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	res, err := next(ctx, req)
	if status, ok := res.(*cri.StatusResponse); ok && err == nil {
		f.mu.Lock()
		gone, reason := f.hangs, "ShimNotResponding"
		if f.client == nil {
			gone, reason = new(f.gone), "ShimNotRunning"
		}
		f.mu.Unlock()
		if gone != nil && time.Since(gone.since) > shimMissed {
			notReady(status, reason, gone.err)
		}
	}
	return res, err
}

func notReady(s *cri.StatusResponse, reason string, err error) {
	for _, c := range s.GetStatus().GetConditions() {
		if c.Type == cri.RuntimeReady {
			c.Status, c.Reason, c.Message = false, reason, err.Error()
		}
	}
}
