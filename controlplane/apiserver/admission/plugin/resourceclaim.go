package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/watchcache"
)

// resourceClaim guards what is more than a right to write claims: access to
// devices as an administrator, to allocate them, and to speak for drivers.
type resourceClaim struct {
	cache      *watchcache.Cache
	authorizer authz.Authorizer
}

func (*resourceClaim) Name() string { return "ResourceClaim" }

func (r *resourceClaim) Validate(ctx context.Context, a *admission.Attributes) error {
	if a.Resource.Group != resourcev1.GroupName || a.Operation != admission.Create && a.Operation != admission.Update {
		return nil
	}
	var errs field.ErrorList
	switch o := a.Object.(type) {
	case *resourcev1.ResourceClaim:
		if old, ok := a.Old.(*resourcev1.ResourceClaim); ok && a.Subresource == "status" {
			errs = r.status(ctx, a, o, old)
		} else if a.Operation == admission.Create {
			errs = r.asksAdmin(ctx, a, o.Spec.Devices.Requests)
		}
	case *resourcev1.ResourceClaimTemplate:
		if a.Operation == admission.Create {
			errs = r.asksAdmin(ctx, a, o.Spec.Spec.Devices.Requests)
		}
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(a.Kind.GroupKind(), a.Name, errs)
	}
	return nil
}

func (r *resourceClaim) asksAdmin(ctx context.Context, a *admission.Attributes, requests []resourcev1.DeviceRequest) field.ErrorList {
	for i, q := range requests {
		if q.Exactly != nil && isTrue(q.Exactly.AdminAccess) {
			return r.adminNamespace(ctx, a, field.NewPath("spec", "devices", "requests").Index(i).Child("adminAccess"))
		}
	}
	return nil
}

func isTrue(b *bool) bool { return b != nil && *b }

// adminNamespace demands the label that lets a namespace's claims be an
// administrator's.
func (r *resourceClaim) adminNamespace(ctx context.Context, a *admission.Attributes, at *field.Path) field.ErrorList {
	const label = resourcev1.DRAAdminNamespaceLabelKey
	ns, err := lookup[*corev1.Namespace](ctx, r.cache, corev1.SchemeGroupVersion.WithResource("namespaces"), a.Namespace, a.Namespace)
	if err != nil {
		return field.ErrorList{field.InternalError(at, fmt.Errorf("could not retrieve namespace to verify admin access: %w", err))}
	}
	if ns.Labels[label] == "true" {
		return nil
	}
	return field.ErrorList{field.Forbidden(at, fmt.Sprintf("admin access to devices requires the `%s: true` label on the containing namespace", label))}
}

func results(c *resourcev1.ResourceClaim) []resourcev1.DeviceRequestAllocationResult {
	if c.Status.Allocation == nil {
		return nil
	}
	return c.Status.Allocation.Devices.Results
}

func adminResult(c *resourcev1.ResourceClaim) int {
	return slices.IndexFunc(results(c), func(r resourcev1.DeviceRequestAllocationResult) bool { return isTrue(r.AdminAccess) })
}

func (r *resourceClaim) status(ctx context.Context, a *admission.Attributes, c, old *resourcev1.ResourceClaim) (errs field.ErrorList) {
	if i := adminResult(c); i >= 0 && adminResult(old) < 0 {
		errs = append(errs, r.adminNamespace(ctx, a, field.NewPath("status", "allocation", "devices", "results").Index(i).Child("adminAccess"))...)
	}
	may := func(verb, sub, namespace, name string) error {
		ask := &authz.Attributes{User: a.User, Verb: verb, Namespace: namespace, Group: a.Resource.Group, Version: a.Resource.Version,
			Resource: a.Resource.Resource, Subresource: sub, Name: name, IsResource: true}
		ok, reason := authz.Allows(ctx, r.authorizer, ask)
		if ok {
			return nil
		}
		return apierrors.NewForbidden(a.Resource.GroupResource(), name, errors.New(ask.Denied(reason)))
	}
	if !equality.Semantic.DeepEqual(c.Status.Allocation, old.Status.Allocation) || !equality.Semantic.DeepEqual(c.Status.ReservedFor, old.Status.ReservedFor) {
		if err := may(a.Verb, resourcev1.SubresourceBinding, "", ""); err != nil {
			errs = append(errs, field.Forbidden(field.NewPath("status", "allocation"), fmt.Sprintf(
				`changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", verb="%s" permission: %s`, a.Verb, err)))
		}
	}
	if c.Status.Allocation == nil {
		return errs
	}
	verbs := []string{resourcev1.VerbPrefixArbitraryNode + a.Verb}
	if own := a.User.GetExtra()[serviceaccount.NodeNameKey]; len(own) == 1 && own[0] == allocatedNode(c) && strings.HasPrefix(a.User.GetName(), serviceaccount.ServiceAccountUsernamePrefix) {
		verbs = slices.Insert(verbs, 0, resourcev1.VerbPrefixAssociatedNode+a.Verb)
	}
	for _, driver := range changedDrivers(c, old) {
		var first error
		for _, verb := range verbs {
			err := may(verb, resourcev1.SubresourceDriver, a.Namespace, driver)
			if err == nil {
				first = nil
				break
			}
			if first == nil {
				first = err
			}
		}
		if first != nil {
			errs = append(errs, field.Forbidden(field.NewPath("status", "devices"), fmt.Sprintf(
				`changing status.devices requires resource="resourceclaims/driver", verb="%s" permission: %s`, verbs, first)))
		}
	}
	return errs
}

// allocatedNode is the node that a claim's devices are on, if it is one.
func allocatedNode(c *resourcev1.ResourceClaim) string {
	s := c.Status.Allocation.NodeSelector
	if s == nil || len(s.NodeSelectorTerms) != 1 || len(s.NodeSelectorTerms[0].MatchExpressions) != 0 || len(s.NodeSelectorTerms[0].MatchFields) != 1 {
		return ""
	}
	if f := s.NodeSelectorTerms[0].MatchFields[0]; f.Key == "metadata.name" && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
		return f.Values[0]
	}
	return ""
}

// changedDrivers are the drivers of devices whose status changes.
func changedDrivers(c, old *resourcev1.ResourceClaim) []string {
	type key struct{ driver, pool, device, share string }
	statusByDevice := func(c *resourcev1.ResourceClaim) map[key]resourcev1.AllocatedDeviceStatus {
		all := map[key]resourcev1.AllocatedDeviceStatus{}
		for _, d := range c.Status.Devices {
			k := key{d.Driver, d.Pool, d.Device, ""}
			if d.ShareID != nil {
				k.share = *d.ShareID
			}
			all[k] = d
		}
		return all
	}
	drivers := map[string]bool{}
	now, before := statusByDevice(c), statusByDevice(old)
	for k, d := range now {
		if b, ok := before[k]; !ok || !equality.Semantic.DeepEqual(b, d) {
			drivers[k.driver] = true
		}
	}
	for k := range before {
		if _, ok := now[k]; !ok {
			drivers[k.driver] = true
		}
	}
	return slices.Sorted(maps.Keys(drivers))
}
