package persistentvolume

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
)

// A volumeView is a volume and the claim that it names, nil if there is none with
// the UID.
type volumeView struct {
	volume *corev1.PersistentVolume
	claim  *corev1.PersistentVolumeClaim
	// recycling is set if that is what its policy says, and the claim is gone.
	recycling *recycling
	// directory is where those of host paths are made, "" if none are.
	directory string
}

// next is the next step with the volume.
func (v *volumeView) next() step {
	if changed := migratedVolume(v.volume); changed != nil {
		return step{volume: changed}
	}
	ref := v.volume.Spec.ClaimRef
	switch {
	case ref == nil:
		return v.phase(corev1.VolumeAvailable)
	case ref.UID == "":
		// The claim finds the volume that is reserved for it.
		s := v.phase(corev1.VolumeAvailable)
		s.enqueue = []cache.ObjectName{claimKey(ref)}
		return s
	case v.claim == nil:
		return v.release()
	case v.claim.Spec.VolumeName == "":
		return v.notTakenYet()
	case v.claim.Spec.VolumeName == v.volume.Name:
		return v.phase(corev1.VolumeBound)
	case metav1.HasAnnotation(v.volume.ObjectMeta, volume.AnnDynamicallyProvisioned) &&
		v.volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		return v.release() // made for a claim that has another now
	}
	return step{volume: unbind(v.volume)}
}

// phase is the last step: the volume's phase.
func (v *volumeView) phase(phase corev1.PersistentVolumePhase) step {
	if v.volume.Status.Phase == phase {
		return step{last: true}
	}
	return step{volume: withPhase(v.volume, phase, ""), status: true, last: true}
}

// notTakenYet is the step while the claim does not name the volume.
func (v *volumeView) notTakenYet() step {
	if !volume.CheckVolumeModeMismatches(&v.claim.Spec, &v.volume.Spec) {
		return step{enqueue: []cache.ObjectName{cache.MetaObjectToName(v.claim)}, last: true}
	}
	return step{last: true, events: []event{
		{v.volume, corev1.EventTypeWarning, "VolumeMismatch", fmt.Sprintf("Cannot bind PersistentVolume to requested PersistentVolumeClaim %q due to incompatible volumeMode.", v.claim.Name)},
		{v.claim, corev1.EventTypeWarning, "VolumeMismatch", fmt.Sprintf("Cannot bind PersistentVolume %q to requested PersistentVolumeClaim due to incompatible volumeMode.", v.volume.Name)},
	}}
}

// unbind is the volume without the claim that it was given to; a claim that a
// user wrote into it stays, without its UID.
func unbind(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	v = v.DeepCopy()
	if !metav1.HasAnnotation(v.ObjectMeta, volume.AnnBoundByController) {
		v.Spec.ClaimRef.UID = ""
		return v
	}
	v.Spec.ClaimRef = nil
	if delete(v.Annotations, volume.AnnBoundByController); len(v.Annotations) == 0 {
		v.Annotations = nil
	}
	return v
}

// release is the step with a volume whose claim is gone: Released, then what its
// reclaim policy says.
func (v *volumeView) release() step {
	if p := v.volume.Status.Phase; p != corev1.VolumeReleased && p != corev1.VolumeFailed {
		return step{volume: withPhase(v.volume, corev1.VolumeReleased, ""), status: true}
	}
	if v.volume.Annotations[volume.AnnMigratedTo] != "" {
		return step{last: true} // the external provisioner's
	}
	switch v.volume.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimRetain:
		return step{last: true}
	case corev1.PersistentVolumeReclaimRecycle:
		return v.recycle()
	case corev1.PersistentVolumeReclaimDelete:
		s := v.delete()
		s.deletes = true
		return s
	}
	return v.failed("VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy")
}

func (v *volumeView) failed(reason, message string) step {
	if v.volume.Status.Phase == corev1.VolumeFailed {
		return step{last: true}
	}
	return step{volume: withPhase(v.volume, corev1.VolumeFailed, message), status: true, last: true,
		events: []event{{v.volume, corev1.EventTypeWarning, reason, message}}}
}

var temporary = regexp.MustCompile("/tmp/.+")

// delete is the step with a volume that is to be deleted. One of a CSI driver is
// deleted by its external provisioner. Of a host path only the object is: its
// directory is another machine's, unless it was made here.
func (v *volumeView) delete() step {
	external, problem := deleter(v.volume)
	switch {
	case problem != "":
		return v.failed("VolumeFailedDelete", problem)
	case external:
		return step{last: true}
	case v.volume.Spec.HostPath == nil:
		return v.failed("VolumeFailedDelete", fmt.Sprintf("failed to create deleter for volume %q: spec.PersistentVolumeSource.HostPath is nil", v.volume.Name))
	case !temporary.MatchString(v.volume.Spec.HostPath.Path):
		return v.failed("VolumeFailedDelete", "host_path deleter only supports /tmp/.+ but received provided "+v.volume.Spec.HostPath.Path)
	case v.volume.DeletionTimestamp == nil:
		return step{remove: v.volume, discard: ours(v.volume, v.directory)}
	}
	if changed := withoutFinalizer(v.volume, volume.PVDeletionInTreeProtectionFinalizer); changed != nil {
		return step{volume: changed, last: true, discard: ours(v.volume, v.directory)}
	}
	return step{last: true}
}

// deleter says who deletes the volume: somebody else, this controller, or
// nobody, because there is a problem.
func deleter(v *corev1.PersistentVolume) (external bool, problem string) {
	switch by := v.Annotations[volume.AnnDynamicallyProvisioned]; {
	case by == hostPath:
		return false, ""
	case by == nfs:
		return false, "no deletable volume plugin matched"
	case strings.HasPrefix(by, inTreePrefix):
		return false, "no volume plugin matched name: " + by
	case by != "" || v.Spec.CSI != nil:
		return true, ""
	case v.Spec.HostPath != nil:
		return false, ""
	case v.Spec.NFS != nil:
		return false, fmt.Sprintf("error getting deleter volume plugin for volume %q: no deletable volume plugin matched", v.Name)
	}
	return false, fmt.Sprintf("error getting deleter volume plugin for volume %q: no volume plugin matched", v.Name)
}
