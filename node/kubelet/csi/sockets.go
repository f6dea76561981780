package csi

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"knarr/internal/run"
)

const (
	// registerTime bounds a registration, and the end of one.
	registerTime = 30 * time.Second
	// maxRegistering is how many sockets are registered at once: one that never answers
	// holds up nobody else.
	maxRegistering = 32
	// The times between two tries to register a plugin, or to unregister it.
	minRetry, maxRetry = 2 * time.Second, time.Minute
)

// sockets are those of the registration directory. Only the loop that follows it reads and
// writes the maps; what takes long is a task beside it.
type sockets struct {
	taken    map[string]taken    // by path: what is registered
	attempts map[string]*attempt // by path: what is being registered, or could not be
	gone     map[string]*attempt // by name: drivers the CSINode may still have

	tasks   run.Group
	ended   chan func()   // what the loop does about a task that has ended
	listing chan struct{} // held by who changes what drivers there are
}

func newSockets() *sockets {
	return &sockets{taken: map[string]taken{}, attempts: map[string]*attempt{}, gone: map[string]*attempt{}, ended: make(chan func()), listing: make(chan struct{}, 1)}
}

// A socketFile is which file there is at a path: another one is another plugin's.
type socketFile struct {
	inode uint64
	made  time.Time
}

// taken is the plugin behind a socket. Without drop it is of a kind that nobody here takes.
type taken struct {
	file       socketFile
	kind, name string
	// drop forgets the plugin, and says whether it was still the one of its name.
	drop func() (was bool)
}

// An attempt is one that goes on, or that failed, until the next one.
type attempt struct {
	file     socketFile
	underway bool
	cancel   context.CancelFunc // while it is under way
	canceled bool
	err      string
	wait     time.Duration
	at       time.Time
}

// fail notes an error, and says whether it is another one than before.
func (a *attempt) fail(err error) (other bool) {
	other = a.err != err.Error()
	a.err, a.wait = err.Error(), min(max(2*a.wait, minRetry), maxRetry)
	a.at = time.Now().Add(a.wait)
	return other
}

// wait is how long until the first of the attempts is made; 0: there is none.
func wait(all ...map[string]*attempt) (least time.Duration) {
	for _, attempts := range all {
		for _, a := range attempts {
			if left := max(time.Until(a.at), time.Millisecond); !a.underway && (least == 0 || left < least) {
				least = left
			}
		}
	}
	return least
}

// begin starts a task beside the loop, which calls ended with its outcome.
func (m *Manager) begin(ctx context.Context, name string, a *attempt, task func(context.Context) error, ended func(error)) {
	within, cancel := context.WithTimeout(ctx, registerTime)
	a.underway, a.cancel = true, cancel
	out := m.sockets.ended
	m.sockets.tasks.Go(name, func() {
		defer cancel()
		err := run.Catch(name, func() error { return task(within) })
		select {
		case out <- func() { a.underway = false; ended(err) }:
		case <-ctx.Done():
		}
	})
}

// find are the sockets in the registration directory.
func (m *Manager) find() (map[string]socketFile, error) {
	entries, err := os.ReadDir(m.registry())
	if err != nil {
		return nil, err
	}
	found := map[string]socketFile{}
	for _, e := range entries {
		if e.Type()&os.ModeSocket == 0 {
			continue
		}
		if st, err := e.Info(); err == nil { // else it has just gone
			found[filepath.Join(m.registry(), e.Name())] = socketFile{st.Sys().(*syscall.Stat_t).Ino, st.ModTime()}
		}
	}
	return found, nil
}

// sync begins to register new sockets and forgets those gone. What failed is to be tried
// again after a while; 0: nothing did.
func (m *Manager) sync(ctx context.Context) (again time.Duration) {
	s := m.sockets
	found, err := m.find()
	if err != nil {
		return minRetry
	}
	for path, t := range s.taken {
		if found[path] != t.file {
			m.forget(path)
		}
	}
	for path, a := range s.attempts {
		switch {
		case found[path] == a.file:
		case a.underway:
			a.canceled = true // nobody waits for a socket that is not there
			a.cancel()
		default:
			delete(s.attempts, path)
		}
	}
	full := m.take(ctx, found)
	m.hideGone(ctx)
	if full { // the end of one is waited for
		return wait(s.gone)
	}
	return wait(s.attempts, s.gone)
}

// forget drops what is behind a socket. Others of its name, which it had taken the place of,
// are registered again: they may still be there.
func (m *Manager) forget(path string) {
	t := m.sockets.taken[path]
	delete(m.sockets.taken, path)
	if t.drop == nil || !t.drop() {
		return
	}
	maps.DeleteFunc(m.sockets.taken, func(_ string, o taken) bool { return o.kind == t.kind && o.name == t.name })
	if t.kind == registration.CSIPlugin {
		m.sockets.gone[t.name] = &attempt{}
	}
}

// take begins to register what is behind sockets, unless that failed a short while ago, and
// says whether as many as may are under way.
func (m *Manager) take(ctx context.Context, found map[string]socketFile) (full bool) {
	s, now, free := m.sockets, time.Now(), maxRegistering
	for _, a := range s.attempts {
		if a.underway {
			free--
		}
	}
	var due []string
	for path := range found {
		_, known := s.taken[path]
		if a := s.attempts[path]; !known && (a == nil || !a.underway && !now.Before(a.at)) {
			due = append(due, path)
		}
	}
	// Those that failed least are first: what never answers waits for what may.
	failed := func(path string) time.Duration {
		if a := s.attempts[path]; a != nil {
			return a.wait
		}
		return 0
	}
	slices.SortFunc(due, func(a, b string) int { return cmp.Or(cmp.Compare(failed(a), failed(b)), cmp.Compare(a, b)) })
	for _, path := range due[:min(len(due), free)] {
		m.try(ctx, path, found[path])
	}
	return len(due) >= free
}

// try begins to register what is behind a socket.
func (m *Manager) try(ctx context.Context, path string, file socketFile) {
	s, a := m.sockets, m.sockets.attempts[path]
	if a == nil {
		a = &attempt{file: file}
		s.attempts[path] = a
	}
	var is taken
	m.begin(ctx, "kubelet: registration of a plugin", a, func(ctx context.Context) (err error) {
		is, err = m.register(ctx, path)
		return err
	}, func(err error) {
		if err == nil {
			is.file = file
			s.taken[path] = is
			delete(s.attempts, path)
			if is.kind == registration.CSIPlugin {
				delete(s.gone, is.name) // it has come back
			}
			return
		}
		if a.canceled {
			delete(s.attempts, path)
		} else if a.fail(err) && ctx.Err() == nil {
			slog.WarnContext(ctx, "register plugin, trying again; if it is gone, remove the socket", "socket", path, "err", err)
		}
	})
}

// hideGone begins to take drivers that are gone out of the CSINode.
func (m *Manager) hideGone(ctx context.Context) {
	for name, a := range m.sockets.gone {
		if a.underway || time.Now().Before(a.at) {
			continue
		}
		m.begin(ctx, "kubelet: end of a storage driver", a, func(ctx context.Context) error {
			return m.list(ctx, func() error { return m.hide(ctx, name) })
		}, func(err error) {
			if err == nil {
				if m.sockets.gone[name] == a {
					delete(m.sockets.gone, name)
				}
				return
			}
			if a.fail(err) && ctx.Err() == nil {
				slog.WarnContext(ctx, "unregister storage driver, trying again", "driver", name, "err", err)
			}
		})
	}
}
