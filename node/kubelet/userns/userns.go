// Package userns gives pods that are not to have the node's users ranges of ids for user
// namespaces of their own, one to each. It reads which ids the node has for that, and
// reads and writes upstream's file in the directory of each such pod.
package userns

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/statefile"
)

// unit is what the length of a range is a multiple of: as many ids as programs expect.
const unit = 65536

// fileName is the file's in a pod's directory.
const fileName = "userns"

// A mapping is what ids in a namespace are on the node.
type mapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

// namespace is the file.
type namespace struct {
	UIDs []mapping `json:"uidMappings"`
	GIDs []mapping `json:"gidMappings"`
}

// Config is what a Manager works with.
type Config struct {
	// IDs are those that the node has for pods.
	IDs Range
	// Each is how many a pod gets.
	Each uint32
	// MaxPods is how many pods the ids have to be enough for.
	MaxPods int
	// PodDir is the directory of a pod.
	PodDir func(types.UID) string
}

// A Range are ids one after the other.
type Range struct{ First, Length uint32 }

// A Manager knows which pod has which range.
type Manager struct {
	c Config

	mu sync.Mutex
	// all are the ranges by their number, of those that pods have.
	all map[uint32]types.UID
	of  map[types.UID]uint32

	// draw gives any number below n.
	draw func(n uint32) uint32
}

// New takes up what pods have of an earlier run. Pods are those that have directories.
func New(c Config, pods []string) (*Manager, error) {
	switch {
	case c.Each == 0 || c.Each%unit != 0:
		return nil, fmt.Errorf("kubelet user namespace length %v is not a multiple of %d", c.Each, unit)
	case c.IDs.First%c.Each != 0:
		return nil, fmt.Errorf("kubelet user assigned ID %v is not a multiple of %v", c.IDs.First, c.Each)
	case c.IDs.First < c.Each: // nobody gets the node's own users
		return nil, fmt.Errorf("kubelet user assigned ID %v must be greater or equal to %v", c.IDs.First, c.Each)
	case c.IDs.Length%c.Each != 0:
		return nil, fmt.Errorf("kubelet user assigned IDs length %v is not a multiple of %v", c.IDs.Length, c.Each)
	case int(c.IDs.Length/c.Each) < c.MaxPods:
		return nil, fmt.Errorf("kubelet user assigned IDs are not enough to support %v pods", c.MaxPods)
	}
	m := &Manager{c: c, all: map[uint32]types.UID{}, of: map[types.UID]uint32{}, draw: rand.Uint32N}
	for _, uid := range pods {
		if _, err := m.read(types.UID(uid)); err != nil {
			return nil, fmt.Errorf("record pod mappings for existing pod %q: %w", uid, err)
		}
	}
	return m, nil
}

// For is the namespace of a pod, which is the same for as long as the pod has a directory.
func (m *Manager) For(pod types.UID) (*cri.UserNamespace, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first, ok := m.of[pod]
	if !ok {
		found, err := m.read(pod)
		if err != nil {
			return nil, fmt.Errorf("user namespace: %w", err)
		}
		if !found {
			if err := m.create(pod); err != nil {
				return nil, fmt.Errorf("create user namespace: %w", err)
			}
		}
		first = m.of[pod]
	}
	ids := []*cri.IDMapping{{HostId: first * m.c.Each, ContainerId: 0, Length: m.c.Each}}
	return &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}, nil
}

// Release takes its range from a pod of which nothing is left.
func (m *Manager) Release(pod types.UID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, ok := m.of[pod]
	if !ok {
		return nil
	}
	if err := os.Remove(m.path(pod)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release the user namespace of pod %s: %w", pod, err)
	}
	delete(m.of, pod)
	delete(m.all, n)
	return nil
}

// Pods are those that have ranges.
func (m *Manager) Pods() (pods []types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.of {
		pods = append(pods, uid)
	}
	return pods
}

func (m *Manager) path(pod types.UID) string { return filepath.Join(m.c.PodDir(pod), fileName) }

// read takes up the range in a pod's directory, if there is one; the lock is held, or
// nobody else knows m yet.
func (m *Manager) read(pod types.UID) (found bool, err error) {
	var have namespace
	err = statefile.Read(m.path(pod), &have)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("invalid user namespace mappings file: %w", err)
	}
	first, err := have.check()
	if err != nil {
		return false, fmt.Errorf("invalid user namespace configuration: %w", err)
	}
	return true, m.record(pod, first)
}

// check says what is wrong with a file, or its only mapping.
func (n namespace) check() (mapping, error) {
	switch {
	case len(n.UIDs) != 1:
		return mapping{}, errors.New("no more than one mapping allowed.") //nolint:staticcheck // upstream's words
	case len(n.GIDs) != 1:
		return mapping{}, errors.New("GID and UID mappings should be identical.") //nolint:staticcheck // upstream's words
	case n.UIDs[0] != n.GIDs[0]:
		return mapping{}, errors.New("GID and UID mapping should be identical")
	case n.UIDs[0].ContainerID != 0:
		return mapping{}, errors.New("UID 0 must be mapped")
	}
	return n.UIDs[0], nil
}

func (m *Manager) record(pod types.UID, r mapping) error {
	switch {
	case r.Length != m.c.Each:
		return fmt.Errorf("wrong user namespace length %v", r.Length)
	case r.HostID%m.c.Each != 0:
		return fmt.Errorf("wrong user namespace offset specified %v", r.HostID)
	}
	n := r.HostID / m.c.Each
	if n < m.least() || n > m.most() {
		return fmt.Errorf("id %v is out of range", r.HostID)
	}
	if other, taken := m.all[n]; taken && other != pod {
		return fmt.Errorf("range picked for pod %q already taken", pod)
	}
	m.all[n], m.of[pod] = pod, n
	return nil
}

// least and most are the numbers of the first and the last range.
func (m *Manager) least() uint32 { return m.c.IDs.First / m.c.Each }
func (m *Manager) most() uint32  { return m.least() + m.c.IDs.Length/m.c.Each - 1 }

// create gives a pod a range, and writes it down before anybody has it; the lock is held.
func (m *Manager) create(pod types.UID) error {
	n, ok := m.free()
	if !ok {
		return errors.New("could not find an empty slot to allocate a user namespace")
	}
	if err := os.MkdirAll(m.c.PodDir(pod), 0o750); err != nil {
		return err
	}
	ids := []mapping{{HostID: n * m.c.Each, ContainerID: 0, Length: m.c.Each}}
	if err := statefile.Write(m.path(pod), namespace{ids, ids}, true); err != nil {
		return err
	}
	m.all[n], m.of[pod] = pod, n
	return nil
}

// free is a range that nobody has, any of them, as with upstream's: the first pods of several
// nodes are not the same users to what the nodes share, such as a file server.
func (m *Manager) free() (n uint32, ok bool) {
	count := m.most() - m.least() + 1
	start := m.draw(count)
	for i := range count {
		if n := m.least() + (start+i)%count; m.all[n] == "" {
			return n, true
		}
	}
	return 0, false
}
