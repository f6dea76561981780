package containerruntime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/runtime"
	v2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/plugin"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A taskManager is containerd's, but for the containers that the one shim of this node
// runs. containerd's own executes a shim's program at each container's start and end, and
// keeps a connection, with its buffers and goroutines at both ends, for each: here that
// would lead into this process. Bundles are in a directory of their own, since containerd's
// takes all that it finds at its start for its own.
type taskManager struct {
	*v2.TaskManager
	front *front
	// runtimePath is what containers of the shim name as their runtime's.
	runtimePath string
	bundles     string
	log         *slog.Logger

	mu    sync.RWMutex
	tasks map[taskKey]*task
}

// A taskKey names a container: two namespaces of containerd may use the same id.
type taskKey struct{ namespace, id string }

// managed gives containerd's plugin of tasks that manager.
func managed(p plugin.Registration, f *front, h host, c Config) plugin.Registration {
	if p.Type != plugins.RuntimePluginV2 || p.ID != "task" {
		return p
	}
	return replaced(p, func(ic *plugin.InitContext, theirs any) (any, error) {
		tasks, ok := theirs.(*v2.TaskManager)
		if !ok {
			return nil, fmt.Errorf("containerd's manager of tasks is a %T", theirs)
		}
		m := &taskManager{
			TaskManager: tasks, front: f, runtimePath: h.verb, bundles: filepath.Join(c.State, bundlesName), log: c.Log, tasks: map[taskKey]*task{},
		}
		return m, m.takeUp(ic.Context)
	})
}

// Create prepares a container up to its last step, which the task's Start does.
func (m *taskManager) Create(ctx context.Context, id string, opts runtime.CreateOpts) (runtime.Task, error) {
	if opts.Runtime != m.runtimePath {
		return m.TaskManager.Create(ctx, id, opts)
	}
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	if err := identifiers.Validate(id); err != nil {
		return nil, fmt.Errorf("invalid task id %s: %w", id, err)
	}
	t := &task{taskKey: taskKey{ns, id}, bundle: filepath.Join(m.bundles, ns, id), front: m.front, sandbox: ofSandbox(opts.Spec.GetValue())}
	if err := writeBundle(t.bundle, opts.Spec.GetValue()); err != nil {
		return nil, err
	}
	m.add(t) // what is told of it before the answer is known to be of this one
	if err := t.create(ctx, opts); err != nil {
		m.forget(t)
		return nil, errors.Join(fmt.Errorf("failed to create shim task: %w", err), t.undo(ctx, err))
	}
	return t, nil
}

// undo removes what is left of a container whose making failed. A shim that has ended amid
// it says nothing of how far it came: what it wrote into the bundle is what the next one
// removes the rest by, so that the bundle stays until that one has.
func (t *task) undo(ctx context.Context, why error) error {
	if !errdefs.IsUnavailable(why) && ctx.Err() == nil {
		return removeBundle(t.bundle)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shimStart)
	defer cancel()
	if err := t.kill(ctx, "", uint32(unix.SIGKILL), true); err == nil {
		_, _ = t.Wait(ctx) // deleting it says what is wrong
	}
	if _, err := t.delete(ctx, ""); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove what is left of it: %w", err)
	}
	return removeBundle(t.bundle)
}

func (m *taskManager) add(t *task) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tasks[t.taskKey] = t
}

func (m *taskManager) forget(t *task) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.tasks, t.taskKey)
}

// find gives one of the shim's; nil if it is not.
func (m *taskManager) find(ctx context.Context, id string) *task {
	ns, _ := namespaces.Namespace(ctx)
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tasks[taskKey{ns, id}]
}

// Get finds a task.
func (m *taskManager) Get(ctx context.Context, id string) (runtime.Task, error) {
	if t := m.find(ctx, id); t != nil {
		return t, nil
	}
	return m.TaskManager.Get(ctx, id)
}

// Tasks lists those of the context's namespace, or all.
func (m *taskManager) Tasks(ctx context.Context, all bool) ([]runtime.Task, error) {
	list, err := m.TaskManager.Tasks(ctx, all)
	if err != nil {
		return nil, err
	}
	ns, _ := namespaces.Namespace(ctx)
	m.mu.RLock()
	defer m.mu.RUnlock()
	for k, t := range m.tasks {
		if all || k.namespace == ns {
			list = append(list, t)
		}
	}
	return list, nil
}

// Delete removes what is left of a task.
func (m *taskManager) Delete(ctx context.Context, id string) (*runtime.Exit, error) {
	t := m.find(ctx, id)
	if t == nil {
		return m.TaskManager.Delete(ctx, id)
	}
	exit, err := t.delete(ctx, "")
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("failed to delete task: %w", err)
	}
	if rerr := removeBundle(t.bundle); rerr != nil {
		m.log.Error("remove the bundle of a container", "id", id, "err", rerr)
	}
	m.forget(t)
	return exit, err
}

// takeUp finds the containers of before this start. One that the shim does not know was
// not made to its end, or was deleted before this process heard of it. One that the shim
// cannot describe is kept: it may run. While no shim answers, since none is there or the one
// that is there hangs, this waits for the next: containers of which nothing is known would
// be made anew. Without one in the end the runtime does not start, and so the node is not
// ready, and its containers stay as they are.
func (m *taskManager) takeUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.front.timeouts.takeUp, errShimSilent)
	defer cancel()
	paths, err := filepath.Glob(filepath.Join(m.bundles, "*", "*"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		t := &task{taskKey: taskKey{filepath.Base(filepath.Dir(path)), filepath.Base(path)}, bundle: path, front: m.front}
		if spec, err := os.ReadFile(filepath.Join(path, specName)); err == nil { // else it is of no bundle that is whole
			t.sandbox = ofSandbox(spec)
		}
		ctx := namespaces.WithNamespace(ctx, t.namespace)
		state, err := t.State(ctx)
		if errdefs.IsNotFound(err) {
			if err := m.remove(ctx, t); err != nil {
				m.log.Error("remove what is left of a container", "id", t.id, "err", err)
			}
			continue
		}
		if ctx.Err() != nil {
			return fmt.Errorf("take up the containers of before: %w: %v", context.Cause(ctx), m.front.trouble())
		}
		if err != nil {
			m.log.Error("the shim does not say how a container is", "id", t.id, "err", err)
		}
		t.pid.Store(state.Pid)
		m.add(t)
	}
	return nil
}

// remove removes a container that the shim could not take up.
func (m *taskManager) remove(ctx context.Context, t *task) error {
	if _, err := os.Stat(filepath.Join(t.bundle, savedName)); err == nil {
		cmd := exec.CommandContext(ctx, m.front.program, "-namespace", t.namespace, "-address", m.front.socket, "-id", t.id, "-bundle", t.bundle, "delete")
		cmd.Dir = t.bundle
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
		}
	}
	return removeBundle(t.bundle)
}

// specName is the file in a bundle with a container's specification.
const specName = "config.json"

// ofSandbox says whether a specification is that of a pod's sandbox: containerd annotates it,
// and pods' own annotations do not get there. Pure.
func ofSandbox(spec []byte) bool {
	var s struct{ Annotations map[string]string }
	return json.Unmarshal(spec, &s) == nil && s.Annotations["io.kubernetes.cri.container-type"] == "sandbox"
}

// writeBundle makes the directory that an OCI runtime reads a container's specification
// from, and where its root will be.
func writeBundle(dir string, spec []byte) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	err := admitRoot(dir, spec)
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "rootfs"), 0o711)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, specName), spec, 0o600)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return nil
}

// admitRoot lets the root of a pod's user namespace reach its own root below dir.
func admitRoot(dir string, spec []byte) error {
	var s struct {
		Linux struct{ GIDMappings []specs.LinuxIDMapping }
	}
	if err := json.Unmarshal(spec, &s); err != nil {
		return fmt.Errorf("decode the container's specification: %w", err)
	}
	for _, m := range s.Linux.GIDMappings {
		if m.ContainerID == 0 && m.HostID != 0 {
			return errors.Join(os.Chown(dir, -1, int(m.HostID)), os.Chmod(dir, 0o710))
		}
	}
	return nil
}

// removeBundle never removes through a mount that is still there.
func removeBundle(dir string) error {
	rootfs := filepath.Join(dir, "rootfs")
	if err := os.Remove(rootfs); err != nil && !errors.Is(err, os.ErrNotExist) {
		if err := mount.UnmountRecursive(rootfs, 0); err != nil {
			return fmt.Errorf("unmount %s: %w", rootfs, err)
		}
		if err := os.Remove(rootfs); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}
