package registry

import (
	"cmp"
	"context"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var resourceClaims = &Kind[*resourcev1.ResourceClaim]{
	GroupVersionKind: resourcev1.SchemeGroupVersion.WithKind("ResourceClaim"),
	Plural:           "resourceclaims",
	RecheckName:      true,

	Default: func(c *resourcev1.ResourceClaim) {
		defaultDeviceClaim(&c.Spec)
		if a := c.Status.Allocation; a != nil {
			for i := range a.Devices.Results {
				defaultDeviceTolerations(a.Devices.Results[i].Tolerations)
			}
		}
	},
	Prepare: spec(
		func(c *resourcev1.ResourceClaim) { c.Status = resourcev1.ResourceClaimStatus{} },
		func(c, old *resourcev1.ResourceClaim) { c.Status = old.Status }, nil),
	Validate: func(_ context.Context, c, old *resourcev1.ResourceClaim) field.ErrorList {
		at := field.NewPath("spec")
		if old != nil {
			return unchanged(c.Spec, old.Spec, at)
		}
		return validateDeviceClaim(&c.Spec, at)
	},
	Columns: []Column[*resourcev1.ResourceClaim]{
		nameColumn[*resourcev1.ResourceClaim](),
		column("State", "string", "A summary of the current state (allocated, pending, reserved, etc.).", 0,
			func(c *resourcev1.ResourceClaim) any { return claimState(c) }),
		ageColumn[*resourcev1.ResourceClaim](),
	},
	Sub: []Subresource[*resourcev1.ResourceClaim]{
		statusOf(func(c, old *resourcev1.ResourceClaim) {
			c.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&c.ObjectMeta, &old.ObjectMeta)
			dropReleasedDevices(c, old)
		}, func(_ context.Context, c, old *resourcev1.ResourceClaim) field.ErrorList {
			return validateDeviceClaimStatus(c, old)
		}),
	},
}

func claimState(c *resourcev1.ResourceClaim) string {
	var states []string
	if c.DeletionTimestamp != nil {
		states = append(states, "deleted")
	}
	switch {
	case c.Status.Allocation == nil && c.DeletionTimestamp == nil:
		states = append(states, "pending")
	case c.Status.Allocation != nil:
		states = append(states, "allocated")
		if len(c.Status.ReservedFor) > 0 {
			states = append(states, "reserved")
		}
	}
	return strings.Join(states, ",")
}

func defaultDeviceClaim(s *resourcev1.ResourceClaimSpec) {
	count := func(mode *resourcev1.DeviceAllocationMode, n *int64) {
		*mode = cmp.Or(*mode, resourcev1.DeviceAllocationModeExactCount)
		if *mode == resourcev1.DeviceAllocationModeExactCount {
			*n = cmp.Or(*n, 1)
		}
	}
	for i := range s.Devices.Requests {
		r := &s.Devices.Requests[i]
		if e := r.Exactly; e != nil {
			count(&e.AllocationMode, &e.Count)
			defaultDeviceTolerations(e.Tolerations)
		}
		for j := range r.FirstAvailable {
			e := &r.FirstAvailable[j]
			count(&e.AllocationMode, &e.Count)
			defaultDeviceTolerations(e.Tolerations)
		}
	}
}

func defaultDeviceTolerations(list []resourcev1.DeviceToleration) {
	for i := range list {
		fill(&list[i].Operator, resourcev1.DeviceTolerationOpEqual)
	}
}

// A sharedDevice is a device, or the share of one, that a claim can have.
type sharedDevice struct{ Driver, Pool, Device, ShareID string }

func (d sharedDevice) String() string {
	s := d.Driver + "/" + d.Pool + "/" + d.Device
	if d.ShareID != "" {
		s += "/" + d.ShareID
	}
	return s
}

func statusDevice(d *resourcev1.AllocatedDeviceStatus) sharedDevice {
	return sharedDevice{d.Driver, d.Pool, d.Device, deref(d.ShareID, "")}
}

func allocatedDevices(c *resourcev1.ResourceClaim) map[sharedDevice]bool {
	devices := map[sharedDevice]bool{}
	if a := c.Status.Allocation; a != nil {
		for _, r := range a.Devices.Results {
			devices[sharedDevice{r.Driver, r.Pool, r.Device, string(deref(r.ShareID, ""))}] = true
		}
	}
	return devices
}

// dropReleasedDevices drops the status of devices that were allocated and no
// longer are, for clients that do not know of it.
func dropReleasedDevices(c, old *resourcev1.ResourceClaim) {
	was, is := allocatedDevices(old), allocatedDevices(c)
	c.Status.Devices = slices.DeleteFunc(slices.Clone(c.Status.Devices), func(d resourcev1.AllocatedDeviceStatus) bool {
		id := statusDevice(&d)
		return was[id] && !is[id]
	})
	if len(c.Status.Devices) == 0 {
		c.Status.Devices = nil
	}
}
