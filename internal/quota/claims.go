package quota

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/storage/volume"
)

const (
	countClaims corev1.ResourceName = "count/persistentvolumeclaims"
	// ofClass stands between a storage class and what is limited of it.
	ofClass = ".storageclass.storage.k8s.io/"
)

var claims = Measure{
	Counts: func(n corev1.ResourceName) bool {
		if n == countClaims {
			return true
		}
		if _, of, ok := strings.Cut(string(n), ofClass); ok {
			n = corev1.ResourceName(of)
		}
		return n == corev1.ResourcePersistentVolumeClaims || n == corev1.ResourceRequestsStorage
	},
	Use:     claimUse,
	Selects: claimScope,
}

func claimUse(obj runtime.Object, _ time.Time) corev1.ResourceList {
	claim := obj.(*corev1.PersistentVolumeClaim)
	use := corev1.ResourceList{countClaims: count(1), corev1.ResourcePersistentVolumeClaims: count(1)}
	if size, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]; ok {
		// A volume that could not shrink back is as large as it was made.
		if made, ok := claim.Status.AllocatedResources[corev1.ResourceStorage]; ok && made.Cmp(size) > 0 {
			size = made
		}
		size = size.DeepCopy()
		size.RoundUp(0)
		use[corev1.ResourceRequestsStorage] = size
	}
	class := volume.GetPersistentVolumeClaimClass(claim)
	if class == "" {
		return use
	}
	for _, n := range []corev1.ResourceName{corev1.ResourcePersistentVolumeClaims, corev1.ResourceRequestsStorage} {
		if q, ok := use[n]; ok {
			use[corev1.ResourceName(class+ofClass)+n] = q
		}
	}
	return use
}

func claimScope(s corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error) {
	if s.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass {
		return false, nil
	}
	return selects(s, attributeClasses(obj.(*corev1.PersistentVolumeClaim))...)
}

// attributeClasses are the classes that a claim has, wants or is getting.
func attributeClasses(claim *corev1.PersistentVolumeClaim) (names []string) {
	add := func(name string) {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if n := claim.Spec.VolumeAttributesClassName; n != nil {
		add(*n)
	}
	if n := claim.Status.CurrentVolumeAttributesClassName; n != nil {
		add(*n)
	}
	if m := claim.Status.ModifyVolumeStatus; m != nil {
		add(m.TargetVolumeAttributesClassName)
	}
	slices.Sort(names)
	return names
}

// ClaimChanged reports whether a claim's status changes what is charged.
func ClaimChanged(claim, old *corev1.PersistentVolumeClaim) bool {
	now, was := claim.Status.AllocatedResources[corev1.ResourceStorage], old.Status.AllocatedResources[corev1.ResourceStorage]
	return now.Cmp(was) != 0 || !slices.Equal(attributeClasses(claim), attributeClasses(old))
}
