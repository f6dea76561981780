package plugin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/watchcache"
)

// namespaceLifecycle keeps objects out of namespaces that do not exist or are
// on their way out, and keeps the namespaces that a cluster cannot lose.
type namespaceLifecycle struct{ cache *watchcache.Cache }

var immortal = map[string]bool{"default": true, "kube-system": true, "kube-public": true}

func (*namespaceLifecycle) Name() string { return "NamespaceLifecycle" }

func (n *namespaceLifecycle) Admit(ctx context.Context, a *admission.Attributes) error {
	if a.Operation == admission.Delete && is(a, "namespaces", "") && immortal[a.Name] {
		return forbidden(a, fmt.Errorf("this namespace may not be deleted"))
	}
	if a.Operation != admission.Create || a.Namespace == "" || is(a, "namespaces", "") {
		return nil
	}
	// A question is answered everywhere, so that it does not tell which
	// namespaces there are.
	if a.Resource.Group == "authorization.k8s.io" && a.Resource.Resource == "localsubjectaccessreviews" {
		return nil
	}
	ns, err := lookup[*corev1.Namespace](ctx, n.cache, corev1.SchemeGroupVersion.WithResource("namespaces"), a.Namespace, a.Namespace)
	if err != nil {
		return err
	}
	if ns.Status.Phase != corev1.NamespaceTerminating && ns.DeletionTimestamp == nil {
		return nil
	}
	refusal := apierrors.NewForbidden(a.Resource.GroupResource(), a.DisplayName(),
		fmt.Errorf("unable to create new content in namespace %s because it is being terminated", a.Namespace))
	refusal.ErrStatus.Details.Causes = append(refusal.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    corev1.NamespaceTerminatingCause,
		Message: fmt.Sprintf("namespace %s is being terminated", a.Namespace),
		Field:   "metadata.namespace",
	})
	return refusal
}
