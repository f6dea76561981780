package shim

import (
	"context"
	"encoding/json"
	"fmt"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// addExec prepares a further process.
func (t *task) addExec(r *api.ExecProcessRequest) error {
	spec := &specs.Process{}
	if err := json.Unmarshal(r.Spec.GetValue(), spec); err != nil {
		return fmt.Errorf("read the process: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	spec.Terminal = r.Terminal
	if err := validate(spec); err != nil {
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	p := newProcess(r.ExecID, stdio{r.Stdin, r.Stdout, r.Stderr, r.Terminal, !r.Terminal && relayed(spec)})
	p.spec = spec
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case r.ExecID == "":
		return fmt.Errorf("the process has no id: %w", errdefs.ErrInvalidArgument)
	case t.forgotten:
		return fmt.Errorf("container %s: %w", t.id, errdefs.ErrNotFound)
	case t.execs[r.ExecID] != nil:
		return fmt.Errorf("id %s: %w", r.ExecID, errdefs.ErrAlreadyExists)
	}
	back, err := t.service.execs.take(undeleted, t.key, t.pod)
	if err != nil {
		return err
	}
	p.back = back
	t.execs[r.ExecID] = p
	return nil
}

// startExec starts a process that was prepared. Where ctx ends before, or it is deleted, what
// there is of it is killed.
func (t *task) startExec(ctx context.Context, p *process) error {
	select {
	case <-t.init.exited:
		return fmt.Errorf("container %s init process is not running: %w", t.id, errdefs.ErrFailedPrecondition)
	default:
	}
	back, err := t.service.starts.take(starting, t.key, t.pod)
	if err != nil {
		return err
	}
	defer back()
	// A view of the container for this process alone: others are not kept waiting
	// by one that hangs.
	c, err := libcontainer.Load(t.root, t.id)
	if err != nil {
		return err
	}
	status, err := c.Status()
	if err != nil {
		return err
	}
	switch status {
	case libcontainer.Stopped:
		return fmt.Errorf("cannot exec in a stopped container: %w", errdefs.ErrFailedPrecondition)
	case libcontainer.Paused:
		return fmt.Errorf("cannot exec in a paused container: %w", errdefs.ErrFailedPrecondition)
	}
	if err := t.begin(ctx, c, p, p.spec, false); err != nil {
		return fmt.Errorf("OCI runtime exec failed: exec failed: %w", err)
	}
	p.started.Store(true)
	p.spec = nil
	return nil
}

// deleteExec forgets a process that has ended or never began.
func (t *task) deleteExec(p *process) error {
	select {
	case <-p.exited:
		p.release()
	default:
		if !p.abandon() { // else its start, if that is under way, releases what it holds
			return fmt.Errorf("cannot delete a running process: %w", errdefs.ErrFailedPrecondition)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.execs, p.id)
	p.back()
	return nil
}

// forgetExecs gives back what the processes of a container had that is deleted.
func (t *task) forgetExecs() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgotten = true
	for _, p := range t.execs {
		p.back()
	}
}

// execOf names the process that was added with this number.
func (t *task) execOf(pid int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, p := range t.execs {
		if p.number() == pid {
			return id
		}
	}
	return ""
}
