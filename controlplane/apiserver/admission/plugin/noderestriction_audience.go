package plugin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/watchcache"
)

// audience lets a kubelet have tokens for the audiences that pod's volumes
// name, and for others when an administrator allows it.
func (n *nodeRestriction) audience(ctx context.Context, audiences []string, pod *corev1.Pod, a *admission.Attributes) error {
	wanted := ""
	switch len(audiences) {
	case 0:
	case 1:
		wanted = audiences[0]
	default:
		return fmt.Errorf("node may only request 0 or 1 audiences")
	}
	for i := range pod.Spec.Volumes {
		if n.names(&pod.Spec.Volumes[i], pod, wanted) {
			return nil
		}
	}
	ask := &authz.Attributes{
		User: a.User, Verb: "request-serviceaccounts-token-audience", Namespace: a.Namespace, Version: "v1",
		Resource: wanted, Name: a.Name, IsResource: true,
	}
	if ok, _ := authz.Allows(ctx, n.authorizer, ask); ok {
		return nil
	}
	return fmt.Errorf("audience %q not found in pod spec volume, %s is not authorized to request tokens for this audience", wanted, a.User.GetName())
}

// names says that a volume asks for tokens of that audience, by itself or
// through its CSI driver.
func (n *nodeRestriction) names(v *corev1.Volume, pod *corev1.Pod, audience string) bool {
	driver := ""
	switch {
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == audience {
				return true
			}
		}
	case v.CSI != nil:
		driver = v.CSI.Driver
	case v.PersistentVolumeClaim != nil:
		driver = n.driverOf(pod.Namespace, v.PersistentVolumeClaim.ClaimName)
	case v.Ephemeral != nil:
		driver = n.driverOf(pod.Namespace, pod.Name+"-"+v.Name)
	}
	if driver == "" {
		return false
	}
	d, ok := watchcache.Read[*storagev1.CSIDriver](n.cache.Resource(storagev1.SchemeGroupVersion.WithResource("csidrivers")), driver)
	if !ok {
		return false
	}
	for _, r := range d.Spec.TokenRequests {
		if r.Audience == audience {
			return true
		}
	}
	return false
}

func (n *nodeRestriction) driverOf(namespace, claim string) string {
	core := func(resource string) *watchcache.Resource {
		return n.cache.Resource(corev1.SchemeGroupVersion.WithResource(resource))
	}
	c, ok := watchcache.Read[*corev1.PersistentVolumeClaim](core("persistentvolumeclaims"), namespace+"/"+claim)
	if !ok {
		return ""
	}
	pv, ok := watchcache.Read[*corev1.PersistentVolume](core("persistentvolumes"), c.Spec.VolumeName)
	if !ok || pv.Spec.CSI == nil {
		return ""
	}
	return pv.Spec.CSI.Driver
}
