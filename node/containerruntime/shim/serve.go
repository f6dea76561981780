package shim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/runc/libcontainer/exeseal"
	"golang.org/x/sys/unix"

	"knarr/internal/footprint"
	"knarr/internal/oomscore"
	"knarr/internal/run"
)

// SocketName is the socket of the program that runs the containers, in the
// directory of containerd's; FrontName is the one that containerd is led to.
const (
	SocketName = "shim.sock"
	FrontName  = "tasks.sock"
	// BundlesName is the directory of bundles there, and FormerBundlesName that in which
	// containerd made them for versions before.
	BundlesName       = "tasks"
	FormerBundlesName = "io.containerd.runtime.v2.task"
	// programName is the file that says which program serves.
	programName = "shim.program"
)

// room is what may be allocated at least between two collections while containers are started,
// in bytes: a start allocates some 600 kB and leaves 30.
const room = 4 << 20

// maxLog bounds what is written of troubles.
const maxLog = 1 << 20

var logged struct {
	sync.Mutex
	bytes int
}

// warn writes to the log, which is this program's standard error.
func warn(format string, args ...any) {
	logged.Lock()
	defer logged.Unlock()
	if logged.bytes < maxLog {
		n, _ := fmt.Fprintf(os.Stderr, format+"\n", args...)
		logged.bytes += n
	}
}

// Serve runs containers for the containerd whose socket is at address until it
// is told to end. Told to begin anew, by SIGHUP, it becomes the program that then
// is at path, and keeps its containers as children.
func Serve(address, path string) error {
	if err := seal(); err != nil {
		return err
	}
	nameSelf()
	spareSelf()
	footprint.Pace(room, debug.FreeOSMemory)
	state := filepath.Dir(address)
	program := os.Getenv(programEnv)
	if err := os.Chdir("/"); err != nil {
		return err
	}
	unlock, err := onlyOne(filepath.Join(state, "shim.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.WriteFile(filepath.Join(state, programName), []byte(program), 0o600); err != nil {
		return err
	}
	s := &Service{
		state: state, bundles: []string{filepath.Join(state, BundlesName), filepath.Join(state, FormerBundlesName)}, sandboxes: sandboxes{root: filepath.Join(state, pauseRootName)}, events: newPublisher(address + ".ttrpc"), tasks: map[key]*task{},
	}
	left := inherited()
	s.restore(left)
	s.waitForOthers()
	left.close()

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGHUP, unix.SIGTERM)
	server, err := ttrpc.NewServer(
		ttrpc.WithServerHandshaker(ttrpc.UnixSocketRequireSameUser()),
		ttrpc.WithUnaryServerInterceptor(recovering))
	if err != nil {
		return err
	}
	api.RegisterTTRPCTaskService(server, s)
	socket := filepath.Join(state, SocketName)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return err
	}

	ctx, cancel := context.WithCancel(context.Background())
	var wg run.Group
	wg.Go("shim: events", func() { s.events.run(ctx) })
	failed := make(chan error, 1)
	wg.Go("shim: serve", func() { failed <- server.Serve(ctx, listener) })
	select {
	case err = <-failed:
	case sig := <-signals:
		s.pauseChanges()
		if sig == unix.SIGHUP {
			err = s.again(path)
		}
	}
	cancel()
	_ = server.Close()
	wg.Wait()
	return err
}

// nameSelf has ps and the kernel's messages call this process what it is: the sealed copy was
// started by the number of a descriptor.
func nameSelf() { _ = os.WriteFile("/proc/self/comm", []byte("knarr-shim"), 0) }

// ownScore is the oom_score_adj of this program, which all containers of the node need: that
// of containerd's shims.
const ownScore = -998

// spareSelf lets the kernel end others first when memory runs out. Where it may not be
// lowered the score stays; containers get theirs either way.
func spareSelf() { _ = oomscore.Self(ownScore) }

// programEnv hands which file the program was started from to its sealed copy.
const programEnv = "KNARR_SHIM_PROGRAM"

// seal makes this program one that no container can write to, even if it gets
// hold of the file its first process was started from (CVE-2019-5736). Each start
// would make a copy otherwise.
func seal() error {
	if exeseal.IsSelfExeCloned() {
		return nil
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	info, err := self.Stat()
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		if err := os.Setenv(programEnv, fmt.Sprintf("%d %d %d", stat.Ino, stat.Size, info.ModTime().UnixNano())); err != nil {
			return err
		}
	}
	clone, err := exeseal.CloneBinary(self, info.Size(), "knarr-shim", os.TempDir())
	self.Close()
	if err != nil {
		return fmt.Errorf("seal this program: %w", err)
	}
	if !exeseal.IsCloned(clone) { // no memfd here: each start makes a copy
		return clone.Close()
	}
	return syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", clone.Fd()), os.Args, os.Environ())
}

// changesEnd is how long calls under way may take before this program is replaced.
const changesEnd = 10 * time.Second

// pauseChanges waits for the calls that change something, and keeps others from
// beginning: they are for the next program. One that hangs is cut off.
func (s *Service) pauseChanges() {
	for until := time.Now().Add(changesEnd); !s.changing.TryLock() && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
}

// onlyOne takes the lock of the program that runs the containers.
func onlyOne(path string) (unlock func(), err error) {
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { unix.Close(fd) }, nil
}
