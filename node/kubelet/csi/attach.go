package csi

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/node/kubelet/volume"
)

// attachTime bounds how long a pod waits for a volume to be attached before it
// begins again, as upstream does.
const attachTime = 2*time.Minute + 3*time.Second

// uniqueName is how a volume is called in the Node's status.
func uniqueName(driver, handle string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + driver + "^" + handle)
}

// attachRequired says whether volumes of the driver are attached by a controller.
func attachRequired(about *storagev1.CSIDriver) bool {
	return about.Spec.AttachRequired == nil || *about.Spec.AttachRequired
}

// A use is the state of one volume that has to be attached, from before a pod
// mounts it until it is off the node.
type use struct {
	// holders are the directories that it is mounted for.
	holders map[string]bool
	// reported says that the Node's status names it as in use, so that nobody
	// detaches it.
	reported bool
}

// attachments are the volumes of this node that have to be attached.
type attachments struct {
	mu       sync.Mutex
	uses     map[corev1.UniqueVolumeName]*use
	attached map[corev1.UniqueVolumeName]bool // says the Node's status
	changed  chan struct{}                    // closed when any of it has changed
}

func newAttachments() *attachments {
	return &attachments{uses: map[corev1.UniqueVolumeName]*use{}, changed: make(chan struct{})}
}

// wake lets those who wait look again; the lock is held.
func (a *attachments) wake() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// hold notes that the volume is in use for a directory; true if it was not in
// use before.
func (a *attachments) hold(name corev1.UniqueVolumeName, dir string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.uses[name]
	if u == nil {
		u = &use{holders: map[string]bool{}}
		a.uses[name] = u
	}
	u.holders[dir] = true
	return len(u.holders) == 1
}

// release notes that no volume is in use for the directories that match; true if
// one is in use no more.
func (a *attachments) release(match func(dir string) bool) (freed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, u := range a.uses {
		for dir := range u.holders {
			if match(dir) {
				delete(u.holders, dir)
			}
		}
		if len(u.holders) == 0 {
			delete(a.uses, name)
			freed = true
		}
	}
	return freed
}

// VolumesInUse are the volumes that must not be detached, for the Node's status.
func (m *Manager) VolumesInUse() []corev1.UniqueVolumeName {
	a := m.attachments
	a.mu.Lock()
	defer a.mu.Unlock()
	var names []corev1.UniqueVolumeName
	for name := range a.uses {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// ReportedInUse notes that the Node's status names these volumes as in use, and
// no others.
func (m *Manager) ReportedInUse(names []corev1.UniqueVolumeName) {
	a := m.attachments
	a.mu.Lock()
	defer a.mu.Unlock()
	changed := false
	for _, name := range names {
		if u := a.uses[name]; u != nil && !u.reported {
			u.reported, changed = true, true
		}
	}
	if changed {
		a.wake()
	}
}

// NodeChanged notes which volumes the controller says are attached.
func (m *Manager) NodeChanged(node *corev1.Node) {
	attached := make(map[corev1.UniqueVolumeName]bool, len(node.Status.VolumesAttached))
	for _, v := range node.Status.VolumesAttached {
		attached[v.Name] = true
	}
	a := m.attachments
	a.mu.Lock()
	defer a.mu.Unlock()
	a.attached = attached
	a.wake()
}

// recover notes as in use what was mounted before this process started, by the
// records of pods and of what is staged.
func (m *Manager) recover() {
	for _, pattern := range []string{
		filepath.Join(m.RootDir, "pods", "*", "volumes", "kubernetes.io~csi", "*", recordFile),
		filepath.Join(m.RootDir, "plugins", "kubernetes.io", "csi", "*", "*", recordFile),
		m.blocks("*", "data", recordFile),
	} {
		all, _ := filepath.Glob(pattern) // the pattern is well formed
		for _, f := range all {
			dir := filepath.Dir(f)
			if r, err := noted(dir); err == nil && r.Attach != notAttached && r.Lifecycle != string(storagev1.VolumeLifecycleEphemeral) {
				m.attachments.hold(uniqueName(r.Driver, r.Handle), dir)
			}
		}
	}
	links, _ := filepath.Glob(filepath.Join(m.RootDir, "pods", "*", "volumeDevices", "kubernetes.io~csi", "*"))
	for _, link := range links {
		if r, err := noted(m.blocks(filepath.Base(link), "data")); err == nil && r.Attach != notAttached {
			m.attachments.hold(uniqueName(r.Driver, r.Handle), link)
		}
	}
}

// release notes that volumes are in use no more, and has the Node's status say so.
func (m *Manager) release(match func(dir string) bool) {
	if m.attachments.release(match) && m.InUseChanged != nil {
		m.InUseChanged()
	}
}

// detachable lets the volume for the directory be detached if its driver wants no
// attaching any more.
func (m *Manager) detachable(about *storagev1.CSIDriver, dir string) {
	if !attachRequired(about) {
		m.release(func(holder string) bool { return holder == dir })
	}
}

// waitAttached waits until the volume of a record is attached and safe to mount:
// until the Node says that it is in use, so that nobody detaches it, and that it
// is attached. It gives what attaching has brought.
func (m *Manager) waitAttached(ctx context.Context, r record, dir string) (map[string]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, attachTime, volume.ErrTimedOut)
	defer cancel()
	name, a := uniqueName(r.Driver, r.Handle), m.attachments
	if a.hold(name, dir) && m.InUseChanged != nil {
		m.InUseChanged()
	}
	for {
		a.mu.Lock()
		u, changed := a.uses[name], a.changed
		safe := u != nil && u.reported && a.attached[name]
		a.mu.Unlock()
		if !safe {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				err := context.Cause(ctx)
				if errors.Is(err, volume.ErrTimedOut) && m.full(context.WithoutCancel(ctx), r) {
					err = volume.ErrLimit
				}
				return nil, err
			}
		}
		return m.attached(ctx, r)
	}
}

// attached gives what attaching has brought; an error if the VolumeAttachment,
// which a node may not watch, does not say what the Node says.
func (m *Manager) attached(ctx context.Context, r record) (map[string]string, error) {
	a, err := m.Client.StorageV1().VolumeAttachments().Get(ctx, r.Attachment, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, fmt.Errorf("volume %s has GET error for volume attachment %s: %w", r.Handle, r.Attachment, err)
	case a.DeletionTimestamp != nil:
		return nil, errors.New("volume attachment is being deleted")
	case a.Status.Attached:
		return a.Status.AttachmentMetadata, nil
	case a.Status.AttachError != nil:
		return nil, errors.New(a.Status.AttachError.Message)
	}
	return nil, fmt.Errorf("volume %s is not attached for volume attachment %s", r.Handle, r.Attachment)
}
