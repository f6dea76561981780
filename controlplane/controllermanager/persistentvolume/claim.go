package persistentvolume

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"

	"knarr/internal/csimigration"
)

// A step is one write, and what follows from it. Each step is decided from the
// stored objects alone, so that whoever comes next after a stop goes on there.
type step struct {
	// claim or volume is the object to store: its status, or the rest of it.
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
	status bool
	// remove is the volume to delete.
	remove *corev1.PersistentVolume
	// events are recorded once the object is stored.
	events []event
	// enqueue are keys to look at.
	enqueue []cache.ObjectName
	// last says that nothing is to be decided afterwards until something changes.
	last bool
	// create is a volume to make, with its directory, before all else; failed says that this
	// did not come about. discard is the name of a directory to remove before all else.
	create  *corev1.PersistentVolume
	failed  bool
	discard string
	// start is a pod to make, end one to delete, before the object is stored; forget says that
	// what became of it is known. observe is a pod whose events the volume is to tell. after
	// is when to look again at the latest.
	start, end, observe *corev1.Pod
	forget              bool
	after               time.Duration
	// idle says that the claim waits for a volume that fits.
	idle bool
	// provisioner is who is to make a volume for the claim; deletes says that the volume is
	// to be deleted, retroactive that the claim gets the default class.
	provisioner          string
	deletes, retroactive bool
	err                  error
}

type event struct {
	on                    runtime.Object
	kind, reason, message string
}

// A claimView is a claim and what is decided on with it.
type claimView struct {
	claim *corev1.PersistentVolumeClaim
	// volume is the one that the claim names, or else one that fits, nil if there
	// is none.
	volume *corev1.PersistentVolume
	// class is the claim's, nil if it is not there; defaultClass is the name of
	// the default one.
	class        *storagev1.StorageClass
	defaultClass string
	// pods are the names of those with the claim that have no node yet.
	pods []string
	// static says that no volume is made for a claim; directory is where those of host paths
	// are, "" if none are made.
	static    bool
	directory string
}

// next is the next step with the claim.
func (v *claimView) next() step {
	if c := migratedClaim(v.claim); c != nil {
		return step{claim: c}
	}
	switch {
	case bindCompleted(v.claim):
		return v.bound()
	case v.claim.Spec.VolumeName == "":
		return v.unbound()
	}
	return v.named()
}

func bindCompleted(c *corev1.PersistentVolumeClaim) bool {
	return metav1.HasAnnotation(c.ObjectMeta, volume.AnnBindCompleted)
}

// delayed says that the scheduler chooses the volumes of the class.
func delayed(class *storagev1.StorageClass) bool {
	return class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// bound is the step with a claim that was bound before.
func (v *claimView) bound() step {
	switch ref := v.claimRef(); {
	case v.claim.Spec.VolumeName == "":
		return v.lost("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	case v.volume == nil:
		return v.lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case ref != nil && ref.UID != v.claim.UID:
		return v.lost("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
	}
	return bind(v.volume, v.claim)
}

func (v *claimView) claimRef() *corev1.ObjectReference {
	if v.volume == nil {
		return nil
	}
	return v.volume.Spec.ClaimRef
}

func (v *claimView) lost(reason, message string) step {
	if v.claim.Status.Phase == corev1.ClaimLost {
		return step{last: true}
	}
	c, err := withStatus(v.claim, corev1.ClaimLost, nil)
	return step{claim: c, status: true, events: []event{{v.claim, corev1.EventTypeWarning, reason, message}}, last: true, err: err}
}

// pending makes the claim Pending, with an event if reason is set.
func (v *claimView) pending(kind, reason, message string) step {
	c, err := withStatus(v.claim, corev1.ClaimPending, nil)
	s := step{claim: c, status: true, last: true, err: err}
	if reason != "" {
		s.events = []event{{v.claim, kind, reason, message}}
	}
	return s
}

// named is the step with a claim that asks for a certain volume.
func (v *claimView) named() step {
	switch {
	case v.volume == nil:
		return v.pending("", "", "")
	case v.volume.Spec.ClaimRef == nil:
		if problem := mismatch(v.volume, v.claim); problem != "" {
			return v.pending(corev1.EventTypeWarning, "VolumeMismatch", fmt.Sprintf("Cannot bind to requested volume %q: %s", v.volume.Name, problem))
		}
		return bind(v.volume, v.claim)
	case volume.IsVolumeBoundToClaim(v.volume, v.claim):
		return bind(v.volume, v.claim)
	}
	message := fmt.Sprintf("volume %q already bound to a different claim.", v.volume.Name)
	if !metav1.HasAnnotation(v.claim.ObjectMeta, volume.AnnBoundByController) {
		return v.pending(corev1.EventTypeWarning, "FailedBinding", message)
	}
	ref := v.volume.Spec.ClaimRef
	return step{
		events: []event{{v.claim, corev1.EventTypeWarning, "FailedBinding", message}},
		err: fmt.Errorf("invalid binding of claim \"%s/%s\" to volume %q: volume already claimed by \"%s/%s\"",
			v.claim.Namespace, v.claim.Name, v.volume.Name, ref.Namespace, ref.Name),
	}
}

// mismatch is why the claim cannot have the volume that it names, "" if it can.
func mismatch(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) string {
	size, request := v.Spec.Capacity[corev1.ResourceStorage], c.Spec.Resources.Requests[corev1.ResourceStorage]
	switch {
	case v.DeletionTimestamp != nil:
		return fmt.Sprintf("the volume is marked for deletion %q", v.Name)
	case size.Value() < request.Value():
		return "requested PV is too small"
	case volume.GetPersistentVolumeClass(v) != volume.GetPersistentVolumeClaimClass(c):
		return "storageClassName does not match"
	case deref(v.Spec.VolumeAttributesClassName, "") != deref(c.Spec.VolumeAttributesClassName, ""):
		return "volumeAttributesClassName does not match"
	case volume.CheckVolumeModeMismatches(&c.Spec, &v.Spec):
		return "incompatible volumeMode"
	case !volume.CheckAccessModes(c, v):
		return "incompatible accessMode"
	}
	return ""
}

// unbound is the step with a claim that takes any volume that fits.
func (v *claimView) unbound() step {
	if v.volume != nil {
		return bind(v.volume, v.claim)
	}
	if v.defaultClass != "" && !volume.PersistentVolumeClaimHasClass(v.claim) {
		c := v.claim.DeepCopy()
		c.Spec.StorageClassName = &v.defaultClass
		return step{claim: c, retroactive: true}
	}
	var s step
	switch {
	case delayed(v.class) && !volume.IsDelayBindingProvisioning(v.claim):
		s = v.pending(corev1.EventTypeNormal, "WaitForFirstConsumer", "waiting for first consumer to be created before binding")
		if len(v.pods) > 0 {
			s = v.pending(corev1.EventTypeNormal, "WaitForPodScheduled", waitingForPods(v.pods))
		}
	case volume.GetPersistentVolumeClaimClass(v.claim) != "":
		s = v.provision()
	default:
		s = v.pending(corev1.EventTypeNormal, "FailedBinding", "no persistent volumes available for this claim and no storage class is set")
	}
	s.idle = s.last && !delayed(v.class)
	return s
}

func waitingForPods(names []string) string {
	if len(names) == 1 {
		return fmt.Sprintf("waiting for pod %s to be scheduled", names[0])
	}
	return fmt.Sprintf("waiting for pods %s to be scheduled", strings.Join(names, ","))
}

// provision hands the claim over to its class's provisioner.
func (v *claimView) provision() step {
	if v.static {
		return step{last: true}
	}
	failed := func(message string) step {
		return step{events: []event{{v.claim, corev1.EventTypeWarning, "ProvisioningFailed", message}}, last: true}
	}
	if v.class == nil {
		return failed(apierrors.NewNotFound(storagev1.Resource("storageclass"), volume.GetPersistentVolumeClaimClass(v.claim)).Error())
	}
	name := v.class.Provisioner
	driver := csimigration.Driver(name)
	inTree := name == hostPath
	switch {
	case driver != "":
		name = driver
	case inTree && v.claim.Spec.DataSource != nil:
		return failed(fmt.Sprintf("plugin %q is not a CSI plugin. Only CSI plugin can provision a claim with a datasource", name))
	case name == nfs:
		return failed("no provisionable volume plugin matched")
	case !inTree && strings.HasPrefix(name, inTreePrefix):
		return failed("no volume plugin matched name: " + name)
	}
	if v.claim.Annotations[volume.AnnStorageProvisioner] != name {
		c := v.claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBetaStorageProvisioner, name)
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnStorageProvisioner, name)
		migrate(c.Annotations, name)
		return step{claim: c, provisioner: name}
	}
	switch {
	case inTree && len(v.class.MountOptions) > 0:
		return failed(fmt.Sprintf("Mount options are not supported by the provisioner but StorageClass %q has mount options %v", v.class.Name, v.class.MountOptions))
	case inTree && v.directory == "":
		return failed(fmt.Sprintf("Failed to create provisioner: provisioning in volume plugin %q is disabled", name))
	case inTree && deref(v.claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock:
		s := v.notProvisioned(fmt.Sprintf("Failed to provision volume with StorageClass %q: %s does not support block volume provisioning", v.class.Name, name), true)
		s.provisioner = name
		return s
	case inTree:
		return step{provisioner: name, create: v.provisioned()}
	}
	return step{provisioner: name, events: []event{{v.claim, corev1.EventTypeNormal, "ExternalProvisioning", fmt.Sprintf("Waiting for a volume to be created either by the external provisioner '%s' "+
		"or manually by the system administrator. If volume creation is delayed, please verify that "+
		"the provisioner is running and correctly registered.", name)}}, last: true}
}

// isDefault says that claims without a class get this one.
func isDefault(c *storagev1.StorageClass) bool {
	return c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" ||
		c.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true"
}

// defaultOf is the name of the default class: the newest of several, then the
// first by name.
func defaultOf(all []*storagev1.StorageClass) string {
	all = slices.DeleteFunc(slices.Clone(all), func(c *storagev1.StorageClass) bool { return !isDefault(c) })
	if len(all) == 0 {
		return ""
	}
	return slices.MinFunc(all, func(a, b *storagev1.StorageClass) int {
		if n := b.CreationTimestamp.Compare(a.CreationTimestamp.Time); n != 0 {
			return n
		}
		return strings.Compare(a.Name, b.Name)
	}).Name
}
