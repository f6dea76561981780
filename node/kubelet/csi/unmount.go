package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"

	"knarr/node/kubelet/volume"
)

// Unmount takes a published volume back, and off the node if no other pod
// uses it. The record goes last, so that what fails is tried again. A volume that
// stays on the node keeps no pod: that is between the node and its driver.
func (m *Manager) Unmount(ctx context.Context, target string) error {
	dir := filepath.Dir(target)
	r, err := noted(dir)
	if os.IsNotExist(err) {
		return nil // never published, nor staged
	}
	if err != nil {
		m.Cleaned(err)
		return err
	}
	began := time.Now()
	err = m.unmount(withMigrated(ctx, r.Migrated), r, target)
	m.did(volume.OpUnmount, r, began, err)
	return err
}

func (m *Manager) unmount(ctx context.Context, r record, target string) error {
	dir := filepath.Dir(target)
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
	if _, err := d.node.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: r.Handle, TargetPath: target}); err != nil {
		return fmt.Errorf("unpublish volume %s: %w", r.Handle, err)
	}
	_ = os.Remove(target)
	if d.stage && r.Lifecycle != string(storagev1.VolumeLifecycleEphemeral) {
		if err := m.unstage(ctx, d, r, dir); err != nil {
			m.stillStaged(r, m.stagingDir(r.Driver, r.Handle), err)
		}
	}
	if err := os.Remove(filepath.Join(dir, recordFile)); err != nil {
		return err
	}
	m.release(func(holder string) bool { return holder == dir })
	m.forgetGrowth(r)
	return nil
}

// withoutDriver says what to do about a volume whose driver is not there.
func withoutDriver(err error) error {
	return fmt.Errorf("%w: the driver's pod on this node must run until the volume is unmounted", err)
}

// forgetGrowth forgets the size of a volume that no pod has.
func (m *Manager) forgetGrowth(r record) {
	if m.used(r, "") {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.grown, r.Driver+"^"+r.Handle)
}

// Forget notes that the pod with the directory dir waits for no volume any more.
func (m *Manager) Forget(dir string) {
	m.release(func(holder string) bool { return strings.HasPrefix(holder, dir+string(filepath.Separator)) })
}

// unstage takes a volume off the node unless a pod has it whose record is not
// in the directory except. The volume's lock is held.
func (m *Manager) unstage(ctx context.Context, d *driver, r record, except string) error {
	if m.used(r, except) {
		return nil
	}
	staging := m.stagingDir(r.Driver, r.Handle)
	if _, err := noted(staging); os.IsNotExist(err) { // never staged
		m.release(func(holder string) bool { return holder == staging })
		return nil
	}
	path := filepath.Join(staging, "globalmount")
	began := time.Now()
	_, err := d.node.NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{VolumeId: r.Handle, StagingTargetPath: path})
	m.did(volume.OpUnstage, r, began, err)
	if err != nil {
		return fmt.Errorf("unstage volume %s: %w", r.Handle, err)
	}
	_ = os.Remove(path) // not what may still be in it
	_ = os.Remove(filepath.Join(staging, recordFile))
	_ = os.Remove(staging)
	m.release(func(holder string) bool { return holder == staging })
	return nil
}

// stillStaged notes that a driver did not take a volume off the node, where its record
// is in the directory holder: it must not be detached until a later try has.
func (m *Manager) stillStaged(r record, holder string, err error) {
	slog.Warn("take a volume off the node, trying again", "driver", r.Driver, "volume", r.Handle, "err", err)
	if r.Attach != notAttached {
		m.attachments.hold(uniqueName(r.Driver, r.Handle), holder)
	}
	select {
	case m.staged <- struct{}{}:
	default: // it is known already
	}
}

// The times between two tries to take what is left off the node.
const minUnstage, maxUnstage = 500 * time.Millisecond, 2 * time.Minute

// unstageAgain tries again what stillStaged noted, until ctx ends.
func (m *Manager) unstageAgain(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.staged:
		}
		for wait, err := minUnstage, errors.New("not tried yet"); err != nil; wait = min(2*wait, maxUnstage) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			if err = m.Collect(ctx); err != nil && ctx.Err() == nil {
				slog.Warn("take volumes off the node that no pod has, trying again", "err", err)
			}
		}
	}
}

// Collect takes volumes off the node that no pod of it has: what a crash left
// staged.
func (m *Manager) Collect(ctx context.Context) error {
	all, err := filepath.Glob(filepath.Join(m.RootDir, "plugins", "kubernetes.io", "csi", "*", "*", recordFile))
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range all {
		if err := m.collect(ctx, filepath.Dir(f)); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, m.collectDevices(ctx))
	return errors.Join(errs...)
}

func (m *Manager) collect(ctx context.Context, staging string) error {
	r, err := noted(staging)
	if err != nil || staging != m.stagingDir(r.Driver, r.Handle) || m.used(r, "") {
		return err
	}
	d, err := m.driver(r.Driver)
	if err != nil || !d.stage {
		return nil // its driver may come yet
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	unlock, err := m.lock(ctx, r.Handle)
	if err != nil {
		return err
	}
	defer unlock()
	return m.unstage(ctx, d, r, "")
}

// used says whether a pod of this node has the volume, beside the one whose
// record is in the directory except.
func (m *Manager) used(r record, except string) bool {
	all, _ := filepath.Glob(filepath.Join(m.RootDir, "pods", "*", "volumes", "kubernetes.io~csi", "*", recordFile))
	for _, f := range all {
		if filepath.Dir(f) == except {
			continue
		}
		if o, err := noted(filepath.Dir(f)); err == nil && o.Handle == r.Handle && o.Driver == r.Driver {
			return true
		}
	}
	return false
}
