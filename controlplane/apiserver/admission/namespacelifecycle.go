package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver/endpoints"
	"knarr/controlplane/apiserver/watchcache"
)

// namespaceLifecycle keeps objects out of namespaces that do not exist or are
// on their way out, and keeps the namespaces that a cluster cannot lose.
type namespaceLifecycle struct{ cache *watchcache.Cache }

var immortal = map[string]bool{"default": true, "kube-system": true, "kube-public": true}

func (*namespaceLifecycle) Name() string { return "NamespaceLifecycle" }

func (n *namespaceLifecycle) Admit(ctx context.Context, a *endpoints.Attributes) error {
	if a.Operation == endpoints.Delete && is(a, "namespaces", "") && immortal[a.Name] {
		return forbidden(a, fmt.Errorf("this namespace may not be deleted"))
	}
	if a.Operation != endpoints.Create || a.Namespace == "" || is(a, "namespaces", "") {
		return nil
	}
	switch a.Resource.Resource { // questions are asked even where nothing may be made
	case "localsubjectaccessreviews":
		return nil
	}
	namespaces := n.cache.Resource(corev1.SchemeGroupVersion.WithResource("namespaces"))
	ns, ok := watchcache.Read[*corev1.Namespace](namespaces, a.Namespace)
	if !ok {
		// It may have been made a moment ago: ask the store.
		rec, err := namespaces.Get(ctx, a.Namespace, "")
		if err != nil {
			return apierrors.NewNotFound(corev1.Resource("namespaces"), a.Namespace)
		}
		o, err := rec.Object()
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		ns = o.(*corev1.Namespace)
	}
	if ns.Status.Phase != corev1.NamespaceTerminating && ns.DeletionTimestamp == nil {
		return nil
	}
	err := apierrors.NewForbidden(a.Resource.GroupResource(), a.Name,
		fmt.Errorf("unable to create new content in namespace %s because it is being terminated", a.Namespace))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    corev1.NamespaceTerminatingCause,
		Message: fmt.Sprintf("namespace %s is being terminated", a.Namespace),
		Field:   "metadata.namespace",
	})
	return err
}
