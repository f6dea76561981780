package registry

import (
	"context"
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validatePersistentVolume(_ context.Context, v, old *corev1.PersistentVolume) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	f.add(validateVolumeSpec(&v.Spec, false, at))
	if old == nil {
		return f.list
	}
	now, was := v.Spec.PersistentVolumeSource.DeepCopy(), &old.Spec.PersistentVolumeSource
	if now.CSI != nil && was.CSI != nil && was.CSI.ControllerExpandSecretRef == nil {
		now.CSI.ControllerExpandSecretRef = nil // may be added
	}
	if !same(now, was) {
		f.forbidden(at.Child("persistentvolumesource"),
			fmt.Sprintf("spec.persistentvolumesource is immutable after creation\n%v", Difference(*was, *now)))
	}
	f.add(unchanged(v.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode")))
	if old.Spec.NodeAffinity != nil {
		f.add(unchanged(v.Spec.NodeAffinity, old.Spec.NodeAffinity, field.NewPath("nodeAffinity")))
	}
	if old.Spec.VolumeAttributesClassName != nil && v.Spec.VolumeAttributesClassName == nil {
		f.forbidden(at.Child("volumeAttributesClassName"), "update from non-nil value to nil is forbidden")
	}
	return f.list
}

// validateVolumeSpec checks a volume, or one written into an attachment.
func validateVolumeSpec(s *corev1.PersistentVolumeSpec, inline bool, at *field.Path) field.ErrorList {
	var f faults
	const context = "in the context of inline volumes"
	refuse := func(set bool, part string) {
		if set && inline {
			f.forbidden(at.Child(part), "may not be specified "+context)
		}
	}
	refuse(s.ClaimRef != nil, "claimRef")
	refuse(len(s.Capacity) > 0, "capacity")
	refuse(s.NodeAffinity != nil, "nodeAffinity")
	refuse(s.StorageClassName != "", "storageClassName")
	if inline && s.CSI == nil {
		f.required(at.Child("csi"), "has to be specified "+context)
	}
	if len(s.AccessModes) == 0 {
		f.required(at.Child("accessModes"), "")
	}
	validateAccessModes(&f, s.AccessModes, at.Child("accessModes"))
	if !inline {
		p := at.Child("capacity")
		if len(s.Capacity) == 0 {
			f.required(p, "")
		}
		if _, ok := s.Capacity[corev1.ResourceStorage]; !ok || len(s.Capacity) > 1 {
			f.list = append(f.list, field.NotSupported(p, s.Capacity, []corev1.ResourceName{corev1.ResourceStorage}))
		}
		for _, name := range sortedResources(s.Capacity) {
			q := s.Capacity[name]
			if q.Value() < 0 {
				f.invalid(p.Key(string(name)), q.Value(), "must be a valid resource quantity")
			}
			f.add(positiveQuantity(q, p.Key(string(name))))
		}
	}
	reclaim := at.Child("persistentVolumeReclaimPolicy")
	switch p := s.PersistentVolumeReclaimPolicy; {
	case p == "":
	case inline && p != corev1.PersistentVolumeReclaimRetain:
		f.forbidden(reclaim, "may only be Retain "+context)
	case !inline:
		f.add(oneOf(p, reclaim, corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain))
	}
	if a := s.NodeAffinity; a != nil && !inline {
		if a.Required == nil {
			f.required(at.Child("nodeAffinity", "required"), "must specify required node constraints")
		} else {
			f.add(validateNodeSelector(a.Required, at.Child("nodeAffinity", "required")))
		}
	}
	f.add(validatePersistentSource(&s.PersistentVolumeSource, s.NodeAffinity != nil, at))
	if s.HostPath != nil && path.Clean(s.HostPath.Path) == "/" && s.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		f.forbidden(reclaim, "may not be 'recycle' for a hostPath mount of '/'")
	}
	if s.StorageClassName != "" && !inline {
		f.add(invalid(NameIsDNSSubdomain(s.StorageClassName, false), s.StorageClassName, at.Child("storageClassName")))
	}
	if m := s.VolumeMode; m != nil {
		if !inline {
			f.add(oneOf(*m, at.Child("volumeMode"), corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem))
		} else if *m != corev1.PersistentVolumeFilesystem {
			f.forbidden(at.Child("volumeMode"), "may not specify volumeMode other than Filesystem "+context)
		}
	}
	if c := s.VolumeAttributesClassName; c != nil {
		if *c == "" {
			f.required(at.Child("volumeAttributesClassName"), "an empty string is disallowed")
		} else {
			f.add(invalid(NameIsDNSSubdomain(*c, false), *c, at.Child("volumeAttributesClassName")))
		}
		if s.CSI == nil {
			f.required(at.Child("csi"), "has to be specified when using volumeAttributesClassName")
		}
	}
	return f.list
}

func validatePersistentSource(s *corev1.PersistentVolumeSource, placed bool, at *field.Path) field.ErrorList {
	var f faults
	n := 0
	one := func(set bool, name string, check func(at *field.Path) field.ErrorList) {
		switch {
		case !set:
		case n > 0:
			f.forbidden(at.Child(name), "may not specify more than 1 volume type")
		default:
			n++
			f.add(check(at.Child(name)))
		}
	}
	one(s.HostPath != nil, "hostPath", func(at *field.Path) field.ErrorList { return validateHostPath(s.HostPath, at) })
	one(s.NFS != nil, "nfs", func(at *field.Path) field.ErrorList { return validateNFS(s.NFS, at) })
	one(s.Local != nil, "local", func(at *field.Path) field.ErrorList {
		var f faults
		if s.Local.Path == "" {
			f.required(at.Child("path"), "")
		} else {
			f.add(noBacksteps(s.Local.Path, at.Child("path")))
		}
		if !placed {
			f.required(field.NewPath("spec", "nodeAffinity"), "Local volume requires node affinity")
		}
		return f.list
	})
	one(s.CSI != nil, "csi", func(at *field.Path) field.ErrorList { return validateCSISource(s.CSI, at) })
	one(s.GCEPersistentDisk != nil, "gcePersistentDisk", func(at *field.Path) field.ErrorList {
		return validatePartitioned("pdName", s.GCEPersistentDisk.PDName, s.GCEPersistentDisk.Partition, at)
	})
	one(s.AWSElasticBlockStore != nil, "awsElasticBlockStore", func(at *field.Path) field.ErrorList {
		return validatePartitioned("volumeID", s.AWSElasticBlockStore.VolumeID, s.AWSElasticBlockStore.Partition, at)
	})
	one(s.ISCSI != nil, "iscsi", func(at *field.Path) field.ErrorList {
		i := s.ISCSI
		return validateISCSI(i.TargetPortal, i.IQN, i.Lun, (i.DiscoveryCHAPAuth || i.SessionCHAPAuth) && i.SecretRef == nil, i.InitiatorName, at)
	})
	one(s.RBD != nil, "rbd", func(at *field.Path) field.ErrorList {
		return append(someMonitors(s.RBD.CephMonitors, at), needed(at, []string{"image"}, s.RBD.RBDImage)...)
	})
	one(s.CephFS != nil, "cephFS", func(at *field.Path) field.ErrorList { return someMonitors(s.CephFS.Monitors, at) })
	one(s.Cinder != nil, "cinder", func(at *field.Path) field.ErrorList { return needed(at, []string{"volumeID"}, s.Cinder.VolumeID) })
	one(s.FC != nil, "fc", func(at *field.Path) field.ErrorList { return validateFC(s.FC, at) })
	if s.FlexVolume != nil { // beside another type too
		n++
		f.add(validateFlex(s.FlexVolume.Driver, s.FlexVolume.Options, at.Child("flexVolume")))
	}
	one(s.AzureFile != nil, "azureFile", func(at *field.Path) field.ErrorList {
		return needed(at, []string{"secretName", "shareName"}, s.AzureFile.SecretName, s.AzureFile.ShareName)
	})
	one(s.AzureDisk != nil, "azureDisk", func(at *field.Path) field.ErrorList { return validateAzureDisk(s.AzureDisk, at) })
	one(s.Glusterfs != nil, "glusterfs", func(at *field.Path) field.ErrorList {
		return needed(at, []string{"endpoints", "path"}, s.Glusterfs.EndpointsName, s.Glusterfs.Path)
	})
	one(s.VsphereVolume != nil, "vsphereVolume", func(at *field.Path) field.ErrorList {
		return needed(at, []string{"volumePath"}, s.VsphereVolume.VolumePath)
	})
	one(s.PortworxVolume != nil, "portworxVolume", func(at *field.Path) field.ErrorList {
		return needed(at, []string{"volumeID"}, s.PortworxVolume.VolumeID)
	})
	one(s.ScaleIO != nil, "scaleIO", func(at *field.Path) field.ErrorList {
		return needed(at, []string{"gateway", "system", "volumeName"}, s.ScaleIO.Gateway, s.ScaleIO.System, s.ScaleIO.VolumeName)
	})
	one(s.Flocker != nil, "flocker", func(at *field.Path) field.ErrorList { return validateFlocker(s.Flocker, at) })
	one(s.Quobyte != nil, "quobyte", func(at *field.Path) field.ErrorList { return validateQuobyte(s.Quobyte, at) })
	one(s.PhotonPersistentDisk != nil, "photonPersistentDisk", func(at *field.Path) field.ErrorList {
		return needed(at, []string{"pdID"}, s.PhotonPersistentDisk.PdID)
	})
	one(s.StorageOS != nil, "storageos", func(at *field.Path) field.ErrorList {
		errs := validateStorageOS(s.StorageOS.VolumeName, s.StorageOS.VolumeNamespace, at)
		if ref := s.StorageOS.SecretRef; ref != nil {
			errs = append(errs, needed(at.Child("secretRef"), []string{"name", "namespace"}, ref.Name, ref.Namespace)...)
		}
		return errs
	})
	if n == 0 {
		f.required(at, "must specify a volume type")
	}
	return f.list
}

func validateCSISource(s *corev1.CSIPersistentVolumeSource, at *field.Path) field.ErrorList {
	errs := csiDriverName(s.Driver, at.Child("driver"))
	errs = append(errs, needed(at, []string{"volumeHandle"}, s.VolumeHandle)...)
	for _, r := range []struct {
		name string
		ref  *corev1.SecretReference
	}{
		{"controllerPublishSecretRef", s.ControllerPublishSecretRef}, {"controllerExpandSecretRef", s.ControllerExpandSecretRef},
		{"nodePublishSecretRef", s.NodePublishSecretRef}, {"nodeExpandSecretRef", s.NodeExpandSecretRef},
	} {
		if r.ref == nil {
			continue
		}
		p := at.Child(r.name)
		if r.ref.Name == "" {
			errs = append(errs, field.Required(p.Child("name"), ""))
		} else {
			errs = append(errs, invalid(NameIsDNSSubdomain(r.ref.Name, false), r.ref.Name, p.Child("name"))...)
		}
		if r.ref.Namespace == "" {
			errs = append(errs, field.Required(p.Child("namespace"), ""))
		} else {
			errs = append(errs, invalid(NameIsDNSLabel(r.ref.Namespace, false), r.ref.Namespace, p.Child("namespace"))...)
		}
	}
	return errs
}
