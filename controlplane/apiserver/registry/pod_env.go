package registry

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *podCheck) checkEnv(vars []corev1.EnvVar, at *field.Path) {
	for i := range vars {
		p := at.Index(i)
		if vars[i].Name == "" {
			c.required(p.Child("name"), "")
		} else if msgs := utilvalidation.IsRelaxedEnvVarName(vars[i].Name); len(msgs) > 0 {
			c.add(invalid(msgs, vars[i].Name, p.Child("name")))
		}
		if vars[i].ValueFrom != nil {
			c.checkValueFrom(&vars[i], p.Child("valueFrom"))
		}
	}
}

func (c *podCheck) checkValueFrom(v *corev1.EnvVar, at *field.Path) {
	n := 0
	from := v.ValueFrom
	if from.FieldRef != nil {
		n++
		c.checkFieldRef(from.FieldRef, at.Child("fieldRef"), "metadata.name", "metadata.namespace", "metadata.uid",
			"spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs")
	}
	if from.ResourceFieldRef != nil {
		n++
		c.checkResourceRef(from.ResourceFieldRef, at.Child("resourceFieldRef"), false)
	}
	keyRef := func(name, key, part string) {
		n++
		p := at.Child(part)
		if msgs := NameIsDNSSubdomain(name, false); len(msgs) > 0 {
			c.add(invalid(msgs, name, p.Child("name")))
		}
		if key == "" {
			c.required(p.Child("key"), "")
		} else {
			c.add(validateDataKey(key, p.Child("key")))
		}
	}
	if r := from.ConfigMapKeyRef; r != nil {
		keyRef(r.Name, r.Key, "configMapKeyRef")
	}
	if r := from.SecretKeyRef; r != nil {
		keyRef(r.Name, r.Key, "secretKeyRef")
	}
	if r := from.FileKeyRef; r != nil {
		n++
		c.checkFileKey(r, at.Child("fileKeyRef"))
	}
	switch {
	case n == 0:
		c.invalid(at, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`")
	case v.Value != "":
		c.invalid(at, "", "may not be specified when `value` is not empty")
	case n > 1:
		c.invalid(at, "", "may not have more than one field specified at a time")
	}
}

func (c *podCheck) checkFileKey(r *corev1.FileKeySelector, at *field.Path) {
	if r.Key == "" {
		c.required(at.Child("key"), "")
	} else {
		c.add(invalid(utilvalidation.IsRelaxedEnvVarName(r.Key), r.Key, at.Child("key")))
	}
	if r.VolumeName == "" {
		c.required(at.Child("volumeName"), "")
	} else {
		c.add(dnsLabel(r.VolumeName, at.Child("volumeName")))
	}
	if r.Path == "" {
		c.required(at.Child("path"), "")
	} else {
		c.add(noBacksteps(r.Path, at.Child("path")))
	}
}

// checkFileKeyVolumes: a variable from a file reads it from an emptyDir.
func (c *podCheck) checkFileKeyVolumes() {
	c.eachContainer(func(ctr *corev1.Container, at place) {
		for i, v := range ctr.Env {
			if v.ValueFrom == nil || v.ValueFrom.FileKeyRef == nil {
				continue
			}
			name := v.ValueFrom.FileKeyRef.VolumeName
			p := at.path().Child("env").Index(i).Child("valueFrom", "fileKeyRef", "volumeName")
			k := slices.IndexFunc(c.spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
			switch {
			case k < 0:
				c.notFound(p, name)
			case c.spec.Volumes[k].EmptyDir == nil:
				c.invalid(p, name, "referenced volume must be of type emptyDir")
			}
		}
	})
}

func (c *podCheck) checkEnvFrom(sources []corev1.EnvFromSource, at *field.Path) {
	for i, s := range sources {
		p := at.Index(i)
		if s.Prefix != "" {
			c.add(invalid(utilvalidation.IsRelaxedEnvVarName(s.Prefix), s.Prefix, p.Child("prefix")))
		}
		n := 0
		ref := func(name, part string) {
			n++
			if name == "" {
				c.required(p.Child(part, "name"), "")
			} else {
				c.add(invalid(NameIsDNSSubdomain(name, true), name, p.Child(part, "name")))
			}
		}
		if s.ConfigMapRef != nil {
			ref(s.ConfigMapRef.Name, "configMapRef")
		}
		if s.SecretRef != nil {
			ref(s.SecretRef.Name, "secretRef")
		}
		if n == 0 {
			c.invalid(at, "", "must specify one of: `configMapRef` or `secretRef`")
		} else if n > 1 {
			c.invalid(at, "", "may not have more than one field specified at a time")
		}
	}
}

// fieldPaths are all a fieldRef may know; each place allows some of them.
var fieldPaths = []string{"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid",
	"spec.nodeName", "spec.restartPolicy", "spec.serviceAccountName", "spec.schedulerName",
	"status.phase", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"}

func (c *podCheck) checkFieldRef(r *corev1.ObjectFieldSelector, at *field.Path, allowed ...string) {
	if r.APIVersion == "" {
		c.required(at.Child("apiVersion"), "")
		return
	}
	if r.FieldPath == "" {
		c.required(at.Child("fieldPath"), "")
		return
	}
	path, subscript, subscripted := splitSubscript(r.FieldPath)
	known := slices.Contains(fieldPaths, path) || path == "spec.host"
	if subscripted {
		known = path == "metadata.annotations" || path == "metadata.labels"
	}
	switch {
	case r.APIVersion != "v1":
		c.invalid(at.Child("fieldPath"), r.FieldPath, fmt.Sprintf("error converting fieldPath: unsupported pod version: %s", r.APIVersion))
	case !known && !subscripted:
		c.invalid(at.Child("fieldPath"), r.FieldPath, fmt.Sprintf("error converting fieldPath: field label not supported: %s", r.FieldPath))
	case !known:
		c.invalid(at.Child("fieldPath"), r.FieldPath, fmt.Sprintf("error converting fieldPath: field label does not support subscript: %s", r.FieldPath))
	case path == "metadata.annotations" && subscripted:
		c.add(qualifiedName(strings.ToLower(subscript), at))
	case path == "metadata.labels" && subscripted:
		c.add(qualifiedName(subscript, at))
	case !slices.Contains(allowed, path) && path != "spec.host":
		c.add(oneOf(path, at.Child("fieldPath"), allowed...))
	}
}

// splitSubscript takes metadata.labels['key'] apart.
func splitSubscript(path string) (name, subscript string, ok bool) {
	inner, ok := strings.CutSuffix(path, "']")
	if !ok {
		return path, "", false
	}
	name, subscript, ok = strings.Cut(inner, "['")
	if !ok || name == "" {
		return path, "", false
	}
	return name, subscript, true
}

func (c *podCheck) checkResourceRef(r *corev1.ResourceFieldSelector, at *field.Path, volume bool) {
	allowed := []string{"limits.cpu", "limits.ephemeral-storage", "limits.memory",
		"requests.cpu", "requests.ephemeral-storage", "requests.memory"}
	huge := strings.HasPrefix(r.Resource, "requests.hugepages-") || strings.HasPrefix(r.Resource, "limits.hugepages-")
	switch {
	case volume && r.ContainerName == "":
		c.required(at.Child("containerName"), "")
	case r.Resource == "":
		c.required(at.Child("resource"), "")
	case !huge:
		c.add(oneOf(r.Resource, at.Child("resource"), allowed...))
	}
	c.checkDivisor(r.Resource, r.Divisor, at.Child("divisor"))
}

var byteDivisors = []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}

func (c *podCheck) checkDivisor(name string, divisor resource.Quantity, at *field.Path) {
	if divisor.IsZero() {
		return
	}
	_, what, _ := strings.Cut(name, ".")
	bytes := func(kind string) {
		if !slices.Contains(byteDivisors, divisor.String()) {
			c.invalid(at, name, "only divisor's values "+strings.Join(byteDivisors, ", ")+" are supported with the "+kind+" resource")
		}
	}
	switch {
	case what == "cpu":
		if d := divisor.String(); d != "1m" && d != "1" {
			c.invalid(at, name, "only divisor's values 1m and 1 are supported with the cpu resource")
		}
	case what == "memory":
		bytes("memory")
	case what == "ephemeral-storage":
		bytes("local ephemeral storage")
	case strings.HasPrefix(what, "hugepages-"):
		bytes("hugepages")
	}
}
