package authz

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/fields"

	"knarr/controlplane/apiserver/watchcache"
)

// Node lets a kubelet do what the ClusterRole system:node says, and read only
// those Secrets, ConfigMaps and the like that a pod bound to it refers to
// (upstream's Node authorizer).
type Node struct {
	rbac  *RBAC
	cache *watchcache.Cache
}

// NewNode takes its rules from rbac and its graph from cache.
func NewNode(rbac *RBAC, cache *watchcache.Cache) *Node { return &Node{rbac, cache} }

const (
	nodesGroup     = "system:nodes"
	nodeUserPrefix = "system:node:"
)

// NodeName is the node that a user is, "" when it is none.
func NodeName(name string, groups []string) string {
	node, ok := strings.CutPrefix(name, nodeUserPrefix)
	if !ok {
		return ""
	}
	for _, g := range groups {
		if g == nodesGroup {
			return node
		}
	}
	return ""
}

func (n *Node) Authorize(_ context.Context, a *Attributes) (bool, string) {
	node := NodeName(a.User.GetName(), a.User.GetGroups())
	if node == "" {
		return false, ""
	}
	if a.IsResource && a.Group == "" {
		switch a.Resource {
		case "secrets", "configmaps", "persistentvolumeclaims":
			if a.Resource == "persistentvolumeclaims" && a.Subresource == "status" {
				break
			}
			return n.related(node, a)
		case "persistentvolumes":
			return n.readsOne(a), "can only get individual resources of this type"
		case "serviceaccounts":
			if a.Subresource != "token" {
				return n.related(node, a)
			}
			if a.Verb != "create" {
				return false, "can only create tokens for individual service accounts"
			}
			return n.related(node, a)
		case "nodes":
			if a.Name != "" && a.Name != node && (a.Verb == "get" || a.Verb == "update" || a.Verb == "patch" || a.Verb == "delete") {
				return false, "node '" + node + "' cannot read '" + a.Name + "', only its own Node object"
			}
		}
	}
	if a.IsResource && a.Group == "coordination.k8s.io" && a.Resource == "leases" {
		if a.Namespace != corev1.NamespaceNodeLease {
			return false, "can only access leases in the kube-node-lease system namespace"
		}
		if a.Verb != "create" && a.Name != node {
			return false, "can only access node lease with the same name as the requesting node"
		}
	}
	rules, _ := n.rbac.RoleRules("", "system:node")
	for i := range rules {
		if RuleAllows(a, &rules[i]) {
			return true, ""
		}
	}
	if n.extra(a) {
		return true, ""
	}
	return false, ""
}

// extra are rights of nodes that the recorded role does not name.
func (n *Node) extra(a *Attributes) bool {
	return RuleAllows(a, &rbacv1.PolicyRule{
		Verbs: []string{"get", "list", "watch"}, APIGroups: []string{""}, Resources: []string{"nodes", "services"},
	})
}

// readsOne says that a names one object to read.
func (n *Node) readsOne(a *Attributes) bool {
	return a.Subresource == "" && (a.Verb == "get" || a.Verb == "list" || a.Verb == "watch") && oneName(a) != ""
}

// oneName is the name an action is limited to by URL or field selector.
func oneName(a *Attributes) string {
	if a.Name != "" {
		return a.Name
	}
	sel, err := fields.ParseSelector(a.FieldSelector)
	if err != nil {
		return ""
	}
	name, _ := sel.RequiresExactMatch("metadata.name")
	return name
}

// related allows reading an object that a pod on node refers to.
func (n *Node) related(node string, a *Attributes) (bool, string) {
	if a.Subresource != "token" && !n.readsOne(a) {
		return false, "can only read resources of this type"
	}
	name := oneName(a)
	found := false
	pods := n.cache.Resource(corev1.SchemeGroupVersion.WithResource("pods"))
	watchcache.Each(pods, a.Namespace, func(p *corev1.Pod) bool {
		found = p.Spec.NodeName == node && refersTo(p, a.Resource, name)
		return !found
	})
	if !found {
		return false, "no relationship found between node '" + node + "' and this object"
	}
	return true, ""
}

// refersTo says whether pod names that object.
func refersTo(pod *corev1.Pod, resource, name string) bool {
	switch resource {
	case "serviceaccounts":
		return pod.Spec.ServiceAccountName == name
	case "secrets":
		return refersToSecret(pod, name)
	case "configmaps":
		return refersToConfigMap(pod, name)
	case "persistentvolumeclaims":
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == name ||
				v.Ephemeral != nil && pod.Name+"-"+v.Name == name {
				return true
			}
		}
	}
	return false
}

func refersToSecret(pod *corev1.Pod, name string) bool {
	for _, s := range pod.Spec.ImagePullSecrets {
		if s.Name == name {
			return true
		}
	}
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.Secret != nil && v.Secret.SecretName == name:
			return true
		case v.CSI != nil && v.CSI.NodePublishSecretRef != nil && v.CSI.NodePublishSecretRef.Name == name:
			return true
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				if s.Secret != nil && s.Secret.Name == name {
					return true
				}
			}
		}
	}
	return anyContainer(pod, func(env []corev1.EnvVar, from []corev1.EnvFromSource) bool {
		for _, e := range env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && e.ValueFrom.SecretKeyRef.Name == name {
				return true
			}
		}
		for _, f := range from {
			if f.SecretRef != nil && f.SecretRef.Name == name {
				return true
			}
		}
		return false
	})
}

func refersToConfigMap(pod *corev1.Pod, name string) bool {
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.ConfigMap != nil && v.ConfigMap.Name == name:
			return true
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				if s.ConfigMap != nil && s.ConfigMap.Name == name {
					return true
				}
			}
		}
	}
	return anyContainer(pod, func(env []corev1.EnvVar, from []corev1.EnvFromSource) bool {
		for _, e := range env {
			if e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil && e.ValueFrom.ConfigMapKeyRef.Name == name {
				return true
			}
		}
		for _, f := range from {
			if f.ConfigMapRef != nil && f.ConfigMapRef.Name == name {
				return true
			}
		}
		return false
	})
}

func anyContainer(pod *corev1.Pod, match func([]corev1.EnvVar, []corev1.EnvFromSource) bool) bool {
	for _, c := range pod.Spec.InitContainers {
		if match(c.Env, c.EnvFrom) {
			return true
		}
	}
	for _, c := range pod.Spec.Containers {
		if match(c.Env, c.EnvFrom) {
			return true
		}
	}
	for _, c := range pod.Spec.EphemeralContainers {
		if match(c.Env, c.EnvFrom) {
			return true
		}
	}
	return false
}
