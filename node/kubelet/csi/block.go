package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/volume"
)

// A block volume is laid out as upstream does it:
//
//	plugins/kubernetes.io/csi/volumeDevices/staging/PV          where the driver stages it
//	plugins/kubernetes.io/csi/volumeDevices/publish/PV/POD      the device, for one pod
//	plugins/kubernetes.io/csi/volumeDevices/PV/data             the record
//	pods/POD/volumeDevices/kubernetes.io~csi/PV                 link to the device
func (m *Manager) blocks(parts ...string) string {
	return filepath.Join(append([]string{m.RootDir, "plugins", "kubernetes.io", "csi", "volumeDevices"}, parts...)...)
}

func (m *Manager) blockStaging(pv string) string { return m.blocks("staging", pv) }

// MapDevice stages the volume, publishes it as a block device for the pod, and
// links it at link. Link and record come first, so that nothing a driver has done
// is forgotten.
func (m *Manager) MapDevice(ctx context.Context, pod *corev1.Pod, spec volume.Spec, link string) (string, error) {
	ctx = withMigrated(ctx, spec.Migrated)
	r, err := parse(pod, spec)
	if err != nil {
		return "", err
	}
	if r.ephemeral {
		return "", fmt.Errorf("volume %s cannot be a block device", spec.Name)
	}
	device := m.blocks("publish", r.pv, string(pod.UID))
	if to, err := os.Readlink(link); err == nil && to == device && isDevice(device) == nil {
		return device, nil // published before
	}
	d, err := m.driver(r.driver)
	if err != nil {
		return "", err
	}
	about, err := m.about(ctx, r.driver)
	if err != nil {
		return "", err
	}
	if err := permits(r, about); err != nil {
		return "", err
	}
	rec, err := m.prepare(ctx, &r, spec.Name, about, link)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	unlock, err := m.lock(ctx, r.handle)
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := m.linkDevice(rec, device, link); err != nil {
		return "", err
	}
	if d.stage {
		if err := m.stage(ctx, d, r, rec.Attach, capabilityOf(r, d, "")); err != nil {
			return "", &volume.StepError{Step: "MapVolume.SetUpDevice failed", Err: err}
		}
	}
	req, err := m.publication(ctx, d, pod, r, about, device)
	if err != nil {
		return "", err
	}
	if _, err := d.node.NodePublishVolume(ctx, req); err != nil {
		return "", &volume.StepError{Step: "MapVolume.MapPodDevice failed", Err: err}
	}
	return device, isDevice(device)
}

// linkDevice keeps the record of a block volume and the pod's link to it.
func (m *Manager) linkDevice(rec record, device, link string) error {
	data := m.blocks(rec.SpecVolID, "data")
	for _, dir := range []string{data, filepath.Dir(device), filepath.Dir(link)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	}
	if err := note(data, rec); err != nil {
		return err
	}
	if err := os.Symlink(device, link); err != nil && !os.IsExist(err) {
		return err
	}
	return nil
}

// isDevice checks that a driver has published what it was asked for.
func isDevice(path string) error {
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if st.Mode()&os.ModeType != os.ModeDevice {
		return fmt.Errorf("%s is not a block device", path)
	}
	return nil
}

// UnmapDevice takes a block volume back from the pod with the link, and off the
// node if no other pod has it. The link goes last, so that what fails is tried
// again; what stays on the node keeps no pod.
func (m *Manager) UnmapDevice(ctx context.Context, link string) error {
	pv := filepath.Base(link)
	uid := filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(link))))
	r, err := noted(m.blocks(pv, "data"))
	if err == nil {
		began := time.Now()
		err = m.unpublishDevice(withMigrated(ctx, r.Migrated), r, pv, uid)
		m.did(volume.OpUnmap, r, began, err)
	} else if os.IsNotExist(err) {
		err = nil // never published, nor staged
	}
	if err != nil {
		return err
	}
	if err := os.Remove(link); err != nil && !os.IsNotExist(err) {
		return err
	}
	m.release(func(holder string) bool { return holder == link })
	return nil
}

func (m *Manager) unpublishDevice(ctx context.Context, r record, pv, uid string) error {
	d, err := m.driver(r.Driver)
	if err != nil {
		return withoutDriver(err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	unlock, err := m.lock(ctx, r.Handle)
	if err != nil {
		return err
	}
	defer unlock()
	device := m.blocks("publish", pv, uid)
	if _, err := d.node.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: r.Handle, TargetPath: device}); err != nil {
		return fmt.Errorf("unpublish volume %s: %w", r.Handle, err)
	}
	_ = os.Remove(device) // not what may still be mounted there
	if err := m.unstageDevice(ctx, d, r, pv, uid); err != nil {
		m.stillStaged(r, m.blocks(pv, "data"), err)
	}
	return nil
}

// unstageDevice takes a block volume off the node unless a pod besides uid has it.
// The volume's lock is held.
func (m *Manager) unstageDevice(ctx context.Context, d *driver, r record, pv, uid string) error {
	links, err := filepath.Glob(filepath.Join(m.RootDir, "pods", "*", "volumeDevices", "kubernetes.io~csi", pv))
	if err != nil {
		return err
	}
	for _, link := range links {
		if filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(link)))) != uid {
			return nil
		}
	}
	staging := m.blockStaging(pv)
	if _, err := os.Lstat(staging); d.stage && !os.IsNotExist(err) { // it may never have been staged
		began := time.Now()
		_, err := d.node.NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{VolumeId: r.Handle, StagingTargetPath: staging})
		m.did(volume.OpUnmapDevice, r, began, err)
		if err != nil {
			return fmt.Errorf("unstage volume %s: %w", r.Handle, err)
		}
	}
	data := m.blocks(pv, "data")
	for _, path := range []string{staging, m.blocks("publish", pv), filepath.Join(data, recordFile), data, m.blocks(pv)} {
		_ = os.Remove(path) // not what may still be in it
	}
	m.release(func(holder string) bool { return holder == data })
	m.forgetGrowth(r)
	return nil
}

// collectDevices takes block volumes off the node that no pod of it has.
func (m *Manager) collectDevices(ctx context.Context) error {
	all, err := filepath.Glob(m.blocks("*", "data", recordFile))
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range all {
		data := filepath.Dir(f)
		errs = append(errs, m.collectDevice(ctx, data, filepath.Base(filepath.Dir(data))))
	}
	return errors.Join(errs...)
}

func (m *Manager) collectDevice(ctx context.Context, data, pv string) error {
	r, err := noted(data)
	if err != nil {
		return err
	}
	d, err := m.driver(r.Driver)
	if err != nil {
		return nil // its driver may come yet
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	unlock, err := m.lock(ctx, r.Handle)
	if err != nil {
		return err
	}
	defer unlock()
	return m.unstageDevice(ctx, d, r, pv, "")
}
