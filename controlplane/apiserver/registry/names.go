package registry

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// NameIsDNSSubdomain is the name rule of most kinds (RFC 1123 subdomain).
func NameIsDNSSubdomain(name string, prefix bool) []string {
	if plainSubdomain(name) {
		return nil
	}
	return validation.NameIsDNSSubdomain(name, prefix)
}

// nameIsLong is the same rule where upstream has begun to count bytes.
func nameIsLong(name string, _ bool) []string { return content.IsDNS1123Subdomain(name) }

// NameIsDNSLabel is the name rule of Namespaces and Services' like (RFC 1123 label).
func NameIsDNSLabel(name string, prefix bool) []string {
	if plainLabel(name) {
		return nil
	}
	return validation.NameIsDNSLabel(name, prefix)
}

// NameIsPathSegment is the name rule of RBAC kinds.
func NameIsPathSegment(name string, prefix bool) []string {
	if prefix {
		return path.IsValidPathSegmentPrefix(name)
	}
	return path.IsValidPathSegmentName(name)
}

// standardFinalizer demands a domain in the name of a finalizer that is none of
// Kubernetes' own.
func standardFinalizer(name string, at *field.Path) field.ErrorList {
	standard := []string{string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents}
	if strings.Contains(name, "/") || slices.Contains(standard, name) {
		return nil
	}
	return field.ErrorList{field.Invalid(at, name, "name is neither a standard finalizer name nor is it fully qualified")}
}
