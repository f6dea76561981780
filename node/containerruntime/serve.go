package containerruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/containerd/ttrpc"
	"github.com/pelletier/go-toml/v2"
	"google.golang.org/grpc"

	"knarr/internal/run"
	"knarr/internal/unixsocket"
)

// serve loads the plugins, offers their services on both listeners, and
// unloads them once ctx ends.
func (r *Runtime) serve(ctx context.Context, h host) error {
	c := r.config
	fatal, quiet := quietLogs(c.Log)
	defer quiet()
	if err := c.temporaryMounts(); err != nil {
		return fmt.Errorf("temporary mounts: %w", err)
	}
	if err := c.removeHidden(); err != nil {
		c.Log.Warn("remove leftover", "err", err)
	}

	// Before the plugins: they ask at once for the containers that run.
	tasks, stopTasks := context.WithCancel(context.WithoutCancel(ctx))
	front := newFront(c, h)
	waitTasks, err := front.serve(tasks)
	if err != nil {
		stopTasks()
		return err
	}
	lock := &cgroupLock{root: "/sys/fs/cgroup"}
	defer func() {
		stopTasks()
		waitTasks()
		lock.close()
	}()
	if err := c.mirrors(); err != nil {
		return err
	}
	conn, err := r.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	dialer, err := newPortDialer(conn)
	if err != nil {
		return err
	}
	set, initialised, err := load(ctx, c, settings(c, h), changes(front, h, c, dialer))
	defer unload(set)
	if err != nil {
		return err
	}

	before, began := c.networkNamespaces(), time.Now()
	executor, err := newExecutor(c, conn, front)
	if err != nil {
		return err
	}
	server := newServer(set, lock, executor, front)
	events, err := newEventServer(set)
	if err != nil {
		return err
	}
	socket, err := unixsocket.Listen(c.Socket(), socketMode)
	if err != nil {
		return err
	}
	eventSocket, err := unixsocket.Listen(c.Socket()+".ttrpc", socketMode)
	if err != nil {
		socket.Close()
		return err
	}

	ctx, stop := context.WithCancelCause(ctx)
	var wg run.Group
	serving := func(what string, serve func() error) {
		wg.Go("container runtime: serve "+what, func() {
			if err := run.Catch("container runtime: serve "+what, serve); err != nil && ctx.Err() == nil {
				stop(fmt.Errorf("serve %s: %w", what, err))
			}
		})
	}
	serving("in memory", func() error { return server.Serve(r.mem) })
	serving("on socket", func() error { return server.Serve(socket) })
	serving("events", func() error { return events.Serve(context.WithoutCancel(ctx), eventSocket) })

	err = r.start(ctx, initialised, fatal, executor, func(ctx context.Context, conn *grpc.ClientConn) error { return c.removeStray(ctx, conn, before, began) })
	if err == nil {
		r.once.Do(func() { close(r.ready) })
		select {
		case <-ctx.Done():
		case err = <-fatal:
		}
	}
	stop(err)
	server.Stop()
	if cerr := events.Close(); cerr != nil && !errors.Is(cerr, net.ErrClosed) {
		c.Log.Debug("close event socket", "err", cerr)
	}
	wg.Wait()
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return err
}

// temporaryMounts gives containerd a place for them, and removes those of before.
func (c Config) temporaryMounts() error {
	if err := mount.SetTempMountLocation(filepath.Join(c.Root, "tmpmounts")); err != nil {
		return err
	}
	warnings, err := mount.CleanupTempMounts(0)
	for _, w := range warnings {
		c.Log.Warn("unmount leftover", "err", w)
	}
	return err
}

// start waits for the CRI to know its containers again, removes what an end amid a
// sandbox's start has left, and puts the sandbox image in its place.
func (r *Runtime) start(ctx context.Context, initialised *sync.WaitGroup, fatal <-chan error, e *executor, removeStray func(context.Context, *grpc.ClientConn) error) error {
	done := make(chan struct{})
	run.Go("container runtime: start", func() {
		initialised.Wait()
		close(done)
	})
	select {
	case <-done:
	case err := <-fatal:
		return err
	case <-ctx.Done():
		return nil
	}
	conn, err := r.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := removeStray(ctx, conn); err != nil {
		r.config.Log.Warn("remove what no sandbox has", "err", err)
	}
	if err := identifyLoaded(ctx, conn); err != nil {
		r.config.Log.Warn("name images by their ids; pods may fail to mount one of them until it is loaded again", "err", err)
	}
	ours, err := ensurePause(ctx, conn, r.config.SandboxImage, r.Snapshotter())
	if err != nil {
		return err
	}
	if err := writePauseRoot(r.config.State); err != nil {
		return err
	}
	profile, err := writePauseProfile(r.config.State)
	if err == nil {
		e.pause.Store(&pauseProfile{path: profile, name: r.config.SandboxImage, image: ours})
	}
	return err
}

// loading is held while plugins start: containerd keeps one table of them, with
// their configuration in it, for the whole process.
var loading sync.Mutex

// socketMode lets this user and its group in.
const socketMode = 0o660

// changes gives what makes of a plugin of containerd's the one that is started.
func changes(f *front, h host, c Config, d *portDialer) func(plugin.Registration) plugin.Registration {
	return func(p plugin.Registration) plugin.Registration {
		p = bounded(roomyDisk(p, c.Root))
		p = oneNRI(watching(streams(lookedAt(p, c), d)))
		return managed(p, f, h, c)
	}
}

// load starts containerd's plugins, each as of makes it.
func load(ctx context.Context, c Config, settings map[string]map[string]any, of func(plugin.Registration) plugin.Registration) (*plugin.Set, *sync.WaitGroup, error) {
	loading.Lock()
	defer loading.Unlock()
	plainLayers()
	set, ready := plugin.NewPluginSet(), &sync.WaitGroup{}
	for _, p := range registry.Graph(func(*plugin.Registration) bool { return false }) {
		p = of(p)
		id := p.URI()
		pc := plugin.NewContext(ctx, set, map[string]string{
			plugins.PropertyRootDir:      filepath.Join(c.Root, id),
			plugins.PropertyStateDir:     filepath.Join(c.State, id),
			plugins.PropertyGRPCAddress:  c.Socket(),
			plugins.PropertyTTRPCAddress: c.Socket() + ".ttrpc",
		})
		pc.RegisterReadiness = func() func() {
			ready.Add(1)
			return sync.OnceFunc(ready.Done)
		}
		if p.Config != nil {
			if err := configure(p.Config, settings[id]); err != nil {
				return set, ready, fmt.Errorf("configure %s: %w", id, err)
			}
			pc.Config = p.Config
		}
		loaded := p.Init(pc)
		if err := set.Add(loaded); err != nil {
			return set, ready, fmt.Errorf("load %s: %w", id, err)
		}
		if err := loaded.Err(); err != nil {
			if required[id] {
				return set, ready, fmt.Errorf("load %s: %w", id, err)
			}
			if !plugin.IsSkipPlugin(err) {
				c.Log.Warn("container runtime goes without a part", "part", id, "err", err)
			}
		}
	}
	for id := range required {
		if !loadedIn(set, id) {
			return set, ready, fmt.Errorf("load %s: not linked in", id)
		}
	}
	return set, ready, nil
}

func loadedIn(set *plugin.Set, id string) bool {
	for _, p := range set.GetAll() {
		if p.Registration.URI() == id {
			return true
		}
	}
	return false
}

// configure writes values over a plugin's configuration.
func configure(config any, values map[string]any) error {
	if len(values) == 0 {
		return nil
	}
	if reflect.ValueOf(config).Kind() != reflect.Pointer {
		return fmt.Errorf("%T is no pointer", config)
	}
	b, err := toml.Marshal(values)
	if err != nil {
		return err
	}
	return toml.NewDecoder(bytes.NewReader(b)).DisallowUnknownFields().Decode(config)
}

// unload closes what can be closed, the last started first.
func unload(set *plugin.Set) {
	if set == nil {
		return
	}
	all := set.GetAll()
	for i := len(all) - 1; i >= 0; i-- {
		instance, err := all[i].Instance()
		if err != nil {
			continue
		}
		if closer, ok := instance.(io.Closer); ok {
			_ = closer.Close() // nothing is left to do about it
		}
	}
}

func newServer(set *plugin.Set, l *cgroupLock, e *executor, f *front) *grpc.Server {
	s := grpc.NewServer(
		grpc.MaxRecvMsgSize(defaults.DefaultMaxRecvMsgSize),
		grpc.MaxSendMsgSize(defaults.DefaultMaxSendMsgSize),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			return next(withNamespace(ctx), req)
		}, markPulls, l.intercept, f.intercept, e.intercept),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return next(srv, namespaced{stream, withNamespace(stream.Context())})
		}))
	for service := range services[interface{ Register(*grpc.Server) error }](set, plugins.GRPCPlugin) {
		// None of containerd's services ever fails to register.
		_ = service.Register(s)
	}
	return s
}

// withNamespace makes the caller's containerd namespace that of calls made on
// the caller's behalf too.
func withNamespace(ctx context.Context) context.Context {
	if ns, ok := namespaces.Namespace(ctx); ok {
		return namespaces.WithNamespace(ctx, ns)
	}
	return ctx
}

type namespaced struct {
	grpc.ServerStream
	ctx context.Context
}

func (n namespaced) Context() context.Context { return n.ctx }

// newEventServer serves what the shims report to.
func newEventServer(set *plugin.Set) (*ttrpc.Server, error) {
	s, err := ttrpc.NewServer(ttrpc.WithServerHandshaker(ttrpc.UnixSocketRequireSameUser()))
	if err != nil {
		return nil, err
	}
	for service := range services[interface{ RegisterTTRPC(*ttrpc.Server) error }](set, plugins.TTRPCPlugin, plugins.GRPCPlugin) {
		if err := service.RegisterTTRPC(s); err != nil {
			return nil, fmt.Errorf("serve events: %w", err)
		}
	}
	return s, nil
}

// services gives the loaded plugins of the types that are a T.
func services[T any](set *plugin.Set, types ...plugin.Type) func(func(T) bool) {
	return func(yield func(T) bool) {
		for _, p := range set.GetAll() {
			for _, t := range types {
				if p.Registration.Type != t {
					continue
				}
				instance, err := p.Instance()
				if err != nil {
					continue
				}
				if s, ok := instance.(T); ok && !yield(s) {
					return
				}
			}
		}
	}
}
