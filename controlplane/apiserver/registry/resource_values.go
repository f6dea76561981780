package registry

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// eachOf checks the items of a list, unless it is too long: then it says only
// that.
func eachOf[V any](list []V, most int, at *field.Path, check func(item *V, at *field.Path) field.ErrorList) field.ErrorList {
	if most >= 0 && len(list) > most {
		return field.ErrorList{field.TooMany(at, len(list), most)}
	}
	var errs field.ErrorList
	for i := range list {
		errs = append(errs, check(&list[i], at.Index(i))...)
	}
	return errs
}

// setOf is eachOf for lists without duplicates.
func setOf[V any, K comparable](list []V, most int, at *field.Path, key func(*V) K, check func(item *V, at *field.Path) field.ErrorList) field.ErrorList {
	errs := eachOf(list, most, at, check)
	if most >= 0 && len(list) > most {
		return errs
	}
	seen := map[K]bool{}
	for i := range list {
		k := key(&list[i])
		if seen[k] {
			errs = append(errs, field.Duplicate(at.Index(i), k))
		}
		seen[k] = true
	}
	return errs
}

func itself[V any](v *V) V { return *v }

func poolName(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	var f faults
	if len(name) > resourcev1.PoolNameMaxLength {
		f.list = append(f.list, field.TooLong(at, "", resourcev1.PoolNameMaxLength))
	}
	for part := range strings.SplitSeq(name, "/") {
		f.add(dnsSubdomain(part, at))
	}
	return f.list
}

func uidFormat(uid string, at *field.Path) field.ErrorList {
	if err := uuid.Validate(uid); err != nil {
		return field.ErrorList{field.Invalid(at, uid, fmt.Sprintf("error validating uid: %v", err))}
	}
	if len(uid) != 36 || uid != strings.ToLower(uid) {
		return field.ErrorList{field.Invalid(at, uid, "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters")}
	}
	return nil
}

func cIdentifier(id string, at *field.Path) field.ErrorList {
	var f faults
	if len(id) > resourcev1.DeviceMaxIDLength {
		f.list = append(f.list, field.TooLong(at, "", resourcev1.DeviceMaxIDLength))
	}
	f.add(invalid(content.IsCIdentifier(id), id, at))
	return f.list
}

// deviceQualifiedName is the name of an attribute or capacity, perhaps with a
// domain. Upstream lets two slashes pass.
func deviceQualifiedName(name string, at *field.Path) field.ErrorList {
	var f faults
	parts := strings.Split(name, "/")
	switch len(parts) {
	case 1:
		f.add(cIdentifier(name, at))
	case 2:
		if parts[0] == "" {
			f.invalid(at, "", "the domain must not be empty")
		} else {
			f.add(csiDriverName(parts[0], at))
		}
		if parts[1] == "" {
			f.invalid(at, "", "the name must not be empty")
		} else {
			f.add(cIdentifier(parts[1], at))
		}
	}
	return f.list
}

func deviceFullName(name string, at *field.Path) field.ErrorList {
	errs := deviceQualifiedName(name, at)
	if !strings.Contains(name, "/") {
		errs = append(errs, field.Invalid(at, name, "a fully qualified name must be a domain and a name separated by a slash"))
	}
	return errs
}

// rawObject demands a JSON object of at most so many bytes.
func rawObject(raw runtime.RawExtension, most int, at *field.Path) field.ErrorList {
	if len(raw.Raw) == 0 {
		return field.ErrorList{field.Required(at, "")}
	}
	if len(raw.Raw) > most {
		return field.ErrorList{field.TooLong(at, "", most)}
	}
	var v any
	if err := json.Unmarshal(raw.Raw, &v); err != nil {
		return field.ErrorList{field.Invalid(at, "<value omitted>", fmt.Sprintf("error parsing data as JSON: %v", err))}
	}
	if v == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	if _, ok := v.(map[string]any); !ok {
		return field.ErrorList{field.Invalid(at, "<value omitted>", "must be a valid JSON object")}
	}
	return nil
}

// inMiddle shortens s to most bytes by leaving out its middle.
func inMiddle(s string, most int) string {
	if len(s) <= most {
		return s
	}
	rest := most - len("...")
	return s[:(rest+1)/2] + "..." + s[len(s)-rest/2:]
}

var deviceTaintEffects = []resourcev1.DeviceTaintEffect{resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNone}

func validateDeviceTaint(t *resourcev1.DeviceTaint, at *field.Path) field.ErrorList {
	var f faults
	f.add(metavalidation.ValidateLabelName(t.Key, at.Child("key")))
	if t.Value != "" {
		f.add(invalid(utilvalidation.IsValidLabelValue(t.Value), t.Value, at.Child("value")))
	}
	if t.Effect == "" {
		f.required(at.Child("effect"), "")
	} else {
		among(&f, t.Effect, at.Child("effect"), deviceTaintEffects...)
	}
	return f.list
}

func validateDeviceToleration(t *resourcev1.DeviceToleration, at *field.Path) field.ErrorList {
	var f faults
	if t.Key != "" {
		f.add(metavalidation.ValidateLabelName(t.Key, at.Child("key")))
	}
	switch t.Operator {
	case resourcev1.DeviceTolerationOpExists:
		if t.Value != "" {
			f.invalid(at.Child("value"), t.Value, "must be empty for operator `Exists`")
		}
	case resourcev1.DeviceTolerationOpEqual:
		f.add(invalid(utilvalidation.IsValidLabelValue(t.Value), t.Value, at.Child("value")))
	default:
		f.add(oneOfNeeded(t.Operator, at.Child("operator"), resourcev1.DeviceTolerationOpEqual, resourcev1.DeviceTolerationOpExists))
	}
	if t.Effect != "" {
		among(&f, t.Effect, at.Child("effect"), deviceTaintEffects...)
	}
	return f.list
}

// validateBindingConditions checks the conditions that a device waits for.
func validateBindingConditions(conditions, failures []string, at *field.Path) field.ErrorList {
	var f faults
	wanted, failed := at.Child("bindingConditions"), at.Child("bindingFailureConditions")
	label := func(s *string, at *field.Path) field.ErrorList { return metavalidation.ValidateLabelName(*s, at) }
	f.add(eachOf(conditions, resourcev1.BindingConditionsMaxSize, wanted, label))
	f.add(eachOf(failures, resourcev1.BindingFailureConditionsMaxSize, failed, label))
	seen, seenFailed := map[string]bool{}, map[string]bool{}
	for i, c := range conditions {
		if seen[c] {
			f.duplicate(wanted.Index(i), c)
		}
		seen[c] = true
	}
	for i, c := range failures {
		if seenFailed[c] {
			f.duplicate(failed.Index(i), c)
		}
		seenFailed[c] = true
		if seen[c] {
			f.invalid(failed.Index(i), c, "bindingFailureConditions must not overlap with bindingConditions")
		}
	}
	if len(conditions) == 0 && len(failures) > 0 {
		f.invalid(wanted, conditions, "bindingConditions are required to use bindingFailureConditions")
	}
	if len(failures) == 0 && len(conditions) > 0 {
		f.invalid(failed, failures, "bindingFailureConditions are required to use bindingConditions")
	}
	return f.list
}
