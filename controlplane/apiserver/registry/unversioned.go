package registry

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Difference shows how b differs from a in the words that users know from
// upstream, which compares its unversioned types.
func Difference(a, b any) string { return diff.Diff(unversioned{a}, unversioned{b}) }

// Unversioned has faults show values as upstream does, whose rules look at its
// unversioned types.
func Unversioned(errs field.ErrorList) field.ErrorList {
	for _, e := range errs {
		t := reflect.TypeOf(e.BadValue)
		for t != nil && (t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice) {
			t = t.Elem()
		}
		if t != nil && t.Kind() == reflect.Struct && hasVersion(t) {
			e.BadValue = unversioned{e.BadValue}
		}
	}
	return errs
}

// unversioned is shown with every field, set or not, under its name in Go.
type unversioned struct{ v any }

func (u unversioned) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	err := writeUnversioned(&out, reflect.ValueOf(u.v))
	return out.Bytes(), err
}

func writeUnversioned(out *bytes.Buffer, v reflect.Value) error {
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return writeUnversioned(out, v.Elem())
	case v.Kind() == reflect.Slice && !v.IsNil() && v.Type().Elem().Kind() != reflect.Uint8:
		out.WriteByte('[')
		for i := range v.Len() {
			if i > 0 {
				out.WriteByte(',')
			}
			if err := writeUnversioned(out, v.Index(i)); err != nil {
				return err
			}
		}
		out.WriteByte(']')
		return nil
	case v.Kind() != reflect.Struct || !hasVersion(v.Type()):
		text, err := json.Marshal(v.Interface())
		out.Write(text)
		return err
	}
	out.WriteByte('{')
	if err := writeFields(out, v); err != nil {
		return err
	}
	out.WriteByte('}')
	return nil
}

// hasVersion is not true of what versions share: metadata, selectors, quantities.
func hasVersion(t reflect.Type) bool {
	return strings.HasPrefix(t.PkgPath(), "k8s.io/api/") || t == reflect.TypeFor[podSecurity]()
}

func writeFields(out *bytes.Buffer, v reflect.Value) error {
	pod, isPod := v.Interface().(corev1.PodSpec)
	for _, f := range unversionedFields(v.Type()) {
		value := v.FieldByIndex(f.Index)
		if isPod && f.Name == "SecurityContext" {
			value = reflect.ValueOf(securityOf(&pod))
		}
		separate(out)
		switch {
		case !f.Anonymous:
			out.WriteString(`"` + f.Name + `":`)
			if err := writeUnversioned(out, value); err != nil {
				return err
			}
		case hasVersion(f.Type):
			if err := writeFields(out, value); err != nil {
				return err
			}
		default: // metadata
			text, err := json.Marshal(value.Interface())
			if err != nil {
				return err
			}
			out.Write(text[1 : len(text)-1])
		}
	}
	return nil
}

// separate writes what belongs between two fields, if the last one wrote anything.
func separate(out *bytes.Buffer) {
	if b := out.Bytes(); b[len(b)-1] != '{' && b[len(b)-1] != ',' {
		out.WriteByte(',')
	}
}

// elsewhere are the fields that upstream's unversioned types have after
// another than the versioned ones, or not at all.
var elsewhere = map[string]string{
	"PodSpec.DeprecatedServiceAccount":       "",
	"PodSpec.HostNetwork":                    "",
	"PodSpec.HostPID":                        "",
	"PodSpec.HostIPC":                        "",
	"PodSpec.ShareProcessNamespace":          "",
	"PodSpec.HostUsers":                      "",
	"PodSpec.SetHostnameAsFQDN":              "Subdomain",
	"PodSpec.PreemptionPolicy":               "Priority",
	"PodSpec.Overhead":                       "RuntimeClassName",
	"PodSecurityContext.FSGroupChangePolicy": "FSGroup",
	"VolumeSource.Quobyte":                   "RBD",
	"PersistentVolumeSource.Quobyte":         "RBD",
	"PersistentVolumeSource.FlexVolume":      "ISCSI",
}

// unversionedFields are a type's fields in upstream's order.
func unversionedFields(t reflect.Type) []reflect.StructField {
	var fields, moved []reflect.StructField
	for i := range t.NumField() {
		f := t.Field(i)
		if after, is := elsewhere[t.Name()+"."+f.Name]; !is {
			fields = append(fields, f)
		} else if after != "" {
			moved = append(moved, f)
		}
	}
	for _, f := range moved {
		i := slices.IndexFunc(fields, func(o reflect.StructField) bool { return o.Name == elsewhere[t.Name()+"."+f.Name] })
		fields = slices.Insert(fields, i+1, f)
	}
	return fields
}

// podSecurity is what a pod's security context has in upstream's unversioned type.
type podSecurity struct {
	HostNetwork, HostPID, HostIPC    bool
	ShareProcessNamespace, HostUsers *bool
	corev1.PodSecurityContext
}

func securityOf(s *corev1.PodSpec) podSecurity {
	p := podSecurity{s.HostNetwork, s.HostPID, s.HostIPC, s.ShareProcessNamespace, s.HostUsers, corev1.PodSecurityContext{}}
	if s.SecurityContext != nil {
		p.PodSecurityContext = *s.SecurityContext
	}
	return p
}
