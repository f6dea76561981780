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
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	volumehelper "k8s.io/component-helpers/storage/volume"

	"knarr/internal/csimigration"
	"knarr/internal/logonce"
	"knarr/node/kubelet/fscall"
	"knarr/node/kubelet/podfile"
	"knarr/node/kubelet/podspec"
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
	// Credentials reads a Secret that a volume names for its server.
	Credentials func(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	// CSI mounts and unmounts volumes of CSI drivers. Nil: none can be used.
	CSI Driver
	// Did is told of each operation with a volume. Default: nobody is.
	Did func(Operation)
	// Event says something of a pod with upstream's reason. Default: to nobody.
	Event func(pod *corev1.Pod, kind, reason, message string)
	// PodMemory is the most memory that a pod can have, in bytes. Default: what the kernel
	// lets a file system in memory have.
	PodMemory func(pod *corev1.Pod) int64
	// TrustBundle answers with the PEM of one or several ClusterTrustBundles.
	TrustBundle func(ctx context.Context, p *corev1.ClusterTrustBundleProjection) (string, error)
	// PodCertificate answers with the key and certificates, in PEM, of a source of a
	// volume, and when to ask again.
	PodCertificate func(ctx context.Context, pod *corev1.Pod, volume string, index int, p *corev1.PodCertificateProjection) (key, chain []byte, refresh time.Time, err error)
	// Projects count what emptyDirs of pods with users of their own take up. Nil: nobody
	// does.
	Projects Projects
	// AnswerTime is how long a file system may take to answer before its pod
	// goes on without it. Default 10s.
	AnswerTime time.Duration
}

// Driver publishes volumes that are not built in.
type Driver interface {
	// Mount publishes a volume at target. It calls unowned before, if the
	// volume has to be given to the pod's group after.
	Mount(ctx context.Context, pod *corev1.Pod, spec Spec, target string, unowned func() error) error
	Unmount(ctx context.Context, target string) error
	// Forget says that the pod with this directory has no volume any more, nor
	// waits for one.
	Forget(podDir string)
	// MapDevice publishes a volume as a block device, of which link is kept until
	// UnmapDevice has taken it back.
	MapDevice(ctx context.Context, pod *corev1.Pod, spec Spec, link string) (device string, err error)
	UnmapDevice(ctx context.Context, link string) error
	// Refresh does what a published volume needs from time to time. fresh says that
	// no container has it yet.
	Refresh(ctx context.Context, pod *corev1.Pod, spec Spec, path string, fresh bool) error
}

// A Spec is one volume of a pod with what its claim leads to.
type Spec struct {
	Name     string
	Inline   *corev1.CSIVolumeSource
	PV       *corev1.PersistentVolume
	Claim    *corev1.PersistentVolumeClaim
	ReadOnly bool
	// Block says that the volume is a device, not a file system.
	Block bool
	// Migrated says that its driver has taken over from a plugin within Kubernetes.
	Migrated bool
}

// A Usage is how full a volume is, in bytes and inodes.
type Usage struct {
	Capacity, Used, Available      uint64
	Inodes, InodesUsed, InodesFree uint64
	// Block volumes have a capacity and nothing else.
	Block bool
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
	// Driver is the CSI driver whose volume it is; Migrated says that it has taken over
	// from a plugin within Kubernetes.
	Driver   string
	Migrated bool
	// Block says that the volume is a device.
	Block bool
	// Group is a group that programs have to be in that use the volume; nil: none.
	Group *int64
}

// An Error says which volume could not be had.
type Error struct {
	Volume string
	Err    error
}

func (e *Error) Error() string {
	step, err := "MountVolume.SetUp failed", e.Err
	if at := (*StepError)(nil); errors.As(e.Err, &at) {
		step, err = at.Step, at.Err
	}
	return fmt.Sprintf("%s for volume %q : %v", step, e.Volume, err)
}
func (e *Error) Unwrap() error { return e.Err }

// A StepError says in which step, as upstream names them, another than
// MountVolume.SetUp failed, a volume could not be had.
type StepError struct {
	Step string
	Err  error
}

func (e *StepError) Error() string { return e.Err.Error() }
func (e *StepError) Unwrap() error { return e.Err }

// ErrTimedOut is a wait for others that took long and is begun again. Upstream
// tells nobody of it.
var ErrTimedOut = errors.New("timed out waiting for the condition")

// ErrLimit is a volume that its driver cannot attach to this node beside the
// others there.
var ErrLimit = errors.New("Node has reached its volume attachment limit")

// A LimitError says that a pod cannot have its volumes on this node.
type LimitError struct {
	// Unmounted are the pod's volumes that are not mounted, Unattached those of them
	// that are not attached.
	Unmounted, Unattached []string
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%v, rejecting pod. unmounted volumes=%v, unattached volumes=%v, failed to process volumes=[]: %v", ErrLimit, e.Unmounted, e.Unattached, context.DeadlineExceeded)
}

// A Manager mounts and unmounts. It is safe for use by many pods at once, by
// one caller per pod.
type Manager struct {
	Config
	// NoSwap says whether memory of volumes can be kept from swap.
	NoSwap func() bool

	calls  fscall.Calls
	mu     sync.Mutex
	tokens map[string]cachedToken
	// wanted is since when pods have wanted their volumes, by UID and name; zero: they
	// have got them.
	wanted map[string]map[string]time.Time
	soleMu sync.Mutex
	sole   map[string]string // the pods' UIDs, by the volumes that they alone may have
	// projectMu keeps two directories from getting one project.
	projectMu sync.Mutex
	news      logonce.Filter
}

// New returns a Manager.
func New(c Config) *Manager {
	if c.AnswerTime == 0 {
		c.AnswerTime = 10 * time.Second
	}
	if c.Event == nil {
		c.Event = func(*corev1.Pod, string, string, string) {}
	}
	if c.Did == nil {
		c.Did = func(Operation) {}
	}
	m := &Manager{Config: c, tokens: map[string]cachedToken{}, wanted: map[string]map[string]time.Time{}, sole: map[string]string{}}
	m.NoSwap = sync.OnceValue(func() bool { return takesNoSwap(filepath.Dir(c.PodsDir)) })
	return m
}

// PodDir is the directory of one pod.
func (m *Manager) PodDir(uid string) string { return filepath.Join(m.PodsDir, uid) }

// Mount makes the volumes of the pod's containers ready and returns them by name. Calling
// it again brings their contents up to date; again is when contents want to be
// looked at next, zero if nothing expires.
func (m *Manager) Mount(ctx context.Context, pod *corev1.Pod, down Downward) (out map[string]Mounted, again time.Time, err error) {
	out = make(map[string]Mounted, len(pod.Spec.Volumes))
	var errs []error
	var failed LimitError
	left, used := maxContent, podspec.UsedVolumes(pod)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !used[v.Name] {
			continue
		}
		m.asked(string(pod.UID), v.Name)
		began := time.Now()
		got, next, err := m.mount(ctx, pod, v, down, &left)
		m.tried(pod, v, got, began, err)
		if err != nil {
			if of := (*Error)(nil); !errors.As(err, &of) {
				err = &Error{v.Name, err}
			}
			errs = append(errs, err)
			failed.Unmounted = append(failed.Unmounted, v.Name)
			if errors.Is(err, ErrLimit) || errors.Is(err, ErrTimedOut) {
				failed.Unattached = append(failed.Unattached, v.Name)
			}
			continue
		}
		out[v.Name] = got
		if !next.IsZero() && (again.IsZero() || next.Before(again)) {
			again = next
		}
	}
	err = errors.Join(errs...)
	if errors.Is(err, ErrLimit) {
		err = &failed
	}
	return out, again, err
}

func (m *Manager) dir(pod *corev1.Pod, kind, name string) string {
	return filepath.Join(m.PodDir(string(pod.UID)), "volumes", kind, name)
}

func (m *Manager) mount(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, down Downward, left *int) (Mounted, time.Time, error) {
	var never time.Time
	switch s := v.VolumeSource; {
	case s.EmptyDir != nil:
		path := m.dir(pod, emptyDirKind, v.Name)
		return Mounted{Path: path, Kind: emptyDirKind}, never, m.emptyDir(ctx, pod, v.Name, s.EmptyDir, path)
	case s.HostPath != nil:
		return Mounted{Path: s.HostPath.Path, Kind: "kubernetes.io~host-path"}, never, m.hostPath(ctx, s.HostPath)
	case s.ConfigMap != nil:
		files, err := m.configMap(pod, s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.DefaultMode, s.ConfigMap.Optional)
		if err != nil {
			return Mounted{}, never, err
		}
		return m.write(pod, "kubernetes.io~configmap", v.Name, false, files, left)
	case s.Secret != nil:
		files, err := m.secret(pod, s.Secret.SecretName, s.Secret.Items, s.Secret.DefaultMode, s.Secret.Optional)
		if err != nil {
			return Mounted{}, never, err
		}
		return m.write(pod, "kubernetes.io~secret", v.Name, true, files, left)
	case s.DownwardAPI != nil:
		files, err := downward(s.DownwardAPI.Items, s.DownwardAPI.DefaultMode, down)
		if err != nil {
			return Mounted{}, never, err
		}
		return m.write(pod, "kubernetes.io~downward-api", v.Name, true, files, left)
	case s.Projected != nil:
		files, next, err := m.projected(ctx, pod, v.Name, s.Projected, down)
		if err != nil {
			return Mounted{}, never, err
		}
		got, _, err := m.write(pod, "kubernetes.io~projected", v.Name, true, files, left)
		return got, next, err
	case s.Image != nil:
		return Mounted{Image: s.Image, ReadOnly: true, Kind: "kubernetes.io~image"}, never, nil
	case s.PersistentVolumeClaim != nil:
		got, err := m.claim(ctx, pod, v.Name, s.PersistentVolumeClaim.ClaimName, s.PersistentVolumeClaim.ReadOnly)
		return got, refreshAt(got), err
	case s.Ephemeral != nil:
		got, err := m.claim(ctx, pod, v.Name, pod.Name+"-"+v.Name, false)
		return got, refreshAt(got), err
	case s.NFS != nil:
		got, err := m.nfs(ctx, pod, v.Name, s.NFS, false, nil)
		return got, never, err
	case s.ISCSI != nil:
		got, err := m.iscsi(ctx, pod, iscsiInline(pod, v.Name, s.ISCSI))
		return got, never, err
	case s.CSI != nil:
		got, err := m.driver(ctx, pod, Spec{Name: v.Name, Inline: s.CSI, ReadOnly: s.CSI.ReadOnly != nil && *s.CSI.ReadOnly})
		return got, refreshAt(got), err
	}
	switch pv, err := csimigration.Inline(v, pod.Namespace); {
	case err != nil:
		return Mounted{}, never, err
	case pv != nil:
		// Directories have the pod's name for it: that of pv is made of what the pod says.
		got, err := m.driver(ctx, pod, Spec{Name: v.Name, PV: pv, ReadOnly: pv.Spec.CSI.ReadOnly, Migrated: true})
		return got, refreshAt(got), err
	}
	return Mounted{}, never, errors.New("no volume plugin matched")
}

// refreshPeriod is how often a driver's volume is looked at: nodes may not watch
// claims, which is where it is said that a volume has grown.
const refreshPeriod = time.Minute

// refreshAt is when a volume is to be looked at again.
func refreshAt(got Mounted) (at time.Time) {
	if got.Kind == "kubernetes.io~csi" {
		at = time.Now().Add(refreshPeriod)
	}
	return at
}

// write puts the files of a volume made of API objects in place.
func (m *Manager) write(pod *corev1.Pod, kind, name string, memory bool, files map[string]File, left *int) (Mounted, time.Time, error) {
	path := m.dir(pod, kind, name)
	got := Mounted{Path: path, ReadOnly: true, Kind: kind}
	if *left -= size(files); *left < 0 {
		return got, time.Time{}, errContent
	}
	if memory {
		if err := m.mountTmpfs(path, m.memorySize(pod, nil), 0o777|os.ModeSticky); err != nil {
			return got, time.Time{}, err
		}
	} else if err := makeDir(path, 0o777); err != nil {
		return got, time.Time{}, err
	}
	if g := fsGroup(pod); g != nil {
		// The directory itself belongs to the group, as its files do.
		if err := ownDir(path, *g); err != nil {
			return got, time.Time{}, err
		}
	}
	_, err := WriteAtomic(path, files, fsGroup(pod))
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
	got, err := m.persistent(ctx, pod, pv, pvc, name, readOnly)
	if err != nil {
		err = &Error{pv.Name, err} // as users know it
	}
	got.Block = isBlock(pvc)
	return got, err
}

func isBlock(pvc *corev1.PersistentVolumeClaim) bool {
	return pvc.Spec.VolumeMode != nil && *pvc.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

func (m *Manager) persistent(ctx context.Context, pod *corev1.Pod, pv *corev1.PersistentVolume, pvc *corev1.PersistentVolumeClaim, name string, readOnly bool) (Mounted, error) {
	block := isBlock(pvc)
	if err := checkUse(pod, name, block); err != nil {
		return Mounted{}, err
	}
	if err := m.reserve(pod, pv); err != nil {
		if block {
			err = &StepError{"MapVolume.SetUpDevice failed", err}
		}
		return Mounted{}, err
	}
	got, err := m.mountPersistent(ctx, pod, pv, pvc, readOnly, block)
	if err != nil {
		m.release(string(pod.UID), pv.Name)
	}
	got.Group = volumeGroup(pv)
	return got, err
}

// volumeGroup is the group that a volume's annotation names, which storage has that knows users
// and is asked for no other.
func volumeGroup(pv *corev1.PersistentVolume) *int64 {
	gid, err := strconv.ParseInt(pv.Annotations["pv.beta.kubernetes.io/gid"], 10, 32)
	if err != nil || gid < 0 {
		return nil
	}
	return &gid
}

func (m *Manager) mountPersistent(ctx context.Context, pod *corev1.Pod, pv *corev1.PersistentVolume, pvc *corev1.PersistentVolumeClaim, readOnly, block bool) (Mounted, error) {
	switch s := pv.Spec.PersistentVolumeSource; {
	case s.HostPath != nil:
		got := Mounted{Path: s.HostPath.Path, ReadOnly: readOnly, Kind: "kubernetes.io~host-path"}
		return got, m.hostPath(ctx, s.HostPath)
	case s.Local != nil:
		if block {
			dev, err := m.localDevice(ctx, s.Local.Path)
			return Mounted{Device: dev, Path: dev, ReadOnly: readOnly, Kind: "kubernetes.io~local-volume"}, err
		}
		return m.local(ctx, pod, pv, readOnly)
	case s.CSI != nil:
		spec := Spec{Name: pv.Name, PV: pv, Claim: pvc, ReadOnly: readOnly || s.CSI.ReadOnly, Block: block,
			Migrated: pv.Annotations[volumehelper.AnnMigratedTo] != ""}
		if block {
			if m.CSI == nil {
				return Mounted{}, errors.New("no CSI driver can be used")
			}
			fresh := !m.linked(pod, pv.Name)
			dev, err := m.CSI.MapDevice(ctx, pod, spec, filepath.Join(m.PodDir(string(pod.UID)), devices, pv.Name))
			if err == nil {
				err = m.CSI.Refresh(ctx, pod, spec, dev, fresh)
			}
			if step := (*StepError)(nil); err != nil && !errors.As(err, &step) {
				err = &StepError{"MapVolume.SetUpDevice failed", err}
			}
			return Mounted{Device: dev, Path: dev, ReadOnly: spec.ReadOnly, Kind: "kubernetes.io~csi", Driver: s.CSI.Driver, Migrated: spec.Migrated}, err
		}
		return m.driver(ctx, pod, spec)
	case s.NFS != nil:
		return m.nfs(ctx, pod, pv.Name, s.NFS, readOnly, pv.Spec.MountOptions)
	case s.ISCSI != nil:
		return m.iscsi(ctx, pod, iscsiVolume(pod, pv, readOnly, block))
	}
	return Mounted{}, fmt.Errorf("no volume plugin matched for PersistentVolume %s", pv.Name)
}

func (m *Manager) driver(ctx context.Context, pod *corev1.Pod, spec Spec) (Mounted, error) {
	if m.CSI == nil {
		return Mounted{}, errors.New("no CSI driver can be used")
	}
	target := filepath.Join(m.dir(pod, "kubernetes.io~csi", spec.Name), "mount")
	got := Mounted{Path: target, ReadOnly: spec.ReadOnly, Kind: "kubernetes.io~csi", Driver: spec.driver(), Migrated: spec.Migrated}
	fresh := !mounted(target)
	err := m.setUp(ctx, pod, got, spec.Name, target, func(unowned func() error) error {
		return m.CSI.Mount(ctx, pod, spec, target, unowned)
	})
	if err == nil {
		err = m.CSI.Refresh(ctx, pod, spec, target, fresh)
	}
	return got, err
}

// driver is that of the volume.
func (s Spec) driver() string {
	if s.Inline != nil {
		return s.Inline.Driver
	}
	return s.PV.Spec.CSI.Driver
}

// Unmount takes all volumes of a pod away, and its directory with them.
func (m *Manager) Unmount(ctx context.Context, uid string) error {
	m.forgetTokens(uid)
	m.forgetWanted(uid)
	dir := m.PodDir(uid)
	if _, err := os.Lstat(dir); os.IsNotExist(err) {
		m.forget(dir)
		m.release(uid, "")
		return nil
	}
	var errs []error
	if m.CSI != nil {
		of := filepath.Join(dir, "volumes", "kubernetes.io~csi")
		volumes, err := os.ReadDir(of)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		for _, v := range volumes {
			// Also what was never published: it may have been staged.
			if err := m.CSI.Unmount(ctx, filepath.Join(of, v.Name(), "mount")); err != nil {
				errs = append(errs, fmt.Errorf("UnmountVolume.TearDown failed for volume %q: %w", v.Name(), err))
			}
		}
	}
	errs = append(errs, m.unmapDevices(ctx, dir))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	began, dirs := time.Now(), m.Directories(uid)
	err := m.unmountBelow(ctx, dir)
	m.unmounted(dirs, began, err)
	if err != nil {
		return err
	}
	if err := m.detachDisks(ctx, uid); err != nil {
		return err
	}
	m.forget(dir)
	m.release(uid, "")
	// Nothing is mounted below any more, so that nothing but the pod's own
	// files is removed.
	return podfile.RemoveAll(ctx, dir)
}

func (m *Manager) forget(dir string) {
	if m.CSI != nil {
		m.CSI.Forget(dir)
	}
}

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
