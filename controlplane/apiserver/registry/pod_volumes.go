package registry

import (
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const badFileMode = "must be a number between 0 and 0777 (octal), both inclusive"

// checkVolumes checks all volumes and remembers the good ones for the mounts.
func (c *podCheck) checkVolumes(at *field.Path) {
	c.volumes = make(map[string]*corev1.VolumeSource, len(c.spec.Volumes))
	var made map[string]bool // claims that ephemeral volumes will make
	if c.meta != nil && c.meta.Name != "" {
		for i := range c.spec.Volumes {
			if c.spec.Volumes[i].Ephemeral != nil {
				if made == nil {
					made = map[string]bool{}
				}
				made[c.meta.Name+"-"+c.spec.Volumes[i].Name] = true
			}
		}
	}
	for i := range c.spec.Volumes {
		v, p := &c.spec.Volumes[i], at.Index(i)
		before := len(c.list)
		c.checkVolumeSource(v, p)
		c.label(v.Name, p, "name")
		if c.volumes[v.Name] != nil {
			c.duplicate(p.Child("name"), v.Name)
		}
		if len(c.list) == before {
			c.volumes[v.Name] = &v.VolumeSource
		}
		if claim := v.PersistentVolumeClaim; claim != nil && made[claim.ClaimName] {
			c.invalid(p.Child("persistentVolumeClaim", "claimName"), claim.ClaimName,
				"must not reference a PVC that gets created for an ephemeral volume")
		}
	}
}

func (c *podCheck) checkVolumeSource(v *corev1.Volume, at *field.Path) {
	found := false
	for i := range volumeSources {
		switch s := &volumeSources[i]; {
		case !s.is(v):
		case found:
			name := s.name
			if s.surplus != "" {
				name = s.surplus
			}
			c.forbidden(at.Child(name), "may not specify more than 1 volume type")
		default:
			found = true
			s.check(c, v, at.Child(s.name))
		}
	}
	if !found {
		c.required(at, "must specify a volume type")
	}
}

func (c *podCheck) fileMode(mode *int32, at *field.Path, name string) {
	if mode != nil && (*mode > 0o777 || *mode < 0) {
		c.invalid(at.Child(name), *mode, badFileMode)
	}
}

// checkKeys checks the items of a volume at.
func (c *podCheck) checkKeys(items []corev1.KeyToPath, at *field.Path) {
	for i, k := range items {
		p := at.Child("items").Index(i)
		c.need(k.Key, p, "key")
		c.need(k.Path, p, "path")
		c.add(localPath(k.Path, p, "path"))
		c.fileMode(k.Mode, p, "mode")
	}
}

func (c *podCheck) checkDownwardFile(f *corev1.DownwardAPIVolumeFile, at *field.Path) {
	c.need(f.Path, at, "path")
	c.add(localPath(f.Path, at, "path"))
	switch {
	case f.FieldRef != nil:
		c.checkFieldRef(f.FieldRef, at.Child("fieldRef"), "metadata.annotations", "metadata.labels",
			"metadata.name", "metadata.namespace", "metadata.uid")
		if f.ResourceFieldRef != nil {
			c.invalid(at, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
		}
	case f.ResourceFieldRef != nil:
		c.checkResourceRef(f.ResourceFieldRef, at.Child("resourceFieldRef"), true)
	default:
		c.required(at, "one of fieldRef and resourceFieldRef is required")
	}
	c.fileMode(f.Mode, at, "mode")
}

// checkProjections checks the parts of a projected volume, which must not
// write the same file.
func (c *podCheck) checkProjections(sources []corev1.VolumeProjection, at *field.Path) {
	files := map[string]bool{}
	once := func(file, path string) {
		if file == "" {
			return
		}
		if files[file] {
			c.invalid(at, path, "conflicting duplicate paths")
		}
		files[file] = true
	}
	all := at.Child("sources")
	for i := range sources {
		s, p := &sources[i], all.Index(i)
		n := 0
		if s.Secret != nil {
			n++
			c.need(s.Secret.Name, p.Child("secret"), "name")
			c.checkKeys(s.Secret.Items, p.Child("secret"))
			for _, k := range s.Secret.Items {
				once(k.Path, s.Secret.Name)
			}
		}
		if s.ConfigMap != nil {
			n++
			c.need(s.ConfigMap.Name, p.Child("configMap"), "name")
			c.checkKeys(s.ConfigMap.Items, p.Child("configMap"))
			for _, k := range s.ConfigMap.Items {
				once(k.Path, s.ConfigMap.Name)
			}
		}
		if s.DownwardAPI != nil {
			n++
			for j := range s.DownwardAPI.Items {
				c.checkDownwardFile(&s.DownwardAPI.Items[j], p.Child("downwardAPI"))
				once(s.DownwardAPI.Items[j].Path, s.DownwardAPI.Items[j].Path)
			}
		}
		if t := s.ServiceAccountToken; t != nil {
			n++
			seconds := deref(t.ExpirationSeconds, 3600)
			if seconds < minTokenSeconds {
				c.invalid(p.Child("serviceAccountToken", "expirationSeconds"), seconds, "may not specify a duration less than 10 minutes")
			}
			if seconds > maxTokenSeconds {
				c.invalid(p.Child("serviceAccountToken", "expirationSeconds"), seconds, "may not specify a duration larger than 2^32 seconds")
			}
			if t.Path == "" {
				c.required(at.Child("path"), "")
			} else {
				c.add(localPath(t.Path, at, "path"))
			}
		}
		if b := s.ClusterTrustBundle; b != nil {
			n++
			c.checkTrustBundle(b, p.Child("clusterTrustBundle"))
			once(b.Path, b.Path)
		}
		if s.PodCertificate != nil {
			n++
			c.checkPodCertificate(s.PodCertificate, p.Child("podCertificate"), once)
		}
		if n > 1 {
			c.forbidden(p, "may not specify more than 1 volume type per source")
		}
	}
}

func (c *podCheck) checkCSIVolume(v *corev1.CSIVolumeSource, at *field.Path) {
	c.add(csiDriverName(v.Driver, at.Child("driver")))
	if ref := v.NodePublishSecretRef; ref != nil {
		if ref.Name == "" {
			c.required(at.Child("nodePublishSecretRef", "name"), "")
		} else {
			c.add(invalid(NameIsDNSSubdomain(ref.Name, false), ref.Name, at.Child("name")))
		}
	}
}

func (c *podCheck) checkEphemeralVolume(v *corev1.Volume, at *field.Path) {
	t := v.Ephemeral.VolumeClaimTemplate
	if t == nil {
		c.required(at.Child("volumeClaimTemplate"), "")
		return
	}
	p := at.Child("volumeClaimTemplate")
	c.add(validateTemplateMeta(&t.ObjectMeta, p.Child("metadata")))
	c.add(validateClaimSpec(&t.Spec, p.Child("spec")))
	if c.meta != nil && c.meta.Name != "" && v.Name != "" {
		name := c.meta.Name + "-" + v.Name
		for _, msg := range NameIsDNSSubdomain(name, false) {
			c.invalid(at.Child("name"), v.Name, fmt.Sprintf("PVC name %q: %v", name, msg))
		}
	}
}

func (c *podCheck) checkMounts(ctr *corev1.Container, at *field.Path) {
	if len(ctr.VolumeMounts) == 0 {
		return
	}
	at = at.Child("volumeMounts")
	paths, devices := map[string]bool{}, map[string]string{}
	for _, d := range ctr.VolumeDevices {
		devices[d.Name] = d.DevicePath
	}
	for i, m := range ctr.VolumeMounts {
		p := at.Index(i)
		c.need(m.Name, p, "name")
		if c.volumes[m.Name] == nil {
			c.notFound(p.Child("name"), m.Name)
		}
		c.need(m.MountPath, p, "mountPath")
		if paths[m.MountPath] {
			c.invalid(p.Child("mountPath"), m.MountPath, "must be unique")
		}
		paths[m.MountPath] = true
		if _, ok := devices[m.Name]; ok {
			c.invalid(p.Child("name"), m.Name, "must not already exist in volumeDevices")
		}
		if hasValue(devices, m.MountPath) {
			c.invalid(p.Child("mountPath"), m.MountPath, "must not already exist as a path in volumeDevices")
		}
		if m.SubPath != "" {
			c.add(descendingPath(m.SubPath, at.Child("subPath")))
		}
		if m.SubPathExpr != "" {
			if m.SubPath != "" {
				c.invalid(p.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive")
			}
			c.add(descendingPath(m.SubPathExpr, at.Child("subPathExpr")))
		}
		if mp := m.MountPropagation; mp != nil {
			q := at.Child("mountPropagation")
			c.add(oneOf(*mp, q, corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer, corev1.MountPropagationNone))
			if *mp == corev1.MountPropagationBidirectional && !(ctr.SecurityContext != nil && deref(ctr.SecurityContext.Privileged, false)) {
				c.forbidden(q, "Bidirectional mount propagation is available only to privileged containers")
			}
		}
		c.checkRecursiveReadOnly(&m, at)
	}
}

func (c *podCheck) checkRecursiveReadOnly(m *corev1.VolumeMount, at *field.Path) {
	if m.RecursiveReadOnly == nil || *m.RecursiveReadOnly == corev1.RecursiveReadOnlyDisabled {
		return
	}
	at = at.Child("recursiveReadOnly")
	switch *m.RecursiveReadOnly {
	case corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible:
		if !m.ReadOnly {
			c.forbidden(at, "may only be specified when readOnly is true")
		}
		if deref(m.MountPropagation, corev1.MountPropagationNone) != corev1.MountPropagationNone {
			c.forbidden(at, "may only be specified when mountPropagation is None or not specified")
		}
	default:
		c.add(oneOf(*m.RecursiveReadOnly, at, corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyIfPossible, corev1.RecursiveReadOnlyEnabled))
	}
}

func (c *podCheck) checkDevices(ctr *corev1.Container, at *field.Path) {
	if len(ctr.VolumeDevices) == 0 {
		return
	}
	at = at.Child("volumeDevices")
	names, paths, mounts := map[string]bool{}, map[string]bool{}, map[string]string{}
	for _, m := range ctr.VolumeMounts {
		mounts[m.Name] = m.MountPath
	}
	for i, d := range ctr.VolumeDevices {
		p := at.Index(i)
		c.need(d.Name, p, "name")
		if names[d.Name] {
			c.invalid(p.Child("name"), d.Name, "must be unique")
		}
		switch v := c.volumes[d.Name]; {
		case v == nil:
			c.notFound(p.Child("name"), d.Name)
		case v.PersistentVolumeClaim == nil && v.Ephemeral == nil:
			c.invalid(p.Child("name"), d.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode")
		}
		c.need(d.DevicePath, p, "devicePath")
		if paths[d.DevicePath] {
			c.invalid(p.Child("devicePath"), d.DevicePath, "must be unique")
		}
		if hasBackstep(d.DevicePath) {
			c.invalid(p.Child("devicePath"), d.DevicePath, "can not contain backsteps ('..')")
		} else {
			paths[d.DevicePath] = true
		}
		if _, ok := mounts[d.Name]; ok {
			c.invalid(p.Child("name"), d.Name, "must not already exist in volumeMounts")
		}
		if hasValue(mounts, d.DevicePath) {
			c.invalid(p.Child("devicePath"), d.DevicePath, "must not already exist as a path in volumeMounts")
		}
		if d.Name != "" {
			names[d.Name] = true
		}
	}
}

func hasValue(m map[string]string, value string) bool {
	for _, v := range m {
		if v == value {
			return true
		}
	}
	return false
}

func noBacksteps(file string, at *field.Path) (errs field.ErrorList) {
	if hasBackstep(file) {
		errs = append(errs, field.Invalid(at, file, "must not contain '..'"))
	}
	return errs
}

func hasBackstep(file string) bool {
	for part := range strings.SplitSeq(file, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

// descendingPath is a path that stays below where it starts.
func descendingPath(file string, at *field.Path) (errs field.ErrorList) {
	if path.IsAbs(file) {
		errs = append(errs, field.Invalid(at, file, "must be a relative path"))
	}
	return append(errs, noBacksteps(file, at)...)
}

// localPath is a descending path that leaves names in ".." to the kubelet. It is
// the field of at that is called name.
func localPath(file string, at *field.Path, name string) field.ErrorList {
	if !path.IsAbs(file) && !strings.Contains(file, "..") {
		return nil
	}
	at = at.Child(name)
	errs := descendingPath(file, at)
	if strings.HasPrefix(file, "..") && !strings.HasPrefix(file, "../") {
		errs = append(errs, field.Invalid(at, file, "must not start with '..'"))
	}
	return errs
}
