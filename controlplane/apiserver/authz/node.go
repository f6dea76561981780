package authz

import (
	"context"
	"fmt"
	"iter"
	"strings"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"knarr/controlplane/apiserver/watchcache"
)

// Node lets a kubelet do what the ClusterRole system:node says, but only to
// its own Node and Lease, the pods bound to it, and what those refer to
// (upstream's Node authorizer).
type Node struct {
	rbac  *RBAC
	cache *watchcache.Cache
}

// NewNode takes its rules from rbac and its graph from cache.
func NewNode(rbac *RBAC, cache *watchcache.Cache) *Node { return &Node{rbac, cache} }

const nodeUserPrefix = "system:node:"

// NodeName is the node that a user is; false when it is none. A user who says
// to be a node but not which one has the name "".
func NodeName(name string, groups []string) (string, bool) {
	node, ok := strings.CutPrefix(name, nodeUserPrefix)
	if !ok {
		return "", false
	}
	for _, g := range groups {
		if g == user.NodesGroup {
			return node, true
		}
	}
	return "", false
}

// Authorize decides for kubelets and for what gateways read, and has no opinion about others.
func (n *Node) Authorize(_ context.Context, a *Attributes) (authorizer.Decision, string, error) {
	if isGateway(a.User) {
		if n.gatewayIssues(a) {
			return authorizer.DecisionAllow, "", nil
		}
		return allowOrNoOpinion(n.gatewayReads(a))
	}
	return allowOrNoOpinion(n.allows(a))
}

func (n *Node) allows(a *Attributes) (bool, string) {
	node, ok := NodeName(a.User.GetName(), a.User.GetGroups())
	switch {
	case !ok:
		return false, ""
	case node == "":
		return false, fmt.Sprintf("unknown node for user %q", a.User.GetName())
	}
	if a.IsResource {
		for i := range nodeRules {
			if r := &nodeRules[i]; r.group == a.Group && r.resource == a.Resource {
				return r.decide(n, node, a)
			}
		}
	}
	rules, _ := n.rbac.RoleRules("", "system:node")
	for i := range rules {
		if RuleAllows(a, &rules[i]) {
			return true, ""
		}
	}
	return false, ""
}

// nodeRules are the resources where it counts whose object it is.
var nodeRules = []struct {
	group, resource string
	decide          func(n *Node, node string, a *Attributes) (bool, string)
}{
	{"", "secrets", (*Node).readsNamespaced},
	{"", "configmaps", (*Node).readsNamespaced},
	{"", "pods", (*Node).pods},
	{"", "nodes", (*Node).nodes},
	{"", "persistentvolumeclaims", (*Node).claims},
	{"", "persistentvolumes", (*Node).gets},
	{"", "serviceaccounts", (*Node).accounts},
	{"coordination.k8s.io", "leases", (*Node).leases},
	{"storage.k8s.io", "csinodes", (*Node).csiNodes},
	{"storage.k8s.io", "volumeattachments", (*Node).gets},
	{"resource.k8s.io", "resourceclaims", (*Node).gets},
	{"resource.k8s.io", "resourceslices", (*Node).slices},
	{"certificates.k8s.io", "podcertificaterequests", (*Node).podCertificates},
}

func (n *Node) readsNamespaced(node string, a *Attributes) (bool, string) {
	switch {
	case a.Verb != "get" && a.Verb != "list" && a.Verb != "watch":
		return false, "can only read resources of this type"
	case a.Subresource != "":
		return false, "cannot read subresource"
	case a.Namespace == "":
		return false, "can only read namespaced object of this type"
	}
	return n.related(node, a)
}

func (n *Node) gets(node string, a *Attributes) (bool, string) {
	switch {
	case a.Verb != "get":
		return false, "can only get individual resources of this type"
	case a.Subresource != "":
		return false, "cannot get subresource"
	}
	return n.related(node, a)
}

func (n *Node) claims(node string, a *Attributes) (bool, string) {
	if a.Subresource != "status" {
		return n.gets(node, a)
	}
	if a.Verb != "update" && a.Verb != "patch" {
		return false, "can only get/update/patch this type"
	}
	return n.related(node, a)
}

func (n *Node) accounts(node string, a *Attributes) (bool, string) {
	switch {
	case a.Verb == "get" && a.Subresource == "":
		return n.readsNamespaced(node, a)
	case a.Verb != "create" || a.Name == "":
		return false, "can only create tokens for individual service accounts"
	case a.Subresource != "token":
		return false, "can only create token subresource of serviceaccount"
	}
	return n.related(node, a)
}

// writesOwn is what a kubelet may do to an object with its node's name; the
// name of one that is made is NodeRestriction's matter.
func writesOwn(node, kind string, a *Attributes) (bool, string) {
	if a.Verb != "create" && a.Name != node {
		return false, fmt.Sprintf("can only access %s with the same name as the requesting node", kind)
	}
	return true, ""
}

func oneOf(verb string, verbs ...string) bool {
	for _, v := range verbs {
		if v == verb {
			return true
		}
	}
	return false
}

func (n *Node) leases(node string, a *Attributes) (bool, string) {
	switch {
	case !oneOf(a.Verb, "get", "create", "update", "patch", "delete"):
		return false, "can only get, create, update, patch, or delete a node lease"
	case a.Namespace != corev1.NamespaceNodeLease:
		return false, fmt.Sprintf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	return writesOwn(node, "node lease", a)
}

func (n *Node) csiNodes(node string, a *Attributes) (bool, string) {
	switch {
	case !oneOf(a.Verb, "get", "create", "update", "patch", "delete"):
		return false, "can only get, create, update, patch, or delete a CSINode"
	case a.Subresource != "":
		return false, "cannot authorize CSINode subresources"
	}
	return writesOwn(node, "CSINode", a)
}

func (n *Node) slices(node string, a *Attributes) (bool, string) {
	switch {
	case a.Subresource != "":
		return false, "cannot authorize ResourceSlice subresources"
	case a.Verb == "create":
		return true, ""
	case oneOf(a.Verb, "list", "watch", "deletecollection"):
		if selects(a, "spec.nodeName", node) {
			return true, ""
		}
		return false, "can only list/watch/deletecollection resourceslices with nodeName field selector"
	case oneOf(a.Verb, "get", "update", "patch", "delete"):
		return n.related(node, a)
	}
	return false, "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection"
}

// podCertificates are those of the node's pods. There are none where the feature is off.
func (n *Node) podCertificates(node string, a *Attributes) (bool, string) {
	switch {
	case n.cache.Resource(certificatesv1beta1.SchemeGroupVersion.WithResource("podcertificaterequests")) == nil:
		return false, ""
	case a.Subresource != "":
		return false, "nodes may not access the status subresource of PodCertificateRequests"
	}
	switch a.Verb {
	case "create": // NodeRestriction looks closer
		return true, ""
	case "get":
		return n.related(node, a)
	case "list", "watch":
		if selects(a, "spec.nodeName", node) {
			return true, ""
		}
		return false, "can only list/watch podcertificaterequests with nodeName field selector"
	}
	return false, fmt.Sprintf("nodes may not %s podcertificaterequests", a.Verb)
}

func (n *Node) nodes(node string, a *Attributes) (bool, string) {
	switch a.Subresource {
	case "":
		switch a.Verb {
		case "create", "update", "patch": // NodeRestriction looks closer
			return true, ""
		case "get", "list", "watch":
			switch a.Name {
			case node:
				return true, ""
			case "":
				return false, fmt.Sprintf("node '%s' cannot read all nodes, only its own Node object", node)
			}
			return false, fmt.Sprintf("node '%s' cannot read '%s', only its own Node object", node, a.Name)
		}
	case "status":
		return a.Verb == "update" || a.Verb == "patch", ""
	}
	return false, ""
}

func (n *Node) pods(node string, a *Attributes) (bool, string) {
	switch a.Subresource {
	case "":
		switch a.Verb {
		case "get":
			return n.related(node, a)
		case "list", "watch":
			if selects(a, "spec.nodeName", node) {
				return true, ""
			}
			if a.Name != "" {
				return n.related(node, a)
			}
			return false, "can only list/watch pods with spec.nodeName field selector"
		case "create", "delete": // NodeRestriction looks closer
			return true, ""
		}
	case "status":
		return a.Verb == "update" || a.Verb == "patch", ""
	case "eviction":
		return a.Verb == "create", ""
	}
	return false, ""
}

// selects says that a's field selector keeps field to that value.
func selects(a *Attributes, field, value string) bool {
	sel, err := fields.ParseSelector(a.FieldSelector)
	if err != nil || a.FieldSelector == "" {
		return false
	}
	got, ok := sel.RequiresExactMatch(field)
	return ok && got == value
}

// related allows what a pod on node refers to.
func (n *Node) related(node string, a *Attributes) (bool, string) {
	if a.Name == "" {
		return false, "No Object name found"
	}
	if n.reaches(node, a.Resource, a.Namespace, a.Name) {
		return true, ""
	}
	return false, fmt.Sprintf("no relationship found between node '%s' and this object", node)
}

func (n *Node) reaches(node, resource, namespace, name string) bool {
	core := func(resource string) *watchcache.Resource {
		return n.cache.Resource(corev1.SchemeGroupVersion.WithResource(resource))
	}
	switch resource {
	case "pods":
		p, ok := watchcache.Read[*corev1.Pod](core("pods"), namespace+"/"+name)
		return ok && p.Spec.NodeName == node
	case "persistentvolumes":
		pv, ok := watchcache.Read[*corev1.PersistentVolume](core("persistentvolumes"), name)
		return ok && n.mounts(node, pv)
	case "volumeattachments":
		va, ok := watchcache.Read[*storagev1.VolumeAttachment](n.cache.Resource(storagev1.SchemeGroupVersion.WithResource("volumeattachments")), name)
		return ok && va.Spec.NodeName == node
	case "podcertificaterequests":
		r, ok := watchcache.Read[*certificatesv1beta1.PodCertificateRequest](n.cache.Resource(certificatesv1beta1.SchemeGroupVersion.WithResource(resource)), namespace+"/"+name)
		return ok && string(r.Spec.NodeName) == node
	case "resourceslices":
		s, ok := watchcache.Read[*resourcev1.ResourceSlice](n.cache.Resource(resourcev1.SchemeGroupVersion.WithResource("resourceslices")), name)
		return ok && s.Spec.NodeName != nil && *s.Spec.NodeName == node
	}
	if namespace == "" {
		return false
	}
	found := false
	watchcache.Each(core("pods"), namespace, func(p *corev1.Pod) bool {
		found = p.Spec.NodeName == node && refersTo(p, resource, name)
		return !found
	})
	if !found && resource == "secrets" { // a volume may need one
		watchcache.Each(core("persistentvolumes"), "", func(pv *corev1.PersistentVolume) bool {
			found = volumeHasSecret(pv, namespace, name) && n.mounts(node, pv)
			return !found
		})
	}
	return found
}

// mounts says that a pod on node uses the claim that pv is bound to. The claim must say
// so too: a volume that only names another's claim, and a Secret, opens neither.
func (n *Node) mounts(node string, pv *corev1.PersistentVolume) bool {
	ref := pv.Spec.ClaimRef
	if ref == nil {
		return false
	}
	claims := n.cache.Resource(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"))
	claim, ok := watchcache.Read[*corev1.PersistentVolumeClaim](claims, ref.Namespace+"/"+ref.Name)
	return ok && claim.Spec.VolumeName == pv.Name && (ref.UID == "" || ref.UID == claim.UID) && n.reaches(node, "persistentvolumeclaims", ref.Namespace, ref.Name)
}

// refersTo reports whether pod names that object in its namespace. A mirror pod is
// the kubelet's own making and must not widen what it may read.
func refersTo(pod *corev1.Pod, resource, name string) bool {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return false
	}
	among := func(names iter.Seq[string]) bool {
		for n := range names {
			if n == name {
				return true
			}
		}
		return false
	}
	switch resource {
	case "serviceaccounts":
		return pod.Spec.ServiceAccountName == name
	case "secrets":
		return among(PodSecrets(pod))
	case "configmaps":
		return among(PodConfigMaps(pod))
	case "persistentvolumeclaims":
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == name ||
				v.Ephemeral != nil && pod.Name+"-"+v.Name == name {
				return true
			}
		}
	case "resourceclaims":
		for i := range pod.Spec.ResourceClaims {
			if claim := claimOf(pod, &pod.Spec.ResourceClaims[i]); claim != "" && claim == name {
				return true
			}
		}
		extended := pod.Status.ExtendedResourceClaimStatus
		return extended != nil && extended.ResourceClaimName != "" && extended.ResourceClaimName == name
	}
	return false
}

// claimOf is the name of the claim that pod has for c, "" while there is none.
func claimOf(pod *corev1.Pod, c *corev1.PodResourceClaim) string {
	switch {
	case c.ResourceClaimName != nil:
		return *c.ResourceClaimName
	case c.ResourceClaimTemplateName == nil:
		return ""
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.Name == c.Name && s.ResourceClaimName != nil {
			return *s.ResourceClaimName
		}
	}
	return ""
}
