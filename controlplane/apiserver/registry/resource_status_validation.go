package registry

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateDeviceClaimStatus(c, old *resourcev1.ResourceClaim) field.ErrorList {
	var f faults
	at := field.NewPath("status")
	s := &c.Status
	reserved := at.Child("reservedFor")
	f.add(setOf(s.ReservedFor, resourcev1.ResourceClaimReservedForMaxSize, reserved,
		func(r *resourcev1.ResourceClaimConsumerReference) types.UID { return r.UID },
		func(r *resourcev1.ResourceClaimConsumerReference, at *field.Path) field.ErrorList {
			return needed(at, []string{"resource", "name", "uid"}, r.Resource, r.Name, string(r.UID))
		}))
	allocated := allocatedDevices(c)
	f.add(setOf(s.Devices, -1, at.Child("devices"), statusDevice, func(d *resourcev1.AllocatedDeviceStatus, at *field.Path) field.ErrorList {
		return validateDeviceStatus(d, allocated, at)
	}))
	if len(s.ReservedFor) > 0 {
		added := func(r resourcev1.ResourceClaimConsumerReference) bool {
			return !slices.Contains(old.Status.ReservedFor, r)
		}
		if s.Allocation == nil {
			f.forbidden(reserved, "may not be specified when `allocated` is not set")
		} else if c.DeletionTimestamp != nil && slices.ContainsFunc(s.ReservedFor, added) {
			f.forbidden(reserved, "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set")
		}
	}
	switch p := at.Child("allocation"); {
	case s.Allocation != nil && old.Status.Allocation != nil:
		f.add(unchanged(s.Allocation, old.Status.Allocation, p))
	case s.Allocation != nil:
		f.add(validateAllocation(s.Allocation, requestNames(&c.Spec.Devices), p))
	}
	return f.list
}

func validateAllocation(a *resourcev1.AllocationResult, names map[string]bool, at *field.Path) field.ErrorList {
	var f faults
	devices := at.Child("devices")
	f.add(eachOf(a.Devices.Results, resourcev1.AllocationResultsMaxSize, devices.Child("results"), func(r *resourcev1.DeviceRequestAllocationResult, at *field.Path) field.ErrorList {
		var f faults
		f.add(validateRequestRef(r.Request, names, at.Child("request")))
		f.add(csiDriverName(r.Driver, at.Child("driver")))
		f.add(poolName(r.Pool, at.Child("pool")))
		f.add(dnsLabel(r.Device, at.Child("device")))
		f.add(validateBindingConditions(r.BindingConditions, r.BindingFailureConditions, at))
		if r.ShareID != nil {
			f.add(uidFormat(string(*r.ShareID), at.Child("shareID")))
		}
		return f.list
	}))
	// Of the class and of the claim.
	f.add(eachOf(a.Devices.Config, 2*resourcev1.DeviceConfigMaxSize, devices.Child("config"), func(c *resourcev1.DeviceAllocationConfiguration, at *field.Path) field.ErrorList {
		errs := oneOfNeeded(c.Source, at.Child("source"), resourcev1.AllocationConfigSourceClaim, resourcev1.AllocationConfigSourceClass)
		errs = append(errs, validateRequestRefs(c.Requests, names, at.Child("requests"))...)
		return append(errs, validateDeviceConfig(&c.DeviceConfiguration, resourcev1.OpaqueParametersMaxLength, at)...)
	}))
	if a.NodeSelector != nil {
		f.add(validateNodeSelector(a.NodeSelector, at.Child("nodeSelector")))
	}
	return f.list
}

func validateDeviceStatus(d *resourcev1.AllocatedDeviceStatus, allocated map[sharedDevice]bool, at *field.Path) field.ErrorList {
	var f faults
	f.add(csiDriverName(d.Driver, at.Child("driver")))
	f.add(poolName(d.Pool, at.Child("pool")))
	f.add(dnsLabel(d.Device, at.Child("device")))
	if d.ShareID != nil {
		f.add(uidFormat(*d.ShareID, at.Child("shareID")))
	}
	if id := statusDevice(d); !allocated[id] {
		f.invalid(at, id, "must be an allocated device in the claim")
	}
	if n := len(d.Conditions); n > resourcev1.AllocatedDeviceStatusMaxConditions {
		f.list = append(f.list, field.TooMany(at.Child("conditions"), n, resourcev1.AllocatedDeviceStatusMaxConditions))
	}
	f.add(metavalidation.ValidateConditions(d.Conditions, at.Child("conditions")))
	if d.Data != nil && len(d.Data.Raw) > 0 {
		f.add(rawObject(*d.Data, resourcev1.AllocatedDeviceStatusDataMaxLength, at.Child("data")))
	}
	n := d.NetworkData
	if n == nil {
		return f.list
	}
	at = at.Child("networkData")
	short := func(s string, most int, at *field.Path) {
		if len(s) > most {
			f.list = append(f.list, field.TooLong(at, "", most))
		}
	}
	short(n.InterfaceName, resourcev1.NetworkDeviceDataInterfaceNameMaxLength, at.Child("interfaceName"))
	short(n.HardwareAddress, resourcev1.NetworkDeviceDataHardwareAddressMaxLength, at.Child("hardwareAddress"))
	f.add(setOf(n.IPs, resourcev1.NetworkDeviceDataMaxIPs, at.Child("ips"), itself, func(ip *string, at *field.Path) field.ErrorList {
		return utilvalidation.IsValidInterfaceAddress(at, *ip)
	}))
	return f.list
}
