package registry

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateResourceSlice(s, old *resourcev1.ResourceSlice) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	p := &s.Spec
	f.add(csiDriverName(p.Driver, at.Child("driver")))
	pool := at.Child("pool")
	f.add(poolName(p.Pool.Name, pool.Child("name")))
	if p.Pool.ResourceSliceCount <= 0 {
		f.invalid(pool.Child("resourceSliceCount"), p.Pool.ResourceSliceCount, "must be greater than zero")
	}
	if p.Pool.Generation < 0 {
		f.invalid(pool.Child("generation"), p.Pool.Generation, "must be greater than or equal to zero")
	}
	before := map[string]*resourcev1.Device{}
	if old != nil {
		f.add(unchanged(p.Pool.Name, old.Spec.Pool.Name, pool.Child("name")))
		f.add(unchanged(p.Driver, old.Spec.Driver, at.Child("driver")))
		f.add(unchanged(p.NodeName, old.Spec.NodeName, at.Child("nodeName")))
		for i := range old.Spec.Devices {
			before[old.Spec.Devices[i].Name] = &old.Spec.Devices[i]
		}
	}
	perDevice := deref(p.PerDeviceNodeSelection, false)
	set := f.nodesOf(p.NodeName, p.NodeSelector, p.AllNodes, "must be either unset or set to a non-empty string", at)
	if n := p.NodeSelector; n != nil && len(n.NodeSelectorTerms) != 1 {
		f.invalid(at.Child("nodeSelector", "nodeSelectorTerms"), n.NodeSelectorTerms, "must have exactly one node selector term")
	}
	if perDevice {
		set = append(set, "`perDeviceNodeSelection`")
	} else if p.PerDeviceNodeSelection != nil {
		f.invalid(at.Child("perDeviceNodeSelection"), false, "must be either unset or set to true")
	}
	const oneNeeded = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
	if len(set) == 0 {
		f.required(at, oneNeeded)
	} else if len(set) > 1 {
		f.invalid(at, braced(set), oneNeeded+", but multiple fields are set")
	}
	if p.SharedCounters != nil && p.Devices != nil {
		f.invalid(at, "", "only one of `sharedCounters` or `devices` is allowed")
	}
	most := resourcev1.ResourceSliceMaxDevices
	for i := range p.Devices {
		if d := &p.Devices[i]; len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 {
			most = resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
		}
	}
	f.add(setOf(p.Devices, most, at.Child("devices"), func(d *resourcev1.Device) string { return d.Name },
		func(d *resourcev1.Device, at *field.Path) field.ErrorList {
			return validateDevice(d, before[d.Name], perDevice, at)
		}))
	f.add(setOf(p.SharedCounters, resourcev1.ResourceSliceMaxCounterSets, at.Child("sharedCounters"), func(c *resourcev1.CounterSet) string { return c.Name },
		func(c *resourcev1.CounterSet, at *field.Path) field.ErrorList {
			return validateCounters(c.Name, c.Counters, resourcev1.ResourceSliceMaxCountersPerCounterSet, "name", at)
		}))
	return f.list
}

func braced(set []string) string { return "{" + strings.Join(set, ", ") + "}" }

// nodesOf checks the ways to say on which nodes devices are, and names those
// that are used.
func (f *faults) nodesOf(name *string, selector *corev1.NodeSelector, all *bool, unnamed string, at *field.Path) (set []string) {
	if name != nil {
		if *name == "" {
			f.invalid(at.Child("nodeName"), "", unnamed)
		} else {
			set = append(set, "`nodeName`")
			f.add(invalid(NameIsDNSSubdomain(*name, false), *name, at.Child("nodeName")))
		}
	}
	if selector != nil {
		set = append(set, "`nodeSelector`")
		f.add(validateNodeSelector(selector, at.Child("nodeSelector")))
	}
	if all != nil {
		if *all {
			set = append(set, "`allNodes`")
		} else {
			f.invalid(at.Child("allNodes"), false, "must be either unset or set to true")
		}
	}
	return set
}

func validateCounters(set string, counters map[string]resourcev1.Counter, most int, name string, at *field.Path) field.ErrorList {
	var f faults
	if set == "" {
		f.required(at.Child(name), "")
	} else {
		f.add(dnsLabel(set, at.Child(name)))
	}
	p := at.Child("counters")
	switch {
	case len(counters) == 0:
		f.required(p, "")
	case len(counters) > most:
		f.list = append(f.list, field.TooMany(p, len(counters), most))
	default:
		for _, key := range sortedKeys(counters) {
			f.add(dnsLabel(key, p))
		}
	}
	return f.list
}

// longestAttribute is how much of an attribute's name is shown.
const longestAttribute = resourcev1.DeviceMaxDomainLength + 1 + resourcev1.DeviceMaxIDLength

func validateDevice(d, old *resourcev1.Device, perDevice bool, at *field.Path) field.ErrorList {
	var f faults
	f.add(dnsLabel(d.Name, at.Child("name")))
	if n, most := len(d.Attributes)+len(d.Capacity), resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice; n > most {
		f.invalid(at, n, fmt.Sprintf("the total number of attributes and capacities must not exceed %d", most))
	}
	if n, most := attributeValues(d), resourcev1.ResourceSliceMaxAttributeValuesPerDevice; n > most {
		f.invalid(at, n, fmt.Sprintf("the total number of attribute values must not exceed %d", most))
	}
	p := at.Child("attributes")
	for _, name := range sortedKeysOf(d.Attributes) {
		f.add(deviceQualifiedName(name, p))
		f.add(validateAttribute(d.Attributes[resourcev1.QualifiedName(name)], p.Key(inMiddle(name, longestAttribute))))
	}
	p = at.Child("capacity")
	for _, name := range sortedKeysOf(d.Capacity) {
		f.add(deviceQualifiedName(name, p))
		c, q := d.Capacity[resourcev1.QualifiedName(name)], p.Key(inMiddle(name, longestAttribute)).Child("requestPolicy")
		if c.RequestPolicy == nil {
			continue
		}
		if deref(d.AllowMultipleAllocations, false) {
			f.add(validateRequestPolicy(&c, q))
		} else {
			f.forbidden(q, "allowMultipleAllocations must be true")
		}
	}
	if old == nil || !same(d.Taints, old.Taints) {
		f.add(eachOf(d.Taints, resourcev1.DeviceTaintsMaxLength, at.Child("taints"), validateDeviceTaint))
	}
	f.add(setOf(d.ConsumesCounters, resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice, at.Child("consumesCounters"),
		func(c *resourcev1.DeviceCounterConsumption) string { return c.CounterSet },
		func(c *resourcev1.DeviceCounterConsumption, at *field.Path) field.ErrorList {
			return validateCounters(c.CounterSet, c.Counters, resourcev1.ResourceSliceMaxCountersPerDeviceCounterConsumption, "counterSet", at)
		}))
	if perDevice {
		const oneNeeded = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
		set := f.nodesOf(d.NodeName, d.NodeSelector, d.AllNodes, "must not be empty", at)
		if len(set) == 0 {
			f.required(at, oneNeeded)
		} else if len(set) > 1 {
			f.invalid(at, braced(set), oneNeeded)
		}
	} else if d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil {
		f.invalid(at, nil, "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec")
	}
	f.add(validateBindingConditions(d.BindingConditions, d.BindingFailureConditions, at))
	return f.list
}

func sortedKeysOf[V any](m map[resourcev1.QualifiedName]V) []string {
	plain := make(map[string]bool, len(m))
	for k := range m {
		plain[string(k)] = true
	}
	return sortedKeys(plain)
}

func attributeValues(d *resourcev1.Device) (n int) {
	for _, a := range d.Attributes {
		n += max(1, len(a.BoolValues)+len(a.IntValues)+len(a.StringValues)+len(a.VersionValues))
	}
	return n
}

// semver is a version of semver.org 2.0.0.
var semver = sync.OnceValue(func() *regexp.Regexp {
	const number, pre, build = `(0|[1-9]\d*)`, `(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)`, `[0-9a-zA-Z-]+`
	return regexp.MustCompile(`^` + number + `\.` + number + `\.` + number +
		`(-` + pre + `(\.` + pre + `)*)?(\+` + build + `(\.` + build + `)*)?$`)
})

func validateAttribute(a resourcev1.DeviceAttribute, at *field.Path) field.ErrorList {
	var f faults
	short := func(s string, at *field.Path) {
		if len(s) > resourcev1.DeviceAttributeMaxValueLength {
			f.list = append(f.list, field.TooLong(at, "", resourcev1.DeviceAttributeMaxValueLength))
		}
	}
	version := func(s string, at *field.Path) {
		if !semver().MatchString(s) {
			f.invalid(at, s, "must be a string compatible with semver.org spec 2.0.0")
		}
		short(s, at)
	}
	if a.StringValue != nil {
		short(*a.StringValue, at.Child("string"))
	}
	if a.VersionValue != nil {
		version(*a.VersionValue, at.Child("version"))
	}
	for i, s := range a.StringValues {
		short(s, at.Child("strings").Index(i))
	}
	for i, s := range a.VersionValues {
		version(s, at.Child("versions").Index(i))
	}
	n := 0
	for _, set := range []bool{a.BoolValue != nil, a.IntValue != nil, a.StringValue != nil, a.VersionValue != nil,
		a.BoolValues != nil, a.IntValues != nil, a.StringValues != nil, a.VersionValues != nil} {
		if set {
			n++
		}
	}
	if n == 0 {
		f.invalid(at, "", "exactly one value must be specified")
	} else if n > 1 {
		f.invalid(at, a, "exactly one value must be specified")
	}
	return f.list
}

func validateRequestPolicy(c *resourcev1.DeviceCapacity, at *field.Path) field.ErrorList {
	var f faults
	p := c.RequestPolicy
	switch {
	case len(p.ValidValues) > 0 && p.ValidRange != nil:
		f.forbidden(at, `exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time`)
	case len(p.ValidValues) > 0 && p.Default == nil:
		f.required(at.Child("default"), "required when validValues is defined")
	case len(p.ValidValues) > 0:
		f.add(validateCapacityValues(p, &c.Value, at.Child("validValues")))
	case p.ValidRange != nil && p.Default == nil:
		f.required(at.Child("default"), "required when validRange is defined")
	case p.ValidRange != nil:
		f.add(validateCapacityRange(p, &c.Value, at.Child("validRange")))
	}
	return f.list
}

func validateCapacityValues(p *resourcev1.CapacityRequestPolicy, whole *resource.Quantity, at *field.Path) field.ErrorList {
	var f faults
	values := p.ValidValues
	for i := range len(values) - 1 {
		if values[i].Cmp(values[i+1]) > 0 {
			f.invalid(at.Index(i+1), values[i+1].String(), "values must be sorted in ascending order")
		}
	}
	found := false
	f.add(setOf(values, mostCapacityValues, at,
		func(q *resource.Quantity) string { return strconv.FormatInt(q.Value(), 10) },
		func(q *resource.Quantity, at *field.Path) field.ErrorList {
			found = found || q.Cmp(*p.Default) == 0
			if q.Cmp(*whole) > 0 {
				return field.ErrorList{field.Invalid(at, q.String(), "option is larger than capacity value: "+whole.String())}
			}
			return nil
		}))
	if !found {
		f.invalid(at, p.Default.String(), "default value is not valid according to the requestPolicy")
	}
	return f.list
}

func validateCapacityRange(p *resourcev1.CapacityRequestPolicy, whole *resource.Quantity, at *field.Path) field.ErrorList {
	var f faults
	r := p.ValidRange
	low := at.Child("min")
	if r.Min == nil {
		return field.ErrorList{field.Required(low, "required when validRange is defined")}
	}
	if r.Min.Cmp(*whole) > 0 {
		f.invalid(low, r.Min.String(), "min is larger than capacity value: "+whole.String())
	}
	if p.Default.Cmp(*r.Min) < 0 {
		f.invalid(low, p.Default.String(), "default is less than min: "+r.Min.String())
	}
	if high := at.Child("max"); r.Max != nil {
		if r.Min.Cmp(*r.Max) > 0 {
			f.invalid(high, r.Min.String(), "min is larger than max: "+r.Max.String())
		}
		if r.Max.Cmp(*whole) > 0 {
			f.invalid(high, r.Max.String(), "max is larger than capacity value: "+whole.String())
		}
		if p.Default.Cmp(*r.Max) > 0 {
			f.invalid(high, p.Default.String(), "default is more than max: "+r.Max.String())
		}
	}
	if r.Step == nil {
		return f.list
	}
	step := at.Child("step")
	first := r.Min.DeepCopy()
	first.Add(*r.Step)
	if first.Cmp(*whole) > 0 {
		f.invalid(step, r.Step.String(), fmt.Sprintf("one step %s is larger than capacity value: %s", first.String(), whole.String()))
	}
	for _, q := range []*resource.Quantity{p.Default, r.Max} {
		// upstream divides by a step of zero; nothing is a multiple of that
		if n := r.Step.Value(); q != nil && (n == 0 || (q.Value()-r.Min.Value())%n != 0) {
			f.invalid(step, q.String(), fmt.Sprintf("value is not a multiple of a given step (%s) from (%s)", r.Step.String(), r.Min.String()))
		}
	}
	return f.list
}

const mostCapacityValues = 10
