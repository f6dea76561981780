package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/utils"
	"golang.org/x/sys/unix"

	"knarr/internal/run"
)

// savedName is the file in a bundle with what is not in libcontainer's own state.
const savedName = "knarr-shim.json"

// deletedName is the file in the bundle of a container of which nothing is left.
// verb/verb.c knows it.
const deletedName = "knarr-shim.deleted"

// saved is what this program must know of a container to go on with it after its
// own end.
type saved struct {
	Root         string
	IOUID, IOGID int
	IO           stdio
	Pid          int
	Started      bool
	Exit         *exit // nil while it runs
}

// savedSize is that of the file: it is written whole, in one call and in its
// place, so that no end of this program leaves a part of it, and so that no file
// is made anew for each change. It is not synced: after a power cut there is no
// container.
const savedSize = 4096

func (t *task) save(end *exit) error {
	s := saved{Root: t.root, IOUID: t.ioUID, IOGID: t.ioGID, Exit: end}
	if p := t.init; p != nil {
		s.IO, s.Pid, s.Started = p.io, p.number(), p.started.Load()
	}
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if len(b) > savedSize {
		return fmt.Errorf("what is known of container %s is %d bytes", t.id, len(b))
	}
	b = append(b, bytes.Repeat([]byte(" "), savedSize-len(b))...)
	f, err := os.OpenFile(filepath.Join(t.bundle, savedName), os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	return errors.Join(err, f.Close())
}

// deleted notes that nothing is left. A delete of before may have done so, or the whole
// bundle be gone, when containerd ended between that and hearing of it: it asks again.
func (t *task) deleted() error {
	err := os.Rename(filepath.Join(t.bundle, savedName), filepath.Join(t.bundle, deletedName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func readSaved(bundle string) (*saved, error) {
	f, err := os.Open(filepath.Join(bundle, savedName))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, savedSize))
	if err != nil {
		return nil, err
	}
	s := &saved{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return s, nil
}

// restore takes up the containers that a program before this one began. What is left of
// one that it was still making, or was removing already, is removed: containerd, whose call
// has failed or finds nothing, forgets it without another word. One that cannot be taken up
// else is left for containerd, which has it deleted.
func (s *Service) restore(left leftFiles) {
	var paths []string
	for _, dir := range s.bundles {
		found, _ := filepath.Glob(filepath.Join(dir, "*", "*", savedName))
		paths = append(paths, found...)
	}
	for _, path := range paths {
		bundle := filepath.Dir(path)
		t := &task{
			key:    key{filepath.Base(filepath.Dir(bundle)), filepath.Base(bundle)},
			bundle: bundle, service: s, execs: map[string]*process{},
		}
		err := t.restore(left)
		if errors.Is(err, errHalf) {
			err = t.unmake()
		} else if err == nil {
			s.tasks[t.key] = t
		}
		if err != nil {
			warn("take up container %s: %v", t.id, err)
		}
	}
}

var errHalf = errors.New("it was not made, or not removed, to its end")

// load reads what libcontainer keeps of the container on disk.
func (t *task) load() (*libcontainer.Container, error) {
	c, err := libcontainer.Load(t.root, t.id)
	if err != nil {
		return nil, err
	}
	t.service.filters.share(c.Config().Seccomp) // of the container, not of a copy
	return c, nil
}

// unmake removes what a program that ended has left of a container halfway: its first
// process, which may wait for its start for ever, its control groups and its root.
func (t *task) unmake() error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	if err := errors.Join(destroy(ctx, t.root, t.id), t.unmountRoot()); err != nil {
		return err
	}
	return t.deleted()
}

func (t *task) restore(left leftFiles) error {
	old, err := readSaved(t.bundle)
	if err != nil {
		return err
	}
	t.root, t.ioUID, t.ioGID = old.Root, old.IOUID, old.IOGID
	if old.Pid == 0 {
		return errHalf
	}
	if t.container, err = t.load(); errors.Is(err, libcontainer.ErrNotExist) {
		return errHalf
	} else if err != nil {
		return err
	}
	_, annotations := utils.Annotations(t.container.Config().Labels)
	t.pod = podOf(t.key, annotations)
	p := newProcess("", old.IO)
	p.pid = old.Pid
	p.started.Store(old.Started)
	t.init = p
	if old.Exit != nil {
		p.exit = *old.Exit
		close(p.exited)
		if old.IO.Relayed { // what it wrote last may not have been moved yet
			t.goOn(left)
		}
		return nil
	}
	if err := p.opened(old.Pid); err != nil {
		if !errors.Is(err, unix.ESRCH) {
			return err
		}
		return t.lost()
	}
	// The number may have passed to another process since.
	status, err := t.container.Status()
	if err != nil {
		return err
	}
	p.started.Store(status != libcontainer.Created) // one that has ended just now had begun
	t.paused, t.waits = status == libcontainer.Paused, status == libcontainer.Created
	if status == libcontainer.Stopped && !zombie(old.Pid) {
		return t.lost()
	}
	if t.container.Config().Cgroups.Systemd {
		if err := t.service.ooms.add(t); err != nil {
			warn("container %s: %v", t.id, err)
		}
	}
	t.goOn(left)
	run.Go("shim: container", func() { t.watch(p) })
	return nil
}

// goOn takes up what the first process reads and writes.
func (t *task) goOn(left leftFiles) {
	var err error
	switch p := t.init; {
	case p.io.Terminal:
		err = p.inheritConsole(left.take(t.namespace + "/" + t.id))
	case p.io.Relayed:
		err = p.inheritRelay(left)
	default:
		err = p.hold()
	}
	if err != nil {
		warn("hold the output of %s: %v", t.id, err)
	}
}
