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

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/run"
)

var errShimEnded = errors.New("the shim has ended")

// connect gives a connection to a shim of this version.
func (f *front) connect(ctx context.Context) (net.Conn, error) {
	if conn, err := net.Dial("unix", f.path()); err == nil {
		f.meet(conn)
		if f.current() || !f.tell() {
			return conn, nil
		}
		next, err := f.replace(ctx, f.process)
		conn.Close()
		if err == nil || ctx.Err() != nil {
			return next, err
		}
	}
	// Beside one that runs no other could: it may be taking up many containers.
	if p := f.process; p == nil || p.ended.Err() != nil {
		if err := f.spawn(); err != nil {
			return nil, err
		}
	}
	return f.dial(ctx, f.process, func() bool { return true })
}

func (f *front) path() string { return filepath.Join(f.state, shimSocketName) }

// shimStart bounds the start of a shim with many containers.
const shimStart = 30 * time.Second

// dial connects to a shim once it is ready, unless it ends before.
func (f *front) dial(ctx context.Context, p *shimProcess, ready func() bool) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, f.timeouts.start)
	defer cancel()
	defer context.AfterFunc(p.ended, cancel)()
	for {
		var err error
		if ready() {
			var conn net.Conn
			if conn, err = net.Dial("unix", f.path()); err == nil {
				return conn, nil
			}
		}
		select {
		case <-ctx.Done():
			if p.ended.Err() != nil {
				return nil, fmt.Errorf("%w: %s: %s", errShimEnded, p.state, lastLines(f.logPath()))
			}
			return nil, errors.Join(fmt.Errorf("wait for %s: %w", f.path(), ctx.Err()), err)
		case <-time.After(time.Millisecond):
		}
	}
}

// A shimProcess is a shim, by whichever process it was started.
type shimProcess struct {
	pid    int
	signal func(os.Signal) error
	ended  context.Context // done once it has ended
	state  string          // how, thereafter
}

// spawn starts the shim, in a session of its own. The log of the one before is kept: what
// ended it is written there.
func (f *front) spawn() error {
	if info, err := os.Stat(f.logPath()); err == nil && info.Size() > 0 {
		_ = os.Rename(f.logPath(), f.logPath()+".1") // nodes do not go without a shim for it
	}
	log, err := os.OpenFile(f.logPath(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(f.program, "-address", f.socket, "serve")
	cmd.Dir, cmd.Stderr = "/", log
	// Of its threads few have work at a time; it passes this on to the first
	// programs of containers.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended, end := context.WithCancel(context.Background())
	p := &shimProcess{pid: cmd.Process.Pid, signal: cmd.Process.Signal, ended: ended}
	run.Go("container runtime: wait for the shim", func() {
		defer end()
		_ = cmd.Wait() // the state says the same
		p.state = cmd.ProcessState.String()
	})
	f.process = p
	return nil
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

// trouble is why no shim answers.
func (f *front) trouble() error {
	if a, _ := f.absent(); a != nil {
		return a.err
	}
	return errors.New("it is there")
}

// absent says since when the shim hangs or is away, and which of both; nil for neither.
func (f *front) absent() (a *absence, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.client == nil && f.hangs == nil {
		return new(f.gone), "ShimNotRunning"
	}
	if a = f.hangs; a == nil {
		a = f.calls.hung(time.Now())
	}
	return a, "ShimNotResponding"
}

// intercept has the runtime not ready while nothing starts or ends containers: containerd
// itself, which answers, does not know.
func (f *front) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	res, err := next(ctx, req)
	if status, ok := res.(*cri.StatusResponse); ok && err == nil {
		if a, reason := f.absent(); a != nil && time.Since(a.since) > shimMissed {
			notReady(status, reason, a.err)
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
