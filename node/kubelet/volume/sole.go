package volume

import (
	"errors"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
)

var errSole = errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")

// reserve gives a volume that one pod alone may have to this pod. The scheduler sees
// to that too, but not every pod is the scheduler's.
func (m *Manager) reserve(pod *corev1.Pod, pv *corev1.PersistentVolume) error {
	if len(pv.Spec.AccessModes) != 1 || pv.Spec.AccessModes[0] != corev1.ReadWriteOncePod {
		return nil
	}
	m.soleMu.Lock()
	defer m.soleMu.Unlock()
	uid := string(pod.UID)
	if holder, ok := m.sole[pv.Name]; ok && holder != uid || !ok && m.inUseByOther(pv.Name, uid) {
		return errSole
	}
	m.sole[pv.Name] = uid
	return nil
}

// release takes back what a pod holds: one volume, or all of them if name is empty.
func (m *Manager) release(uid, name string) {
	m.soleMu.Lock()
	defer m.soleMu.Unlock()
	for volume, holder := range m.sole {
		if holder == uid && (name == "" || name == volume) {
			delete(m.sole, volume)
		}
	}
}

// inUseByOther says whether another pod of this node has the volume, from before
// this process too.
func (m *Manager) inUseByOther(name, uid string) bool {
	uids, _ := m.Pods()
	for _, other := range uids {
		if other == uid {
			continue
		}
		if _, err := os.Lstat(filepath.Join(m.PodDir(other), devices, name)); err == nil {
			return true
		}
		for _, path := range []string{"kubernetes.io~csi/" + name + "/mount", "kubernetes.io~local-volume/" + name, "kubernetes.io~nfs/" + name, iscsiKind + "/" + name} {
			if mounted(filepath.Join(m.PodDir(other), "volumes", path)) {
				return true
			}
		}
	}
	return false
}
