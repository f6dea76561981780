package registry

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// positiveQuantity is an amount greater than nothing.
func positiveQuantity(q resource.Quantity, at *field.Path) field.ErrorList {
	if q.Sign() > 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(at, q.String(), "must be greater than zero")}
}

func validateAccessModes(f *faults, modes []corev1.PersistentVolumeAccessMode, at *field.Path) {
	alone, others := false, false
	for _, m := range modes {
		errs := oneOf(m, at, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod)
		f.add(errs)
		alone = alone || m == corev1.ReadWriteOncePod
		others = others || (len(errs) == 0 && m != corev1.ReadWriteOncePod)
	}
	if alone && others {
		f.forbidden(at, "may not use ReadWriteOncePod with other access modes")
	}
}

func validateClaimSpec(s *corev1.PersistentVolumeClaimSpec, at *field.Path) field.ErrorList {
	var f faults
	if len(s.AccessModes) == 0 {
		f.required(at.Child("accessModes"), "at least 1 access mode is required")
	}
	if s.Selector != nil {
		f.add(metavalidation.ValidateLabelSelector(s.Selector, metavalidation.LabelSelectorValidationOptions{}, at.Child("selector")))
	}
	validateAccessModes(&f, s.AccessModes, at.Child("accessModes"))
	storage := at.Child("resources").Key(string(corev1.ResourceStorage))
	if q, ok := s.Resources.Requests[corev1.ResourceStorage]; !ok {
		f.required(storage, "")
	} else {
		f.add(positiveQuantity(q, storage))
	}
	class := func(name *string, part string) {
		if deref(name, "") != "" {
			f.add(invalid(NameIsDNSSubdomain(*name, false), *name, at.Child(part)))
		}
	}
	class(s.StorageClassName, "storageClassName")
	if s.VolumeMode != nil {
		f.add(oneOf(*s.VolumeMode, at.Child("volumeMode"), corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem))
	}
	if d := s.DataSource; d != nil {
		f.add(validateDataSource(d.APIGroup, d.Kind, d.Name, at.Child("dataSource")))
	}
	if d := s.DataSourceRef; d != nil {
		p := at.Child("dataSourceRef")
		f.add(validateDataSource(d.APIGroup, d.Kind, d.Name, p))
		if n := deref(d.Namespace, ""); n != "" {
			f.add(invalid(NameIsDNSLabel(n, false), n, p.Child("namespace")))
			if s.DataSource != nil {
				f.invalid(at, at.Child("dataSource"), "may not be specified when dataSourceRef.namespace is specified")
			}
		} else if o := s.DataSource; o != nil && !(same(o.APIGroup, d.APIGroup) && o.Kind == d.Kind && o.Name == d.Name) {
			f.invalid(at, at.Child("dataSource"), "must match dataSourceRef")
		}
	}
	class(s.VolumeAttributesClassName, "volumeAttributesClassName")
	return f.list
}

func validateDataSource(group *string, kind, name string, at *field.Path) field.ErrorList {
	var f faults
	if name == "" {
		f.required(at.Child("name"), "")
	}
	if kind == "" {
		f.required(at.Child("kind"), "")
	}
	if g := deref(group, ""); g != "" {
		f.add(dnsSubdomain(g, at.Child("apiGroup")))
	} else if kind != "PersistentVolumeClaim" {
		f.invalid(at, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup")
	}
	return f.list
}

func validateClaim(_ context.Context, c, old *corev1.PersistentVolumeClaim) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	f.add(validateClaimSpec(&c.Spec, at))
	if old == nil {
		return f.list
	}
	const annotation = corev1.BetaStorageClassAnnotation
	now, was := c.Spec.DeepCopy(), old.Spec.DeepCopy()
	if was.VolumeName == "" {
		was.VolumeName = now.VolumeName
	}
	class, classAnnotated := old.Annotations[annotation]
	if classAnnotated && was.StorageClassName == nil && now.StorageClassName != nil && *now.StorageClassName == class {
		now.StorageClassName = nil // the annotation became the field
	} else {
		f.add(immutableAnnotation(c.Annotations[annotation], class, annotation))
		if now.StorageClassName != nil && was.StorageClassName == nil && !classAnnotated {
			now.StorageClassName = nil // a default class came later
		}
	}
	if c.Status.Phase == corev1.ClaimBound {
		if now.Resources.Requests != nil {
			now.Resources.Requests[corev1.ResourceStorage] = was.Resources.Requests[corev1.ResourceStorage]
		}
		now.VolumeAttributesClassName = was.VolumeAttributesClassName
	}
	if !same(now, was) {
		f.forbidden(at, fmt.Sprintf("spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n%v", Difference(*was, *now)))
	}
	size, before := c.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage]
	if have := old.Status.Capacity[corev1.ResourceStorage]; size.Cmp(before) < 0 && size.Cmp(have) <= 0 {
		f.forbidden(at.Child("resources", "requests", "storage"), "field can not be less than status.capacity")
	}
	f.add(unchanged(c.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode")))
	if v := c.Spec.VolumeAttributesClassName; !same(v, old.Spec.VolumeAttributesClassName) && old.Status.CurrentVolumeAttributesClassName != nil {
		p := at.Child("volumeAttributesClassName")
		if v == nil {
			f.forbidden(p, "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil")
		} else if *v == "" {
			f.forbidden(p, "update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil")
		}
	}
	return f.list
}

func immutableAnnotation(now, was, key string) field.ErrorList {
	if now == was {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "annotations").Key(key), now, "field is immutable")}
}

func validateClaimStatus(_ context.Context, c, _ *corev1.PersistentVolumeClaim) field.ErrorList {
	var f faults
	at := field.NewPath("status")
	for _, name := range sortedResources(c.Status.Capacity) {
		if q := c.Status.Capacity[name]; q.Value() < 0 {
			f.invalid(at.Child("capacity").Key(string(name)), q.Value(), "must be a valid resource quantity")
		}
	}
	known := func(name corev1.ResourceName, at *field.Path) bool {
		errs := invalid(utilvalidation.IsQualifiedName(string(name)), string(name), at)
		if len(errs) == 0 && isNative(name) && name != corev1.ResourceStorage {
			errs = append(errs, field.NotSupported(at, string(name), []corev1.ResourceName{corev1.ResourceStorage}))
		}
		f.add(errs)
		return len(errs) == 0
	}
	for name, state := range c.Status.AllocatedResourceStatuses {
		p := at.Child("allocatedResourceStatuses")
		known(name, p)
		if !slices.Contains(resizeStates, state) {
			f.list = append(f.list, field.NotSupported(p, corev1.ClaimResourceStatus(name), resizeStates)) // upstream shows the name
		}
	}
	for _, name := range sortedResources(c.Status.AllocatedResources) {
		p := at.Child("allocatedResources")
		if known(name, p) {
			f.add(quantity(corev1.ResourceStorage, c.Status.AllocatedResources[name], p.Key(string(name))))
		}
	}
	return f.list
}

// validateTemplateMeta: a template has labels and annotations and nothing else.
func validateTemplateMeta(m *metav1.ObjectMeta, at *field.Path) field.ErrorList {
	var f faults
	f.add(validation.ValidateAnnotations(m.Annotations, at.Child("annotations")))
	f.add(metavalidation.ValidateLabels(m.Labels, at.Child("labels")))
	for _, part := range []struct {
		name string
		set  bool
	}{
		{"name", m.Name != ""}, {"generateName", m.GenerateName != ""}, {"namespace", m.Namespace != ""},
		{"selfLink", m.SelfLink != ""}, {"generation", m.Generation != 0}, {"creationTimestamp", !m.CreationTimestamp.IsZero()},
		{"deletionTimestamp", m.DeletionTimestamp != nil}, {"deletionGracePeriodSeconds", m.DeletionGracePeriodSeconds != nil},
		{"managedFields", m.ManagedFields != nil},
		{"uID", m.UID != ""}, {"resourceVersion", m.ResourceVersion != ""}, {"ownerReferences", m.OwnerReferences != nil},
		{"finalizers", m.Finalizers != nil},
	} {
		if part.set {
			f.forbidden(at.Child(part.name), "cannot be set")
		}
	}
	return f.list
}

// resizeStates are how far a claim's resizing may be, in order.
var resizeStates = []corev1.ClaimResourceStatus{
	corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible,
	corev1.PersistentVolumeClaimNodeResizeInProgress, corev1.PersistentVolumeClaimNodeResizeInfeasible, corev1.PersistentVolumeClaimNodeResizePending,
}
