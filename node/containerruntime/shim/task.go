package shim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	eventstypes "github.com/containerd/containerd/api/events"
	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"knarr/internal/oomscore"
)

// A task is a container.
type task struct {
	key
	service *Service
	bundle  string
	pod     key // its sandbox; the container itself where it is none's
	// root is where libcontainer keeps what it knows of containers.
	root string
	// ioUID and ioGID own the pipes of the container's processes.
	ioUID, ioGID int

	container *libcontainer.Container
	// groupPaths are where its control groups are, once asked for: they stay.
	groupPaths atomic.Pointer[map[string]string]
	init       *process // under the service's lock while it is created
	// waits says that the first process waits for Start.
	waits bool

	mu    sync.Mutex
	execs map[string]*process
	// forgotten says that it was deleted: it gets no more processes.
	forgotten bool
	paused    bool

	oomMu      sync.Mutex
	ooms       uint64       // how often a process of it was killed for want of memory, as was said
	oomWatched atomic.Int32 // the number by which its count is watched, or 0

	checkpointing atomic.Bool // a checkpoint of it is being written
}

func (t *task) rootfs() string { return filepath.Join(t.bundle, "rootfs") }

// create makes the container and its first process, which waits for start. Where ctx ends
// before, what there is of the process is killed.
func (t *task) create(ctx context.Context, r *api.CreateTaskRequest) (err error) {
	opts := &options.Options{}
	if r.Options.GetValue() != nil {
		if err := typeurl.UnmarshalTo(r.Options, opts); err != nil {
			return fmt.Errorf("read options: %w", err)
		}
	}
	// ctr names no root.
	t.root = filepath.Join(cmp.Or(opts.Root, filepath.Join(t.service.state, rootName)), t.namespace)
	t.ioUID, t.ioGID = int(opts.IoUid), int(opts.IoGid)
	spec, err := readSpec(t.bundle)
	if err != nil {
		return err
	}
	t.pod = podOf(t.key, spec.Annotations)
	// Before there is anything: who finds a container that was not made to its end
	// knows where to look.
	if err := t.save(nil); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.deleted())
		}
	}()
	if r.Stdin+r.Stdout+r.Stderr == "" {
		if s, ok := sandboxOf(spec, t.service.pauseProfile()); ok {
			return t.createSandbox(s, r, opts, spec)
		}
	}
	if len(r.Rootfs) > 0 {
		if err := t.mountRoot(r); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, t.unmountRoot())
			}
		}()
	}
	return t.createContainer(ctx, r, opts, spec)
}

// createContainer has libcontainer make a container whose root is there.
func (t *task) createContainer(ctx context.Context, r *api.CreateTaskRequest, opts *options.Options, spec *specs.Spec) error {
	config, err := toConfig(t.id, opts, spec)
	if err != nil {
		return err
	}
	labelBundle(config, t.bundle)
	t.service.filters.share(config.Seccomp)
	if mounted, err := cgroupMounts(); err == nil { // else libcontainer looks itself, each time
		mountCgroups(config, mounted)
	}
	t.waits = true
	if t.container, err = libcontainer.Create(t.root, t.id, config); err != nil {
		return err
	}
	p := newProcess("", stdio{r.Stdin, r.Stdout, r.Stderr, r.Terminal, !r.Terminal && relayed(spec.Process)})
	if err := t.begin(ctx, t.container, p, spec.Process, true); err != nil {
		return errors.Join(err, t.container.Destroy())
	}
	t.service.mu.Lock()
	t.init = p
	t.service.mu.Unlock()
	if config.Cgroups.Systemd {
		if err := t.service.ooms.add(t); err != nil {
			warn("container %s: %v", t.id, err)
		}
	}
	if err := t.save(nil); err != nil {
		t.service.ooms.remove(t)
		_ = p.signal(unix.SIGKILL)
		p.reap()
		p.release()
		return errors.Join(err, t.container.Destroy())
	}
	if spec.Hooks == nil {
		// The container has its root. Here it would be one more mount, which each start
		// of a container copies and each look at all mounts reads.
		if err := unix.Unmount(t.rootfs(), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			warn("detach the root of %s: %v", t.id, err)
		}
	}
	return nil
}

func (t *task) mountRoot(r *api.CreateTaskRequest) error {
	if err := os.Mkdir(t.rootfs(), 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	var mounts []mount.Mount
	for _, m := range r.Rootfs {
		mounts = append(mounts, mount.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	if err := mount.All(mounts, t.rootfs()); err != nil {
		return errors.Join(fmt.Errorf("failed to mount rootfs component: %w", err), t.unmountRoot())
	}
	return nil
}

// unmountRoot unmounts what is on the container's root here. It looks for mounts below in
// the kernel's list of all, which is long where many pods are, only where there are any.
func (t *task) unmountRoot() error {
	for {
		switch err := unix.Unmount(t.rootfs(), unix.UMOUNT_NOFOLLOW); {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil // there is nothing, or nothing more
		case err != nil:
			return mount.UnmountRecursive(t.rootfs(), 0)
		}
	}
}

// maxSpec bounds the description of a container.
const maxSpec = 16 << 20

// readSpec reads a container's description; its paths are made absolute, since
// this process has no bundle as its directory.
func readSpec(bundle string) (*specs.Spec, error) {
	f, err := os.Open(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	spec := &specs.Spec{}
	if err := json.NewDecoder(io.LimitReader(f, maxSpec)).Decode(spec); err != nil {
		return nil, fmt.Errorf("read config.json: %w", err)
	}
	if spec.Root == nil {
		return nil, errors.New("root must be specified")
	}
	if err := validate(spec.Process); err != nil {
		return nil, err
	}
	if spec.Process.OOMScoreAdj == nil { // this program's is not for its containers
		own, err := oomscore.Inherited()
		if err != nil {
			return nil, err
		}
		spec.Process.OOMScoreAdj = new(max(own, 0))
	}
	if !filepath.IsAbs(spec.Root.Path) {
		spec.Root.Path = filepath.Join(bundle, spec.Root.Path)
	}
	for i, m := range spec.Mounts {
		if bind(m) && !filepath.IsAbs(m.Source) {
			spec.Mounts[i].Source = filepath.Join(bundle, m.Source)
		}
	}
	return spec, nil
}

func bind(m specs.Mount) bool {
	if m.Type == "bind" {
		return true
	}
	for _, o := range m.Options {
		if o == "bind" || o == "rbind" {
			return true
		}
	}
	return false
}

// labelBundle corrects what libcontainer takes from the directory of the process.
func labelBundle(config *configs.Config, bundle string) {
	const label = "bundle="
	for i, l := range config.Labels {
		if len(l) >= len(label) && l[:len(label)] == label {
			config.Labels[i] = label + bundle
		}
	}
}

// begin starts a process of a container; the first one up to its last step. It fails, and
// leaves no process, where ctx ends meanwhile or the process is abandoned.
func (t *task) begin(ctx context.Context, c *libcontainer.Container, p *process, spec *specs.Process, init bool) error {
	child, err := toProcess(spec)
	if err != nil {
		return err
	}
	child.Init, child.LogLevel = init, "4"
	files, err := p.connect(child, t.ioUID, t.ioGID)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(p.wanted, stop)()
	err = startWanted(ctx.Done(), func() error { return c.Start(child) })
	files.close()
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(errUnwanted, err)
		}
		t.service.leftBy()
	} else {
		p.wait = child.Wait
		var pid int
		if ctx.Err() != nil {
			err = errUnwanted
		} else if pid, err = child.Pid(); err == nil {
			err = p.opened(pid)
		}
		if err == nil && p.io.Terminal {
			err = p.receiveConsole()
		}
		if err != nil {
			_ = child.Signal(unix.SIGKILL)
			_, _ = child.Wait()
		}
	}
	if err != nil {
		p.release()
	}
	return err
}

// watch waits for the end of a process and tells of it.
func (t *task) watch(p *process) {
	if err := p.await(); err != nil {
		warn("wait for process %d: %v", p.pid, err)
	}
	p.lifecycle.Lock()
	defer p.lifecycle.Unlock()
	status := p.reap()
	if p == t.init {
		if t.oomWatched.Load() != 0 {
			t.tellOOM() // while the others are awaited systemd may remove the count
		}
		t.endOthers()
		t.tellOOM()
		t.service.ooms.remove(t)
	}
	p.ended(status)
	if p == t.init {
		if err := t.save(&p.exit); err != nil {
			warn("save the end of %s: %v", t.id, err)
		}
	}
	id := p.id
	if p == t.init {
		id = t.id
	}
	t.service.events.send(t.namespace, "/tasks/exit", &eventstypes.TaskExit{
		ContainerID: t.id, ID: id, Pid: uint32(p.pid), ExitStatus: status, ExitedAt: timestamppb.New(p.exit.At),
	})
	close(p.exited)
}

// othersEnd is how long the other processes of a container may take to end with
// its first one.
const othersEnd = 10 * time.Second

// endOthers ends what outlives the first process where that is not its
// namespace's, and waits for the processes that were added: the end of the first
// is told last. Those that are still being started are given up.
func (t *task) endOthers() {
	if config := t.container.Config(); !config.Namespaces.IsPrivate(configs.NEWPID) {
		if err := t.container.Signal(unix.SIGKILL); err != nil && !errors.Is(err, libcontainer.ErrNotRunning) {
			warn("kill the processes of %s: %v", t.id, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), othersEnd)
	defer cancel()
	t.mu.Lock()
	var running []*process
	for _, p := range t.execs {
		if !p.abandon() {
			running = append(running, p)
		}
	}
	t.mu.Unlock()
	for _, p := range running {
		p.done(ctx)
	}
}

// kill sends a signal to a process. SIGKILL for the first one of a container
// without a PID namespace of its own is for all.
func (t *task) kill(p *process, signal uint32) error {
	sig := unix.Signal(signal)
	if p != t.init || sig != unix.SIGKILL {
		return p.signal(sig)
	}
	if config := t.container.Config(); !config.Namespaces.IsPrivate(configs.NEWPID) {
		// Another view of the container: the lock of this one may be held by a
		// start that hangs.
		other, err := libcontainer.Load(t.root, t.id)
		if err == nil {
			err = other.Signal(sig)
		}
		if errors.Is(err, libcontainer.ErrNotRunning) || errors.Is(err, libcontainer.ErrNotExist) {
			return errFinished
		}
		return err
	}
	if err := p.signal(sig); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.paused { // in version 1 of control groups a frozen process does not die
		if err := t.container.Resume(); err == nil {
			t.paused = false
		}
	}
	return nil
}

// delete removes what is left of a container that has ended or never began.
func (t *task) delete(ctx context.Context) error {
	select {
	case <-t.init.exited:
	default:
		if t.init.started.Load() {
			return fmt.Errorf("cannot delete a running process: %w", errdefs.ErrFailedPrecondition)
		}
		if err := t.kill(t.init, uint32(unix.SIGKILL)); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		if !t.init.done(ctx) {
			return ctx.Err()
		}
	}
	t.init.release()
	if _, err := t.container.Status(); err != nil { // it looks again
		warn("look at container %s: %v", t.id, err)
	}
	if err := t.container.Destroy(); err != nil {
		return fmt.Errorf("failed to delete task: %w", err)
	}
	if err := t.unmountRoot(); err != nil {
		return fmt.Errorf("failed rootfs umount: %w", err)
	}
	_ = os.Remove(t.rootfs()) // so that containerd does not look for mounts there
	return t.deleted()
}
