package admission

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/endpoints"
	"knarr/controlplane/apiserver/watchcache"
)

// nodeRestriction limits what a kubelet may write to its own node, the pods
// bound to it, and tokens of their accounts.
type nodeRestriction struct{ cache *watchcache.Cache }

func (*nodeRestriction) Name() string { return "NodeRestriction" }

func (n *nodeRestriction) Admit(_ context.Context, a *endpoints.Attributes) error {
	if a.User == nil {
		return nil
	}
	node := authz.NodeName(a.User.GetName(), a.User.GetGroups())
	if node == "" {
		return nil
	}
	var err error
	switch {
	case a.Resource.Group == "" && a.Resource.Resource == "pods":
		err = n.pod(node, a)
	case a.Resource.Group == "" && a.Resource.Resource == "nodes":
		err = ownNode(node, a)
	case is(a, "serviceaccounts", "token"):
		err = n.token(node, a)
	case a.Resource.Group == "coordination.k8s.io" && a.Resource.Resource == "leases":
		if l, ok := a.Object.(*coordinationv1.Lease); ok && (a.Namespace != corev1.NamespaceNodeLease || l.Name != node) {
			err = fmt.Errorf("node %q can only write its own lease in %s", node, corev1.NamespaceNodeLease)
		}
	}
	if err != nil {
		return forbidden(a, err)
	}
	return nil
}

func (n *nodeRestriction) pod(node string, a *endpoints.Attributes) error {
	stored := func() (*corev1.Pod, bool) {
		return watchcache.Read[*corev1.Pod](n.cache.Resource(corev1.SchemeGroupVersion.WithResource("pods")), a.Namespace+"/"+a.Name)
	}
	switch a.Subresource {
	case "":
	case "status":
		if p, ok := stored(); ok && p.Spec.NodeName != node {
			return fmt.Errorf("node %q can only update pod status for pods with spec.nodeName set to itself", node)
		}
		if p, ok := a.Object.(*corev1.Pod); ok {
			if old, ok := a.Old.(*corev1.Pod); ok && !reflect.DeepEqual(p.Labels, old.Labels) {
				return fmt.Errorf("node %q cannot update labels through pod status", node)
			}
		}
		return nil
	case "eviction":
		if p, ok := stored(); ok && p.Spec.NodeName != node {
			return fmt.Errorf("node %s can only evict pods with spec.nodeName set to itself", node)
		}
		return nil
	default:
		return fmt.Errorf("unexpected pod subresource %q, only 'status' and 'eviction' are allowed", a.Subresource)
	}
	switch a.Operation {
	case endpoints.Delete:
		if p, ok := stored(); ok && p.Spec.NodeName != node {
			return fmt.Errorf("node %q can only delete pods with spec.nodeName set to itself", node)
		}
		return nil
	case endpoints.Create:
		return mirrorPod(node, a)
	}
	return fmt.Errorf("unexpected operation %q, node %q can only create and delete mirror pods", a.Operation, node)
}

// mirrorPod lets a kubelet show its static pods, which may use nothing that the
// node could not read by itself.
func mirrorPod(node string, a *endpoints.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("unexpected type %T", a.Object)
	}
	if _, mirror := pod.Annotations[mirrorAnnotation]; !mirror {
		return fmt.Errorf("pod does not have %q annotation, node %q can only create mirror pods", mirrorAnnotation, node)
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("node %q can only create pods with spec.nodeName set to itself", node)
	}
	if len(pod.OwnerReferences) != 1 || pod.OwnerReferences[0].Kind != "Node" || pod.OwnerReferences[0].Name != node ||
		pod.OwnerReferences[0].APIVersion != "v1" {
		return fmt.Errorf("node %q can only create pods with an owner reference set to itself", node)
	}
	if pod.Spec.ServiceAccountName != "" {
		return fmt.Errorf("node %q can not create pods that reference a service account", node)
	}
	if len(pod.Spec.ResourceClaims) > 0 { // CVE-2025-4563
		return fmt.Errorf("node %q can not create pods that reference resource claims", node)
	}
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil || v.ConfigMap != nil || v.PersistentVolumeClaim != nil || v.Projected != nil {
			return fmt.Errorf("node %q can not create pods that reference API objects in volumes", node)
		}
	}
	return nil
}

// ownNode checks a write of a Node: CVE-2025-5187 (no owner references),
// CVE-2022-3294 (addresses are the API server's matter).
func ownNode(node string, a *endpoints.Attributes) error {
	obj, ok := a.Object.(*corev1.Node)
	if a.Name != "" && a.Name != node || ok && obj.Name != node {
		return fmt.Errorf("node %q is not allowed to modify node %q", node, a.Name)
	}
	if a.Operation == endpoints.Delete {
		return fmt.Errorf("node %q is not allowed to delete itself", node)
	}
	if !ok {
		return nil
	}
	old, updates := a.Old.(*corev1.Node)
	if len(obj.OwnerReferences) > 0 && (!updates || !reflect.DeepEqual(obj.OwnerReferences, old.OwnerReferences)) {
		return fmt.Errorf("node %q is not allowed to modify ownerReferences", node)
	}
	var before map[string]string
	if updates {
		before = old.Labels
		if a.Subresource == "" && !reflect.DeepEqual(obj.Spec.Taints, old.Spec.Taints) {
			return fmt.Errorf("node %q is not allowed to modify taints", node)
		}
		if obj.Spec.ConfigSource != nil && !reflect.DeepEqual(obj.Spec.ConfigSource, old.Spec.ConfigSource) {
			return fmt.Errorf("node %q is not allowed to modify configSource", node)
		}
	}
	for k, v := range obj.Labels {
		if was, had := before[k]; (!had || was != v) && !ownLabel(k) {
			return fmt.Errorf("is not allowed to modify labels: %s", k)
		}
	}
	for k := range before {
		if _, has := obj.Labels[k]; !has && !ownLabel(k) {
			return fmt.Errorf("is not allowed to modify labels: %s", k)
		}
	}
	return nil
}

// ownLabel says whether a kubelet may set the label on its node: its own facts
// and anything outside the kubernetes.io namespaces.
func ownLabel(key string) bool {
	prefix, _, found := strings.Cut(key, "/")
	if !found {
		return true
	}
	in := func(domain string) bool { return prefix == domain || strings.HasSuffix(prefix, "."+domain) }
	if in("node-restriction.kubernetes.io") {
		return false
	}
	if !in("kubernetes.io") && !in("k8s.io") || in("kubelet.kubernetes.io") || in("node.kubernetes.io") {
		return true
	}
	switch key {
	case corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
		corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
		corev1.LabelInstanceType, corev1.LabelInstanceTypeStable,
		corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch":
		return true
	}
	return false
}

// token lets a kubelet ask for tokens bound to pods that run on it.
func (n *nodeRestriction) token(node string, a *endpoints.Attributes) error {
	req, ok := a.Object.(*authenticationv1.TokenRequest)
	if !ok {
		return nil
	}
	ref := req.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" || ref.UID == "" {
		return fmt.Errorf("node requested token not bound to a pod")
	}
	pod, ok := watchcache.Read[*corev1.Pod](n.cache.Resource(corev1.SchemeGroupVersion.WithResource("pods")), a.Namespace+"/"+ref.Name)
	switch {
	case !ok:
		return fmt.Errorf("pod %q not found", ref.Name)
	case pod.UID != ref.UID:
		return fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	case pod.Spec.NodeName != node:
		return fmt.Errorf("node requested token bound to a pod scheduled on a different node")
	}
	return nil
}
