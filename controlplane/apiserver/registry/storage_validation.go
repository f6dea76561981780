package registry

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateStorageClass(_ context.Context, c, old *storagev1.StorageClass) field.ErrorList {
	var f faults
	if old != nil {
		f.add(unchanged(c.Parameters, old.Parameters, field.NewPath("parameters")))
		f.add(unchanged(c.Provisioner, old.Provisioner, field.NewPath("provisioner")))
		f.add(unchanged(c.ReclaimPolicy, old.ReclaimPolicy, field.NewPath("reclaimPolicy")))
		f.add(unchanged(c.VolumeBindingMode, old.VolumeBindingMode, field.NewPath("volumeBindingMode")))
	}
	if c.Provisioner == "" {
		f.required(field.NewPath("provisioner"), "")
	} else {
		f.add(qualifiedName(strings.ToLower(c.Provisioner), field.NewPath("provisioner")))
	}
	f.add(validateParameters(c.Parameters, field.NewPath("parameters")))
	if p := c.ReclaimPolicy; deref(p, "") != "" {
		f.add(oneOf(*p, field.NewPath("reclaimPolicy"), corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain))
	}
	if m := c.VolumeBindingMode; m == nil {
		f.required(field.NewPath("volumeBindingMode"), "")
	} else {
		f.add(oneOf(*m, field.NewPath("volumeBindingMode"), storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer))
	}
	f.add(validateTopologies(c.AllowedTopologies, field.NewPath("allowedTopologies")))
	return f.list
}

func validateParameters(params map[string]string, at *field.Path) field.ErrorList {
	const most, mostBytes = 512, 256 * 1024
	if len(params) > most {
		return field.ErrorList{field.TooLong(at, "", most)}
	}
	var f faults
	size := 0
	for _, k := range sortedKeys(params) {
		if k == "" {
			f.invalid(at, k, "field can not be empty.")
		}
		size += len(k) + len(params[k])
	}
	if size > mostBytes {
		f.list = append(f.list, field.TooLong(at, "", mostBytes))
	}
	return f.list
}

func validateTopologies(terms []corev1.TopologySelectorTerm, at *field.Path) field.ErrorList {
	var f faults
	var seen []map[string]map[string]bool
	for i, t := range terms {
		p := at.Index(i).Child("matchLabelExpressions")
		exprs := map[string]map[string]bool{}
		if len(t.MatchLabelExpressions) == 0 { // upstream takes nothing for a copy
			f.duplicate(p, "")
		}
		for j, e := range t.MatchLabelExpressions {
			q := p.Index(j)
			values := map[string]bool{}
			if len(e.Values) == 0 {
				f.required(q.Child("values"), "")
			}
			for k, v := range e.Values {
				if values[v] {
					f.duplicate(q.Child("values").Index(k), v)
				}
				values[v] = true
			}
			f.add(metavalidation.ValidateLabelName(e.Key, q.Child("key")))
			if _, ok := exprs[e.Key]; ok {
				f.duplicate(q.Child("key"), e.Key)
			}
			exprs[e.Key] = values
		}
		for _, other := range seen {
			if same(other, exprs) {
				f.duplicate(p, "")
			}
		}
		seen = append(seen, exprs)
	}
	return f.list
}

func validateCSINode(_ context.Context, n, old *storagev1.CSINode) field.ErrorList {
	var f faults
	at := field.NewPath("spec", "drivers")
	names := map[string]bool{}
	for i, d := range n.Spec.Drivers {
		p := at.Index(i)
		f.add(csiDriverName(d.Name, p.Child("name")))
		if d.NodeID == "" {
			f.required(p.Child("nodeID"), "")
		} else if len(d.NodeID) > 256 {
			f.invalid(p.Child("nodeID"), d.NodeID, fmt.Sprintf("must be %d characters or less", 256))
		}
		if d.Allocatable != nil {
			f.add(nonnegativeOpt(d.Allocatable.Count, p.Child("allocatable", "count")))
		}
		if names[d.Name] {
			f.duplicate(p.Child("name"), d.Name)
		}
		names[d.Name] = true
		keys := map[string]bool{}
		for _, k := range d.TopologyKeys {
			if k == "" {
				f.required(p, k)
			}
			if keys[k] {
				f.duplicate(p, k)
			}
			keys[k] = true
			f.add(qualifiedName(k, p))
		}
	}
	if old == nil {
		return f.list
	}
	for _, was := range old.Spec.Drivers {
		for _, now := range n.Spec.Drivers {
			if now.Name == was.Name {
				now.Allocatable, was.Allocatable = nil, nil
				f.add(unchanged(&now, &was, at))
			}
		}
	}
	return f.list
}

func validateCSIDriver(_ context.Context, d, old *storagev1.CSIDriver) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	s := &d.Spec
	if p := s.FSGroupPolicy; p != nil {
		f.add(oneOf(*p, at.Child("fsGroupPolicy"), storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy))
	}
	audiences := map[string]bool{}
	for i, t := range s.TokenRequests {
		p := at.Child("tokenRequests").Index(i)
		if audiences[t.Audience] {
			f.duplicate(p.Child("audience"), t.Audience)
			continue
		}
		audiences[t.Audience] = true
		if e := t.ExpirationSeconds; e != nil && *e < minTokenSeconds {
			f.invalid(p.Child("expirationSeconds"), *e, "may not specify a duration less than 10 minutes")
		} else if e != nil && *e > maxTokenSeconds {
			f.invalid(p.Child("expirationSeconds"), *e, "may not specify a duration larger than 2^32 seconds")
		}
	}
	for _, m := range s.VolumeLifecycleModes {
		among(&f, m, at.Child("volumeLifecycleModes"), storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral)
	}
	if p := s.NodeAllocatableUpdatePeriodSeconds; p != nil && *p < 10 {
		f.invalid(at.Child("nodeAllocatableUpdatePeriodSeconds"), *p, "must be greater than or equal to 10 seconds")
	}
	if s.ServiceAccountTokenInSecrets != nil && len(s.TokenRequests) == 0 {
		f.invalid(at.Child("serviceAccountTokenInSecrets"), s.ServiceAccountTokenInSecrets, "serviceAccountTokenInSecrets is set but no tokenRequests are specified")
	}
	if old != nil {
		f.add(unchanged(s.AttachRequired, old.Spec.AttachRequired, at.Child("attachedRequired")))
		f.add(unchanged(s.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes, at.Child("volumeLifecycleModes")))
	}
	return f.list
}

func validateVolumeAttachment(_ context.Context, a, old *storagev1.VolumeAttachment) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	f.add(csiDriverName(a.Spec.Attacher, at.Child("attacher")))
	source, p := &a.Spec.Source, at.Child("source")
	const one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
	switch {
	case source.InlineVolumeSpec == nil && source.PersistentVolumeName == nil:
		f.required(p, one)
	case source.InlineVolumeSpec != nil && source.PersistentVolumeName != nil:
		f.forbidden(p, one)
	case source.InlineVolumeSpec != nil:
		f.add(validateVolumeSpec(source.InlineVolumeSpec, true, p.Child("inlineVolumeSpec")))
	case *source.PersistentVolumeName == "":
		f.required(p.Child("persistentVolumeName"), "must specify non empty persistentVolumeName")
	}
	f.add(invalid(NameIsDNSSubdomain(a.Spec.NodeName, false), a.Spec.NodeName, at.Child("nodeName")))
	size := 0
	for k, v := range a.Status.AttachmentMetadata {
		size += len(k) + len(v)
	}
	if most := 256 * 1024; size > most {
		f.list = append(f.list, field.TooLong(field.NewPath("status", "attachmentMetadata"), "", most))
	}
	for name, e := range map[string]*storagev1.VolumeError{"attachError": a.Status.AttachError, "detachError": a.Status.DetachError} {
		if e != nil && len(e.Message) > 1024 {
			f.list = append(f.list, field.TooLong(field.NewPath("status", name, "message"), "", 1024))
		}
		if e != nil && deref(e.ErrorCode, 0) < 0 {
			f.invalid(field.NewPath("status", name, "errorCode"), *e.ErrorCode, utilvalidation.InclusiveRangeError(0, 1<<31-1))
		}
	}
	if n := source.PersistentVolumeName; n != nil {
		f.add(invalid(NameIsDNSSubdomain(*n, false), *n, field.NewPath("spec.source.persistentVolumeName")))
	}
	if old != nil {
		f.add(unchanged(a.Spec, old.Spec, at))
	}
	return f.list
}
