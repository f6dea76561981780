package registry

import (
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
)

// NameIsDNSSubdomain is the name rule of most kinds (RFC 1123 subdomain).
func NameIsDNSSubdomain(name string, prefix bool) []string {
	return validation.NameIsDNSSubdomain(name, prefix)
}

// NameIsDNSLabel is the name rule of Namespaces and Services' like (RFC 1123 label).
func NameIsDNSLabel(name string, prefix bool) []string {
	return validation.NameIsDNSLabel(name, prefix)
}

// NameIsPathSegment is the name rule of RBAC kinds.
func NameIsPathSegment(name string, prefix bool) []string {
	if prefix {
		return path.IsValidPathSegmentPrefix(name)
	}
	return path.IsValidPathSegmentName(name)
}
