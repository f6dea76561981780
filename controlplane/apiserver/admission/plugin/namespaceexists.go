package plugin

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/watchcache"
)

// namespaceExists refuses every write in a namespace that does not exist, not
// only creations.
type namespaceExists struct{ cache *watchcache.Cache }

func (*namespaceExists) Name() string { return "NamespaceExists" }

func (n *namespaceExists) Validate(ctx context.Context, a *admission.Attributes) error {
	if a.Namespace == "" || a.Operation == admission.Connect || is(a, "namespaces", a.Subresource) {
		return nil
	}
	_, err := lookup[*corev1.Namespace](ctx, n.cache, corev1.SchemeGroupVersion.WithResource("namespaces"), a.Namespace, a.Namespace)
	return err
}
