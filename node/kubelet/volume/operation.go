package volume

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// An Operation is one with a volume, under upstream's names.
type Operation struct {
	Name string
	// Plugin is the volume's, with the name of its CSI driver after a colon.
	Plugin string
	// Migrated says that the driver has taken over from a plugin within Kubernetes.
	Migrated bool
	Took     time.Duration
	Err      error
}

// The names of operations.
const (
	OpMount       = "volume_mount"
	OpUnmount     = "volume_unmount"
	OpMap         = "map_volume"
	OpUnmap       = "unmap_volume"
	OpUnstage     = "unmount_device"
	OpUnmapDevice = "unmap_device"
	OpGrow        = "volume_fs_resize"
	OpOwn         = "volume_apply_access_control"
	OpAttached    = "verify_controller_attached_volume"
	// OpWhole is from the first try to mount a volume until it was mounted, all tries
	// together.
	OpWhole = "overall_volume_mount"
)

const csiPlugin = "kubernetes.io/csi"

// DriverPlugin is what the plugin of a CSI driver's volumes is called.
func DriverPlugin(driver string) string { return csiPlugin + ":" + driver }

// PluginOf is the plugin that a volume's source names; that of a claim is known
// once it is mounted.
func PluginOf(v *corev1.Volume) string {
	if v.CSI != nil {
		return DriverPlugin(v.CSI.Driver)
	}
	for _, p := range []struct {
		set  bool
		name string
	}{
		{v.ConfigMap != nil, "configmap"}, {v.Secret != nil, "secret"}, {v.Projected != nil, "projected"}, {v.DownwardAPI != nil, "downward-api"},
		{v.EmptyDir != nil, "empty-dir"}, {v.HostPath != nil, "host-path"}, {v.NFS != nil, "nfs"}, {v.ISCSI != nil, "iscsi"}, {v.Image != nil, "image"},
	} {
		if p.set {
			return "kubernetes.io/" + p.name
		}
	}
	return "N/A"
}

// Plugin is what the volume's plugin is called; "" if that is not known.
func (m Mounted) Plugin() string {
	if m.Driver != "" {
		return DriverPlugin(m.Driver)
	}
	return pluginOfKind(m.Kind)
}

func pluginOfKind(kind string) string { return strings.Replace(kind, "~", "/", 1) }

// asked notes that a pod wants a volume.
func (m *Manager) asked(uid, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.wanted[uid]
	if of == nil {
		of = map[string]time.Time{}
		m.wanted[uid] = of
	}
	if _, known := of[name]; !known {
		of[name] = time.Now()
	}
}

// arrived is since when a pod has wanted a volume; false if it has been told before.
func (m *Manager) arrived(uid, name string) (time.Time, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, known := m.wanted[uid][name]
	if !known || at.IsZero() {
		return at, false
	}
	m.wanted[uid][name] = time.Time{}
	return at, true
}

// forgetWanted forgets a pod that wants nothing any more.
func (m *Manager) forgetWanted(uid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.wanted, uid)
}

// tried tells of a try to mount a volume of a pod.
func (m *Manager) tried(pod *corev1.Pod, v *corev1.Volume, got Mounted, began time.Time, err error) {
	o := Operation{Name: OpMount, Plugin: got.Plugin(), Migrated: got.Migrated, Took: time.Since(began), Err: err}
	if got.Block {
		o.Name = OpMap
	}
	if o.Plugin == "" {
		o.Plugin = PluginOf(v)
	}
	m.Did(o)
	if err != nil {
		return
	}
	if since, first := m.arrived(string(pod.UID), v.Name); first && !got.Block {
		o.Name, o.Took = OpWhole, time.Since(since)
		m.Did(o)
	}
}

// Directories are those of a pod's volumes, but for what has none: host paths, images and
// block devices.
func (m *Manager) Directories(uid string) []string {
	all, _ := filepath.Glob(filepath.Join(m.PodDir(uid), "volumes", "*", "*")) // the pattern is well formed
	return all
}

// unmounted tells what came of taking away the volumes with these directories, but for those of
// CSI drivers, which tell of it themselves.
func (m *Manager) unmounted(dirs []string, began time.Time, err error) {
	for _, dir := range dirs {
		if plugin := pluginOfKind(filepath.Base(filepath.Dir(dir))); plugin != csiPlugin {
			m.Did(Operation{Name: OpUnmount, Plugin: plugin, Took: time.Since(began), Err: err})
		}
	}
}

// Found counts the volumes that pods have on this node, and those of them that are a
// CSI driver's and of which noted finds nothing.
func (m *Manager) Found(noted func(dir string) error) (total, unreadable int) {
	uids, _ := m.Pods()
	for _, uid := range uids {
		for _, dir := range m.Directories(uid) {
			total++
			if pluginOfKind(filepath.Base(filepath.Dir(dir))) == csiPlugin && noted(dir) != nil {
				unreadable++
			}
		}
		links, _ := os.ReadDir(filepath.Join(m.PodDir(uid), devices))
		total += len(links)
	}
	return total, unreadable
}
