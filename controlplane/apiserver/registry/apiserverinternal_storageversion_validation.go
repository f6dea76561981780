package registry

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// storageVersionName: a StorageVersion is named after the group and the resource.
func storageVersionName(name string, _ bool) (msgs []string) {
	dot := strings.LastIndex(name, ".")
	if dot < 0 {
		return []string{"name must be in the form of <group>.<resource>"}
	}
	msgs = prefixed("the group segment ", utilvalidation.IsDNS1123Subdomain(name[:dot]))
	return append(msgs, prefixed("the resource segment ", utilvalidation.IsDNS1035Label(name[dot+1:]))...)
}

func prefixed(prefix string, msgs []string) (all []string) {
	for _, m := range msgs {
		all = append(all, prefix+m)
	}
	return all
}

func validateStorageVersionStatus(_ context.Context, v, _ storageVersion) field.ErrorList {
	var f faults
	at := field.NewPath("status")
	seen := map[string]bool{}
	for i, e := range v.Status.StorageVersions {
		p := at.Child("storageVersions").Index(i)
		if seen[e.APIServerID] {
			f.duplicate(p.Child("apiServerID"), e.APIServerID)
		}
		seen[e.APIServerID] = true
		f.add(validateServerStorageVersion(e, p))
	}
	f.add(validateCommonVersion(v.Status, at.Child("commonEncodingVersion")))
	f.add(validateStorageVersionConditions(v.Status.Conditions, at))
	return f.list
}

func validateServerStorageVersion(e apiserverinternalv1alpha1.ServerStorageVersion, at *field.Path) field.ErrorList {
	var f faults
	f.add(invalid(NameIsDNSSubdomain(e.APIServerID, false), e.APIServerID, at.Child("apiServerID")))
	version := func(v string, at *field.Path) {
		if msgs := apiVersionFaults(v); len(msgs) > 0 {
			f.invalid(at, v, strings.Join(msgs, ","))
		}
	}
	version(e.EncodingVersion, at.Child("encodingVersion"))
	decodable := at.Child("decodableVersions")
	for i, v := range e.DecodableVersions {
		version(v, decodable.Index(i))
	}
	if !slices.Contains(e.DecodableVersions, e.EncodingVersion) {
		f.invalid(decodable, e.DecodableVersions, "decodableVersions must include encodingVersion "+e.EncodingVersion)
	}
	for i, v := range e.ServedVersions {
		p := at.Child("servedVersions").Index(i)
		version(v, p)
		if !slices.Contains(e.DecodableVersions, v) {
			f.invalid(p, v, fmt.Sprintf("individual served version : %s must be included in decodableVersions : %s", v, e.DecodableVersions))
		}
	}
	return f.list
}

// validateCommonVersion: the common version is that of all servers, if they agree.
func validateCommonVersion(s apiserverinternalv1alpha1.StorageVersionStatus, at *field.Path) field.ErrorList {
	var common *string
	for i := range s.StorageVersions {
		v := &s.StorageVersions[i].EncodingVersion
		if common != nil && *common != *v {
			common = nil
			break
		}
		common = v
	}
	var f faults
	switch given := s.CommonEncodingVersion; {
	case common == nil && given != nil:
		f.invalid(at, *given, "should be nil if servers do not agree on the same encoding version, or if there is no server reporting the supported versions yet")
	case common != nil && given == nil:
		f.invalid(at, given, "the common encoding version is "+*common)
	case common != nil && *common != *given:
		f.invalid(at, *given, "the actual common encoding version is "+*common)
	}
	return f.list
}

// validateStorageVersionConditions has upstream's paths, which leave conditions out.
func validateStorageVersionConditions(all []apiserverinternalv1alpha1.StorageVersionCondition, at *field.Path) field.ErrorList {
	var f faults
	seen := map[apiserverinternalv1alpha1.StorageVersionConditionType]int{}
	for i, c := range all {
		p := at.Index(i)
		if first, ok := seen[c.Type]; ok {
			f.invalid(p.Child("type"), string(c.Type), fmt.Sprintf("the type of the condition is not unique, it also appears in conditions[%d]", first))
		}
		seen[c.Type] = i
		f.add(invalid(utilvalidation.IsQualifiedName(string(c.Type)), string(c.Type), p.Child("type")))
		f.add(invalid(utilvalidation.IsQualifiedName(string(c.Status)), string(c.Status), p.Child("status")))
		f.need(c.Reason, p, "reason")
		f.need(c.Message, p, "message")
	}
	return f.list
}

// apiVersionFaults says what keeps a text from being the version of an API, with its
// group if it is in one.
func apiVersionFaults(v string) (msgs []string) {
	group, version, grouped := strings.Cut(v, "/")
	switch {
	case !grouped:
		version = v
	case strings.Contains(version, "/"):
		return []string{"an apiVersion is " + utilvalidation.RegexError(label1035Message, "[a-z]([-a-z0-9]*[a-z0-9])?", "my-name", "abc-123") +
			" with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyVersion')"}
	case group == "":
		msgs = append(msgs, "group part: "+utilvalidation.EmptyError())
	default:
		msgs = prefixed("group part: ", utilvalidation.IsDNS1123Subdomain(group))
	}
	if version == "" {
		return append(msgs, "version part: "+utilvalidation.EmptyError())
	}
	return append(msgs, prefixed("version part: ", utilvalidation.IsDNS1035Label(version))...)
}

const label1035Message = "a DNS-1035 label, which must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character"
