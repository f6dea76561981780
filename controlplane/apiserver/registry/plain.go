package registry

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The library judges names by regular expressions, at 0.5 to 2 µs each, and a pod
// has a dozen. What is plain is right by each of its rules; only the rest goes
// there, for its words.

const (
	maxNamePart   = 63
	maxNamePrefix = 253
)

func lower(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

func alphanumeric(c byte) bool { return lower(c) || 'A' <= c && c <= 'Z' }

// plainLabel says that s is surely a DNS label of RFC 1123.
func plainLabel(s string) bool {
	return 0 < len(s) && len(s) <= maxNamePart && plainPart(s)
}

// plainSubdomain says that s is surely a DNS subdomain of RFC 1123.
func plainSubdomain(s string) bool {
	if len(s) > maxNamePrefix {
		return false
	}
	for {
		part, rest, more := strings.Cut(s, ".")
		if part == "" || !plainPart(part) {
			return false
		}
		if !more {
			return true
		}
		s = rest
	}
}

func plainPart(s string) bool {
	for i := range len(s) {
		if c := s[i]; !lower(c) && c != '-' {
			return false
		}
	}
	return s[0] != '-' && s[len(s)-1] != '-'
}

// plainKey says that s is surely the key of a label.
func plainKey(s string) bool {
	if prefix, name, ok := strings.Cut(s, "/"); ok {
		if !plainSubdomain(prefix) {
			return false
		}
		s = name
	}
	return s != "" && plainValue(s)
}

// plainValue says that s is surely the value of a label.
func plainValue(s string) bool {
	if s == "" {
		return true
	}
	if len(s) > maxNamePart || !alphanumeric(s[0]) || !alphanumeric(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !alphanumeric(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

func plainLabels(all map[string]string) bool {
	for k, v := range all {
		if !plainKey(k) || !plainValue(v) {
			return false
		}
	}
	return true
}

func plainAnnotations(all map[string]string) bool {
	size := 0
	for k, v := range all {
		if size += len(k) + len(v); size > validation.TotalAnnotationSizeLimitB || !plainKey(k) {
			return false
		}
	}
	return true
}

// remainingMetadata is metadata without the labels and annotations that are plain: what
// is left for the library to judge.
type remainingMetadata struct{ metav1.Object }

func (s remainingMetadata) GetLabels() map[string]string {
	if all := s.Object.GetLabels(); !plainLabels(all) {
		return all
	}
	return nil
}

func (s remainingMetadata) GetAnnotations() map[string]string {
	if all := s.Object.GetAnnotations(); !plainAnnotations(all) {
		return all
	}
	return nil
}

func validateNewMetadata(obj metav1.Object, namespaced bool, rule validation.ValidateNameFunc) field.ErrorList {
	return validation.ValidateObjectMetaAccessor(remainingMetadata{obj}, namespaced, rule, metadata)
}

func validateMetadataUpdate(obj, old metav1.Object) field.ErrorList {
	if sameIdentity(obj, old) && plainLabels(obj.GetLabels()) && plainAnnotations(obj.GetAnnotations()) {
		return append(validation.ValidateOwnerReferences(obj.GetOwnerReferences(), owners),
			v1validation.ValidateManagedFields(obj.GetManagedFields(), managedFields)...)
	}
	return validation.ValidateObjectMetaAccessorUpdate(remainingMetadata{obj}, remainingMetadata{old}, metadata)
}

// sameIdentity says that obj has surely all of old that an update must keep.
func sameIdentity(obj, old metav1.Object) bool {
	made, was := obj.GetCreationTimestamp(), old.GetCreationTimestamp()
	return obj.GetName() == old.GetName() && obj.GetNamespace() == old.GetNamespace() && obj.GetUID() == old.GetUID() &&
		made.Equal(&was) && obj.GetResourceVersion() != "" && obj.GetGeneration() >= old.GetGeneration() &&
		obj.GetDeletionTimestamp() == nil && old.GetDeletionTimestamp() == nil &&
		obj.GetDeletionGracePeriodSeconds() == nil && old.GetDeletionGracePeriodSeconds() == nil
}
