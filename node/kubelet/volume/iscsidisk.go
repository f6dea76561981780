package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/statefile"
	"knarr/node/kubelet/volume/iscsi"
)

// iscsiKind is the name of directories of iSCSI volumes. A pod's directory has
//
//	plugins/kubernetes.io~iscsi/VOLUME/disk.json    the disk, from before it is attached
//	volumes/kubernetes.io~iscsi/VOLUME              where it is mounted
const iscsiKind = "kubernetes.io~iscsi"

// attachTime bounds one attempt to attach or detach a disk: iscsiadm's own limits are longer.
const attachTime = 3 * time.Minute

const initiatorPackages = "open-iscsi (Debian, Ubuntu) or iscsi-initiator-utils (others)"

// iscsiHost is this node.
var iscsiHost = &iscsi.Host{
	Run: func(ctx context.Context, name string, args ...string) (string, int, error) {
		const most = 64 << 10
		return hostProgram(ctx, most, initiatorPackages, name, args...)
	},
	Sys: "/sys", Appear: 30 * time.Second, Join: 10 * time.Second,
}

// A target is an iSCSI volume, a pod's own or a PersistentVolume's.
type target struct {
	disk            iscsi.Disk
	name, fstype    string
	secret          *corev1.SecretReference
	options         []string
	readOnly, block bool
}

// iscsiInline is a pod's own volume. Pure.
func iscsiInline(pod *corev1.Pod, name string, s *corev1.ISCSIVolumeSource) target {
	t := target{name: name, fstype: s.FSType, readOnly: s.ReadOnly, disk: iscsiDisk(name, s.TargetPortal, s.Portals, s.IQN, s.Lun, s.ISCSIInterface, s.InitiatorName)}
	t.disk.DiscoveryCHAP, t.disk.SessionCHAP = s.DiscoveryCHAPAuth, s.SessionCHAPAuth
	if s.SecretRef != nil {
		t.secret = &corev1.SecretReference{Namespace: pod.Namespace, Name: s.SecretRef.Name}
	}
	return t
}

// iscsiVolume is a PersistentVolume. Pure.
func iscsiVolume(pod *corev1.Pod, pv *corev1.PersistentVolume, readOnly, block bool) target {
	s := pv.Spec.ISCSI
	t := target{name: pv.Name, fstype: s.FSType, readOnly: readOnly || s.ReadOnly, block: block, options: pv.Spec.MountOptions,
		disk: iscsiDisk(pv.Name, s.TargetPortal, s.Portals, s.IQN, s.Lun, s.ISCSIInterface, s.InitiatorName)}
	t.disk.DiscoveryCHAP, t.disk.SessionCHAP = s.DiscoveryCHAPAuth, s.SessionCHAPAuth
	if s.SecretRef != nil {
		t.secret = &corev1.SecretReference{Namespace: s.SecretRef.Namespace, Name: s.SecretRef.Name}
		if t.secret.Namespace == "" {
			t.secret.Namespace = pod.Namespace
		}
	}
	return t
}

func iscsiDisk(name, first string, more []string, iqn string, lun int32, iface string, initiator *string) iscsi.Disk {
	d := iscsi.Disk{Name: name, IQN: iqn, LUN: lun, Interface: iface, Portals: []string{iscsi.Portal(first)}}
	for _, p := range more {
		if p := iscsi.Portal(p); !slices.Contains(d.Portals, p) {
			d.Portals = append(d.Portals, p)
		}
	}
	if initiator != nil {
		d.Initiator = *initiator
	}
	return d
}

// iscsi attaches a disk, and mounts it unless the pod wants the device.
func (m *Manager) iscsi(ctx context.Context, pod *corev1.Pod, t target) (Mounted, error) {
	got := Mounted{Path: m.dir(pod, iscsiKind, t.name), ReadOnly: t.readOnly, Kind: iscsiKind}
	if t.block {
		device, err := m.attachDisk(ctx, pod, &t)
		if err != nil {
			return got, &StepError{"MapVolume.WaitForAttach failed", err}
		}
		got.Device, got.Path = device, device
		return got, nil
	}
	return got, m.setUp(ctx, pod, got, t.name, got.Path, func(unowned func() error) error {
		if !t.readOnly {
			if err := unowned(); err != nil {
				return err
			}
		}
		device, err := m.attachDisk(ctx, pod, &t)
		if err != nil {
			return &StepError{"MountVolume.WaitForAttach failed", err}
		}
		err = m.mountDisk(ctx, formatted{device, cmp.Or(t.fstype, defaultFS), "iscsi.fsType", t.options, t.readOnly}, got.Path)
		if err != nil {
			return &StepError{"MountVolume.MountDevice failed", err}
		}
		return nil
	})
}

// attachDisk notes the disk, so that it is taken off the node whatever happens, and attaches
// it.
func (m *Manager) attachDisk(ctx context.Context, pod *corev1.Pod, t *target) (device string, err error) {
	if t.secret != nil && (t.disk.DiscoveryCHAP || t.disk.SessionCHAP) {
		if m.Credentials == nil {
			return "", errors.New("secrets of volumes cannot be read")
		}
		secret, err := m.Credentials(ctx, t.secret.Namespace, t.secret.Name)
		if err != nil {
			return "", fmt.Errorf("couldn't get secret %s/%s error: %w", t.secret.Namespace, t.secret.Name, err)
		}
		t.disk.Secret = make(map[string]string, len(secret.Data))
		for key, value := range secret.Data {
			t.disk.Secret[key] = string(value)
		}
	}
	if _, err := helper("iscsiadm", initiatorPackages); err != nil {
		return "", err
	}
	note := m.diskNotes(string(pod.UID), t.name)
	// Two pods may have disks of one target: the sessions with it are both's.
	err = m.calls.Do(ctx, t.disk.IQN, 0, func() error {
		ctx, cancel := context.WithTimeout(ctx, attachTime)
		defer cancel()
		if err := os.MkdirAll(filepath.Dir(note), 0o750); err != nil {
			return err
		}
		if err := statefile.Write(note, t.disk, true); err != nil {
			return err
		}
		found, err := iscsiHost.Attach(ctx, &t.disk)
		if err == nil {
			device = found
		}
		return err
	})
	if err != nil { // also of one that goes on
		return "", err
	}
	return device, nil
}

// diskNotes is where the notes of a pod's disks are.
func (m *Manager) diskNotes(uid, volume string) string {
	return filepath.Join(m.PodDir(uid), "plugins", iscsiKind, volume, "disk.json")
}

// detachDisks takes the disks of a pod, which has none of them mounted any more, off the
// node unless another pod has them.
func (m *Manager) detachDisks(ctx context.Context, uid string) error {
	notes, _ := filepath.Glob(m.diskNotes(uid, "*"))
	var faults []error
	for _, note := range notes {
		d, err := readDisk(note)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		faults = append(faults, m.calls.Do(ctx, d.IQN, 0, func() error {
			ctx, cancel := context.WithTimeout(ctx, attachTime)
			defer cancel()
			began := time.Now()
			err := iscsiHost.Detach(ctx, d, m.otherDisks(uid))
			m.Did(Operation{Name: OpUnstage, Plugin: pluginOfKind(iscsiKind), Took: time.Since(began), Err: err})
			if err != nil {
				return fmt.Errorf("UnmountDevice failed for volume %q: %w", d.Name, err)
			}
			return os.Remove(note)
		}))
	}
	return errors.Join(faults...)
}

// otherDisks are those of all pods but one.
func (m *Manager) otherDisks(uid string) (all []iscsi.Disk) {
	uids, _ := m.Pods()
	for _, other := range uids {
		if other == uid {
			continue
		}
		notes, _ := filepath.Glob(m.diskNotes(other, "*"))
		for _, note := range notes {
			if d, err := readDisk(note); err == nil {
				all = append(all, *d)
			}
		}
	}
	return all
}

func readDisk(path string) (*iscsi.Disk, error) {
	var d iscsi.Disk
	if err := statefile.Read(path, &d); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &d, nil
}
