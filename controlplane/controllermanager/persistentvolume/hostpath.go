package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apifields "k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"

	"golang.org/x/sys/unix"

	"knarr/controlplane/controllermanager/volumemetrics"
	"knarr/internal/dirfd"
	"knarr/internal/run"
)

// HostPathDirectory is where directories of volumes are made on this host, upstream's.
const HostPathDirectory = "/tmp/hostpath_pv"

// provisionedPrefix begins the names of volumes that are made for claims; the UID of the
// claim follows.
const provisionedPrefix = "pvc-"

// provisioned is the volume that is to be made for the claim, with a directory of its own
// below another. It is named after the claim's UID, so that another try finds it, and that
// no volume but that of its name leads to its removal. Pure.
func (v *claimView) provisioned() *corev1.PersistentVolume {
	claim, uid := v.claim, string(v.claim.UID)
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: provisionedPrefix + uid, Annotations: map[string]string{
			"kubernetes.io/createdby":        "hostpath-dynamic-provisioner",
			volume.AnnBoundByController:      "yes",
			volume.AnnDynamicallyProvisioned: hostPath,
		}},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: deref(v.class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete),
			AccessModes:                   claim.Spec.AccessModes,
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(v.directory, uid)}},
			StorageClassName:              volume.GetPersistentVolumeClaimClass(claim),
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name,
				UID: claim.UID, ResourceVersion: claim.ResourceVersion},
		},
	}
	if len(pv.Spec.AccessModes) == 0 {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	if pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		pv.Finalizers = []string{volume.PVDeletionInTreeProtectionFinalizer}
	}
	return pv
}

// ours is the name, below the directory, of what was made for a volume; "" if it was not
// made here. Whoever may write volumes may write anything into one: its name, its path and
// who made it must fit together. Pure.
func ours(v *corev1.PersistentVolume, directory string) string {
	if directory == "" || v.Spec.HostPath == nil || v.Annotations[volume.AnnDynamicallyProvisioned] != hostPath {
		return ""
	}
	name := filepath.Base(v.Spec.HostPath.Path)
	if v.Name != provisionedPrefix+name || v.Spec.HostPath.Path != filepath.Join(directory, name) || filepath.Dir(v.Spec.HostPath.Path) != directory {
		return ""
	}
	return name
}

// create makes a volume and its directory. It returns the step that follows.
func (r *reconciler) create(ctx context.Context, v *claimView, pv *corev1.PersistentVolume) (step, error) {
	if r.removals[pv.Name] != nil {
		return step{last: true, after: recycleAgain}, nil // what an earlier try left goes
	}
	volumes := r.client.CoreV1().PersistentVolumes()
	if _, err := volumes.Get(ctx, pv.Name, metav1.GetOptions{}); err == nil {
		return step{last: true}, nil // made already: its event follows
	} else if !apierrors.IsNotFound(err) {
		return step{}, fmt.Errorf("get volume %s: %w", pv.Name, err)
	}
	if node := v.claim.Annotations[volume.AnnSelectedNode]; node != "" {
		// The controller's account may list nodes, as upstream's, and not get one.
		list, err := r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: apifields.OneTermEqualSelector("metadata.name", node).String()})
		if err != nil {
			return step{}, fmt.Errorf("look for node %s: %w", node, err)
		}
		if len(list.Items) == 0 {
			return v.notProvisioned("Failed to get target node: "+apierrors.NewNotFound(corev1.Resource("node"), node).Error(), false), nil
		}
	}
	began := time.Now()
	err := makeDirectory(r.HostPaths, string(v.claim.UID))
	volumemetrics.Done(volumemetrics.Provisioning, hostPath, false, time.Since(began), err != nil)
	if err != nil {
		return v.notProvisioned(fmt.Sprintf("Failed to provision volume with StorageClass %q: %v", v.class.Name, err), true), nil
	}
	stored, err := volumes.Create(ctx, pv, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return step{last: true}, nil // its event follows
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
		// Refused, so that there is none. After other errors there may be one, and another try
		// finds the directory.
		_, _ = r.removeDirectory(ctx, pv.Name, string(v.claim.UID))
		return v.notProvisioned(fmt.Sprintf("Error creating provisioned PV object for claim %s/%s: %v. Deleting the volume.", v.claim.Namespace, v.claim.Name, err), false), nil
	case err != nil:
		return step{}, fmt.Errorf("create volume %s: %w", pv.Name, err)
	}
	r.pool.set(stored)
	return step{events: []event{{v.claim, corev1.EventTypeNormal, "ProvisioningSucceeded", fmt.Sprintf("Successfully provisioned volume %s using %s", pv.Name, hostPath)}}}, nil
}

// notProvisioned is the step after a try that failed: another one, later. The scheduler may
// choose another node for it if anew.
func (v *claimView) notProvisioned(message string, anew bool) step {
	s := step{events: []event{{v.claim, corev1.EventTypeWarning, "ProvisioningFailed", message}}, last: true, after: recycleAgain, failed: true}
	if anew && metav1.HasAnnotation(v.claim.ObjectMeta, volume.AnnSelectedNode) {
		s.claim = v.claim.DeepCopy()
		delete(s.claim.Annotations, volume.AnnSelectedNode)
	}
	return s
}

// A removal is that of one directory. What pods have written may take long to remove: it
// goes on beside the reconciling of other objects.
type removal struct {
	done bool
	err  error
}

// discard removes the directory of a volume that is to be deleted, and says whether that is
// done, or what keeps it from being done. What is removed is gone: that the volume is still as
// it was when that was decided is asked of the server itself.
func (r *reconciler) discard(ctx context.Context, v *corev1.PersistentVolume, name string) (done bool, failed, err error) {
	if r.removals[v.Name] == nil {
		now, err := r.client.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{})
		if err != nil {
			return false, nil, err
		}
		if now.UID != v.UID || now.ResourceVersion != v.ResourceVersion {
			return false, nil, errChanged
		}
	}
	done, failed = r.removeDirectory(ctx, v.Name, name)
	return done, failed, nil
}

// removeDirectory begins to remove what was made for a volume, or says what came of it. The
// volume is looked at again then. r.mu is held.
func (r *reconciler) removeDirectory(ctx context.Context, key, name string) (done bool, failed error) {
	switch on := r.removals[key]; {
	case on != nil && on.done:
		delete(r.removals, key)
		return true, on.err
	case on != nil || r.ended:
		return false, nil
	}
	on := &removal{}
	r.removals[key] = on
	r.removing.Go(Name+": remove a directory", func() {
		err := run.Catch(Name+": remove a directory", func() error { return removeDirectory(ctx, r.HostPaths, name) })
		r.mu.Lock()
		defer r.mu.Unlock()
		on.done, on.err = true, err
		r.add(cache.ObjectName{Name: key})
	})
	return false, nil
}

// makeDirectory makes one of that name, unless there is one.
func makeDirectory(directory, name string) error {
	dir, err := openOwn(directory, true)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Mkdirat(dir, name, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return &fs.PathError{Op: "mkdir", Path: filepath.Join(directory, name), Err: err}
	}
	made, err := dirfd.Openat2(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_BENEATH)
	if err != nil {
		return &fs.PathError{Op: "open", Path: filepath.Join(directory, name), Err: err}
	}
	return unix.Close(made)
}

// removeDirectory removes the one of that name and all that is in it.
func removeDirectory(ctx context.Context, directory, name string) error {
	dir, err := openOwn(directory, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := dirfd.RemoveAllAt(ctx, dir, name); err != nil {
		return &fs.PathError{Op: "remove", Path: filepath.Join(directory, name), Err: err}
	}
	return nil
}

// openOwn opens the directory that all of them are in. Everybody may write beside it: it
// counts only if this process's user made it, and nobody else may write in it.
func openOwn(directory string, create bool) (int, error) {
	parent, err := dirfd.Open(filepath.Dir(directory))
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	if create {
		if err := unix.Mkdirat(parent, filepath.Base(directory), 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
			return -1, &fs.PathError{Op: "mkdir", Path: directory, Err: err}
		}
	}
	dir, err := dirfd.Openat2(parent, filepath.Base(directory), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: directory, Err: err}
	}
	var is unix.Stat_t
	if err := unix.Fstat(dir, &is); err != nil || int(is.Uid) != os.Geteuid() || is.Mode&0o022 != 0 {
		unix.Close(dir)
		return -1, fmt.Errorf("%s is somebody else's directory, or others may write in it: remove it", directory)
	}
	return dir, nil
}
