package registry

import (
	"context"
	"fmt"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var resourceSlices = &Kind[*resourcev1.ResourceSlice]{
	GroupVersionKind: resourcev1.SchemeGroupVersion.WithKind("ResourceSlice"),
	Plural:           "resourceslices",
	Cluster:          true,

	Default: func(s *resourcev1.ResourceSlice) {
		for i := range s.Spec.Devices {
			for j := range s.Spec.Devices[i].Taints {
				if t := &s.Spec.Devices[i].Taints[j]; t.TimeAdded == nil {
					t.TimeAdded = new(metav1.NewTime(time.Now().Truncate(time.Second)))
				}
			}
		}
	},
	Prepare: func(_ context.Context, s, old *resourcev1.ResourceSlice) {
		dropAlphaDeviceFields(s, old)
		s.Generation = 1
		if old != nil {
			s.Generation = old.Generation
			if !same(s.Spec, old.Spec) {
				s.Generation++
			}
		}
	},
	Validate: func(_ context.Context, s, old *resourcev1.ResourceSlice) field.ErrorList {
		return validateResourceSlice(s, old)
	},
	Warn: func(_ context.Context, s, _ *resourcev1.ResourceSlice) []string {
		if s.Spec.Driver == strings.ToLower(s.Spec.Driver) {
			return nil
		}
		return []string{fmt.Sprintf("spec.driver: driver names should be lowercase; %q contains uppercase characters", s.Spec.Driver)}
	},
	Fields: func(s *resourcev1.ResourceSlice) fields.Set {
		return fields.Set{
			resourcev1.ResourceSliceSelectorNodeName: deref(s.Spec.NodeName, ""),
			resourcev1.ResourceSliceSelectorDriver:   s.Spec.Driver,
		}
	},
	Columns: []Column[*resourcev1.ResourceSlice]{
		nameColumn[*resourcev1.ResourceSlice](),
		column("Node", "string", resourcev1.ResourceSliceSpec{}.SwaggerDoc()["nodeName"], 0,
			func(s *resourcev1.ResourceSlice) any { return deref(s.Spec.NodeName, "") }),
		column("Driver", "string", resourcev1.ResourceSliceSpec{}.SwaggerDoc()["driver"], 0,
			func(s *resourcev1.ResourceSlice) any { return s.Spec.Driver }),
		column("Pool", "string", resourcev1.ResourcePool{}.SwaggerDoc()["name"], 0,
			func(s *resourcev1.ResourceSlice) any { return s.Spec.Pool.Name }),
		ageColumn[*resourcev1.ResourceSlice](),
	},
}

// dropAlphaDeviceFields drops the fields that are off by default upstream: lists
// as attributes, and what a device takes from its node.
func dropAlphaDeviceFields(s, old *resourcev1.ResourceSlice) {
	lists, mappings := alphaDeviceFields(old)
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		if !mappings {
			d.NodeAllocatableResourceMappings = nil
		}
		for name, a := range d.Attributes {
			if !lists {
				a.BoolValues, a.IntValues, a.StringValues, a.VersionValues = nil, nil, nil, nil
				d.Attributes[name] = a
			}
		}
	}
}

func alphaDeviceFields(s *resourcev1.ResourceSlice) (lists, mappings bool) {
	if s == nil {
		return false, false
	}
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		mappings = mappings || len(d.NodeAllocatableResourceMappings) > 0
		for _, a := range d.Attributes {
			lists = lists || a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil
		}
	}
	return lists, mappings
}
