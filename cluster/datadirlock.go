package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// marker is the file that makes a directory a cluster's.
type marker struct {
	Version     int    `json:"version"`
	ClusterCIDR string `json:"clusterCIDR,omitempty"` // of a server
	ServiceCIDR string `json:"serviceCIDR,omitempty"`
	Datastore   string `json:"datastore,omitempty"` // empty: the embedded etcd
	Agent       bool   `json:"agent,omitempty"`
}

// change says why a directory made with have cannot serve want. Pure.
func (have marker) change(want marker, dir string) error {
	switch {
	case have.Version != want.Version:
		return fmt.Errorf("--data-dir %s belongs to another version of knarr; use that one, or give another directory", dir)
	case have.Agent && !want.Agent:
		return fmt.Errorf("--data-dir %s is an agent's; start it with knarr agent, or give another directory", dir)
	case want.Agent && !have.Agent:
		return fmt.Errorf("--data-dir %s is a server's; start it with knarr server, or give another directory", dir)
	case have.ClusterCIDR != want.ClusterCIDR:
		return fmt.Errorf("--cluster-cidr %s: this cluster was made with %s, which cannot be changed; give that one", want.ClusterCIDR, have.ClusterCIDR)
	case have.ServiceCIDR != want.ServiceCIDR:
		return fmt.Errorf("--service-cidr %s: this cluster was made with %s, which cannot be changed; give that one, and for more addresses create a ServiceCIDR in the cluster", want.ServiceCIDR, have.ServiceCIDR)
	case have.Datastore != want.Datastore && have.Datastore == "":
		return fmt.Errorf("--datastore-endpoint: the cluster of --data-dir %s is kept in its embedded etcd; leave the flag out, or give another directory", dir)
	case have.Datastore != want.Datastore:
		return fmt.Errorf("--datastore-endpoint: the cluster of --data-dir %s is kept in %s; give where that is, or another directory", dir, have.Datastore)
	}
	return nil
}

// A dataDirLock is one process's hold of a data directory.
type dataDirLock struct {
	layout layout
	lock   *os.File
	fresh  bool // the directory was empty
}

// dataDirLock makes the data directory this process's.
func (l layout) dataDirLock(want marker, withPods bool) (*dataDirLock, error) {
	dir := l.dir
	entries, err := os.ReadDir(dir)
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool {
		path := filepath.Join(dir, e.Name())
		// One is mounted elsewhere, for this cluster, the other is for its images, which may be
		// put there before the first start.
		return path == KubeletFiles(dir) && empty(path) || path == filepath.Dir(l.images())
	})
	fresh := errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("--data-dir %s: %w; give a directory that can be read and written", dir, err)
	}
	b, err := os.ReadFile(l.state())
	var have marker
	switch {
	case err == nil:
		if err := json.Unmarshal(b, &have); err != nil {
			have = marker{}
		}
		if err := have.change(want, dir); err != nil {
			return nil, err
		}
	case !fresh:
		return nil, fmt.Errorf("--data-dir %s holds files that are not knarr's; give an empty directory or one of a knarr cluster", dir)
	case withPods && !empty(l.kubelet()):
		return nil, fmt.Errorf("%s holds another kubelet's files; remove what runs there, or give another --data-dir", l.kubelet())
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("--data-dir %s: %w; give a directory that can be written", dir, err)
	}
	lock, err := os.OpenFile(l.lock(), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--data-dir %s: %w; give a directory that can be written", dir, err)
	}
	if err := takeLock(lock); err != nil {
		lock.Close()
		return nil, fmt.Errorf("--data-dir %s is in use by another knarr; stop that one or give another directory", dir)
	}
	c := &dataDirLock{l, lock, have.Version == 0}
	if err := c.take(want); err != nil {
		c.release()
		return nil, err
	}
	return c, nil
}

// lockWait is how long the lock of a process that was killed may be held by children that
// it was just starting: until they are other programs.
const lockWait = 5 * time.Second

// takeLock locks a file, unless a process that lives has it.
func takeLock(lock *os.File) error {
	for until := time.Now().Add(lockWait); ; time.Sleep(5 * time.Millisecond) {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(until) {
			return err
		}
		var holder int
		if _, scan := fmt.Fscan(io.NewSectionReader(lock, 0, 32), &holder); scan != nil || !errors.Is(syscall.Kill(holder, 0), syscall.ESRCH) {
			return err
		}
	}
}

func (c *dataDirLock) take(want marker) error {
	if c.fresh {
		b, err := json.Marshal(want)
		if err != nil {
			return err
		}
		if err := writeFile(c.layout.state(), append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	if err := c.lock.Truncate(0); err != nil {
		return err
	}
	if _, err := c.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return err
	}
	// Containers with users of their own have to be able to pass through to their root
	// directories, also below a directory that an earlier version made.
	if err := os.MkdirAll(c.layout.runDir(), 0o711); err != nil {
		return err
	}
	if err := os.Chmod(c.layout.runDir(), 0o711); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Dir(c.layout.tls("x")), 0o700)
}

// empty says that a directory holds nothing, or is not there.
func empty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err != nil || len(entries) == 0
}

// abandon leaves nothing of a cluster behind that was not begun.
func (c *dataDirLock) abandon() {
	l := c.layout
	if c.fresh {
		for _, path := range []string{l.state(), l.settings(), l.lock(), filepath.Dir(l.tls("x")), l.dir, l.runDir()} {
			_ = os.Remove(path) // only what is empty or made here
		}
	}
}

// release gives the directory back.
func (c *dataDirLock) release() {
	if c != nil {
		_ = os.Remove(c.layout.runDir()) // it stays while containers run
		_ = c.lock.Truncate(0)
		c.lock.Close()
	}
}
