// Package volume makes a pod's volumes appear under the kubelet's pod
// directory and takes them away again. It reads configMaps, secrets, claims
// and tokens through the functions it is given, and writes
// <pods>/<uid>/volumes and <pods>/<uid>/volume-subpaths in the layout other
// node software expects.
package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Downward answers what a pod may ask about itself.
type Downward interface {
	Field(path string) (string, error)
	Resource(container string, ref *corev1.ResourceFieldSelector) (string, error)
	FileKey(ref *corev1.FileKeySelector) (string, bool, error)
}

// Config is what a Manager works with.
type Config struct {
	// PodsDir is where pods have their directories.
	PodsDir string
	// ConfigMap and Secret answer with an object used by a pod of this node.
	ConfigMap func(namespace, name string) (*corev1.ConfigMap, error)
	Secret    func(namespace, name string) (*corev1.Secret, error)
	// Token asks for a token of the pod's service account.
	Token func(ctx context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) (token string, refresh time.Time, err error)
	// Claim resolves a claim to the volume bound to it.
	Claim func(ctx context.Context, pod *corev1.Pod, claim string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim, error)
	// CSI mounts and unmounts volumes of CSI drivers. Nil: none can be used.
	CSI Driver
	// TrustBundle answers with the PEM of one or several ClusterTrustBundles.
	TrustBundle func(ctx context.Context, p *corev1.ClusterTrustBundleProjection) (string, error)
}

// Driver publishes volumes that are not built in.
type Driver interface {
	Mount(ctx context.Context, pod *corev1.Pod, spec Spec, target string) error
	Unmount(ctx context.Context, target string) error
	MapDevice(ctx context.Context, pod *corev1.Pod, spec Spec) (device string, err error)
}

// A Spec is one volume of a pod with what its claim leads to.
type Spec struct {
	Name     string
	Inline   *corev1.CSIVolumeSource
	PV       *corev1.PersistentVolume
	ReadOnly bool
}

// A Mounted volume is ready to be bound into containers.
type Mounted struct {
	// Path is where the volume is on this node; empty for images.
	Path string
	// Device is the block device of a volume in block mode.
	Device string
	// ReadOnly volumes are never bound writable.
	ReadOnly bool
	// Image is the image whose contents are the volume.
	Image *corev1.ImageVolumeSource
	// Kind of volume, as directories are named: kubernetes.io~empty-dir.
	Kind string
}

// An Error says which volume could not be had.
type Error struct {
	Volume string
	Err    error
}

func (e *Error) Error() string {
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", e.Volume, e.Err)
}
func (e *Error) Unwrap() error { return e.Err }

// A Manager mounts and unmounts. It is safe for use by many pods at once, by
// one caller per pod.
type Manager struct {
	Config
	mu     sync.Mutex
	tokens map[string]cachedToken
}

// New returns a Manager.
func New(c Config) *Manager { return &Manager{Config: c, tokens: map[string]cachedToken{}} }

// PodDir is the directory of one pod.
func (m *Manager) PodDir(uid string) string { return filepath.Join(m.PodsDir, uid) }

// Mount makes all volumes of the pod ready and returns them by name. Calling
// it again brings their contents up to date; again is when contents want to be
// looked at next, zero if nothing expires.
func (m *Manager) Mount(ctx context.Context, pod *corev1.Pod, down Downward) (out map[string]Mounted, again time.Time, err error) {
	out = make(map[string]Mounted, len(pod.Spec.Volumes))
	var errs []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		got, next, err := m.mount(ctx, pod, v, down)
		if err != nil {
			errs = append(errs, &Error{v.Name, err})
			continue
		}
		out[v.Name] = got
		if !next.IsZero() && (again.IsZero() || next.Before(again)) {
			again = next
		}
	}
	return out, again, errors.Join(errs...)
}

func (m *Manager) dir(pod *corev1.Pod, kind, name string) string {
	return filepath.Join(m.PodDir(string(pod.UID)), "volumes", kind, name)
}

func (m *Manager) mount(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, down Downward) (Mounted, time.Time, error) {
	var never time.Time
	switch s := v.VolumeSource; {
	case s.EmptyDir != nil:
		path := m.dir(pod, "kubernetes.io~empty-dir", v.Name)
		return Mounted{Path: path, Kind: "kubernetes.io~empty-dir"}, never, emptyDir(pod, s.EmptyDir, path)
	case s.HostPath != nil:
		return Mounted{Path: s.HostPath.Path, Kind: "kubernetes.io~host-path"}, never, hostPath(s.HostPath)
	case s.ConfigMap != nil:
		files, err := m.configMap(pod, s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.DefaultMode, s.ConfigMap.Optional)
		if err != nil {
			return Mounted{}, never, err
		}
		return m.write(pod, "kubernetes.io~configmap", v.Name, false, files)
	case s.Secret != nil:
		files, err := m.secret(pod, s.Secret.SecretName, s.Secret.Items, s.Secret.DefaultMode, s.Secret.Optional)
		if err != nil {
			return Mounted{}, never, err
		}
		return m.write(pod, "kubernetes.io~secret", v.Name, true, files)
	case s.DownwardAPI != nil:
		files, err := downward(s.DownwardAPI.Items, s.DownwardAPI.DefaultMode, down)
		if err != nil {
			return Mounted{}, never, err
		}
		return m.write(pod, "kubernetes.io~downward-api", v.Name, true, files)
	case s.Projected != nil:
		files, next, err := m.projected(ctx, pod, s.Projected, down)
		if err != nil {
			return Mounted{}, never, err
		}
		got, _, err := m.write(pod, "kubernetes.io~projected", v.Name, true, files)
		return got, next, err
	case s.Image != nil:
		return Mounted{Image: s.Image, ReadOnly: true, Kind: "kubernetes.io~image"}, never, nil
	case s.PersistentVolumeClaim != nil:
		got, err := m.claim(ctx, pod, v.Name, s.PersistentVolumeClaim.ClaimName, s.PersistentVolumeClaim.ReadOnly)
		return got, never, err
	case s.Ephemeral != nil:
		got, err := m.claim(ctx, pod, v.Name, pod.Name+"-"+v.Name, false)
		return got, never, err
	case s.CSI != nil:
		got, err := m.driver(ctx, pod, Spec{Name: v.Name, Inline: s.CSI, ReadOnly: s.CSI.ReadOnly != nil && *s.CSI.ReadOnly})
		return got, never, err
	}
	return Mounted{}, never, errors.New("no volume plugin matched")
}

// write puts the files of a volume made of API objects in place.
func (m *Manager) write(pod *corev1.Pod, kind, name string, memory bool, files map[string]File) (Mounted, time.Time, error) {
	path := m.dir(pod, kind, name)
	got := Mounted{Path: path, ReadOnly: true, Kind: kind}
	if memory {
		if err := mountTmpfs(path, 0, 0o777); err != nil {
			return got, time.Time{}, err
		}
	} else if err := makeDir(path, 0o777); err != nil {
		return got, time.Time{}, err
	}
	changed, err := WriteAtomic(path, files, fsGroup(pod))
	if err == nil && changed && fsGroup(pod) != nil {
		// The directory itself belongs to the group, as its files do.
		err = os.Chown(path, -1, int(*fsGroup(pod)))
		if err == nil {
			err = os.Chmod(path, 0o777|os.ModeSetgid)
		}
	}
	return got, time.Time{}, err
}

func fsGroup(pod *corev1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

func (m *Manager) claim(ctx context.Context, pod *corev1.Pod, name, claim string, readOnly bool) (Mounted, error) {
	if m.Claim == nil {
		return Mounted{}, errors.New("claims cannot be resolved")
	}
	pv, pvc, err := m.Claim(ctx, pod, claim)
	if err != nil {
		return Mounted{}, err
	}
	block := pvc.Spec.VolumeMode != nil && *pvc.Spec.VolumeMode == corev1.PersistentVolumeBlock
	switch s := pv.Spec.PersistentVolumeSource; {
	case s.HostPath != nil:
		got := Mounted{Path: s.HostPath.Path, ReadOnly: readOnly, Kind: "kubernetes.io~host-path"}
		return got, hostPath(s.HostPath)
	case s.Local != nil:
		if block {
			return Mounted{Device: s.Local.Path, Path: s.Local.Path, ReadOnly: readOnly, Kind: "kubernetes.io~local-volume"}, nil
		}
		if _, err := os.Stat(s.Local.Path); err != nil {
			return Mounted{}, fmt.Errorf("path %q does not exist", s.Local.Path)
		}
		target := m.dir(pod, "kubernetes.io~local-volume", pv.Name)
		if err := makeDir(target, 0o750); err != nil {
			return Mounted{}, err
		}
		if err := bindOnce(s.Local.Path, target, readOnly); err != nil {
			return Mounted{}, err
		}
		if !readOnly {
			if err := Own(pod, target); err != nil {
				return Mounted{}, err
			}
		}
		return Mounted{Path: target, ReadOnly: readOnly, Kind: "kubernetes.io~local-volume"}, nil
	case s.CSI != nil:
		spec := Spec{Name: pv.Name, PV: pv, ReadOnly: readOnly || s.CSI.ReadOnly}
		if block {
			if m.CSI == nil {
				return Mounted{}, errors.New("no CSI driver can be used")
			}
			dev, err := m.CSI.MapDevice(ctx, pod, spec)
			return Mounted{Device: dev, Path: dev, ReadOnly: spec.ReadOnly, Kind: "kubernetes.io~csi"}, err
		}
		return m.driver(ctx, pod, spec)
	case s.NFS != nil:
		target := m.dir(pod, "kubernetes.io~nfs", pv.Name)
		if err := makeDir(target, 0o750); err != nil {
			return Mounted{}, err
		}
		err := mountProgram("nfs", s.NFS.Server+":"+s.NFS.Path, target, append([]string(nil), pv.Spec.MountOptions...))
		return Mounted{Path: target, ReadOnly: readOnly || s.NFS.ReadOnly, Kind: "kubernetes.io~nfs"}, err
	}
	return Mounted{}, fmt.Errorf("no volume plugin matched for PersistentVolume %s", pv.Name)
}

func (m *Manager) driver(ctx context.Context, pod *corev1.Pod, spec Spec) (Mounted, error) {
	if m.CSI == nil {
		return Mounted{}, errors.New("no CSI driver can be used")
	}
	target := filepath.Join(m.dir(pod, "kubernetes.io~csi", spec.Name), "mount")
	got := Mounted{Path: target, ReadOnly: spec.ReadOnly, Kind: "kubernetes.io~csi"}
	if mounted(target) {
		return got, nil
	}
	return got, m.CSI.Mount(ctx, pod, spec, target)
}

// Unmount takes all volumes of a pod away, and its directory with them.
func (m *Manager) Unmount(ctx context.Context, uid string) error {
	m.forgetTokens(uid)
	dir := m.PodDir(uid)
	if _, err := os.Lstat(dir); os.IsNotExist(err) {
		return nil
	}
	var errs []error
	if m.CSI != nil {
		targets, _ := filepath.Glob(filepath.Join(dir, "volumes", "kubernetes.io~csi", "*", "mount"))
		for _, t := range targets {
			if err := m.CSI.Unmount(ctx, t); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := unmountBelow(dir); err != nil {
		return err
	}
	// Nothing is mounted below any more, so that nothing but the pod's own
	// files is removed.
	return os.RemoveAll(dir)
}

// Clean takes away the volumes but keeps the pod's other files.
func (m *Manager) Clean(ctx context.Context, uid string) error { return m.Unmount(ctx, uid) }

// Pods are the uids that have a directory.
func (m *Manager) Pods() ([]string, error) {
	entries, err := os.ReadDir(m.PodsDir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	var uids []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			uids = append(uids, e.Name())
		}
	}
	return uids, err
}
