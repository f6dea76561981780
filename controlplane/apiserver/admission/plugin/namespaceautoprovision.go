package plugin

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// namespaceAutoProvision makes the namespace that something is created in.
type namespaceAutoProvision struct{ cache *watchcache.Cache }

func (*namespaceAutoProvision) Name() string { return "NamespaceAutoProvision" }

func (n *namespaceAutoProvision) Admit(ctx context.Context, a *admission.Attributes) error {
	if a.DryRun || a.Operation != admission.Create || a.Namespace == "" || is(a, "namespaces", "") {
		return nil
	}
	_, err := lookup[*corev1.Namespace](ctx, n.cache, corev1.SchemeGroupVersion.WithResource("namespaces"), a.Namespace, a.Namespace)
	if !apierrors.IsNotFound(err) {
		return err
	}
	if err := n.provide(ctx, a.Namespace); err != nil {
		return forbidden(a, err)
	}
	return nil
}

func (n *namespaceAutoProvision) provide(ctx context.Context, name string) error {
	gvk := corev1.SchemeGroupVersion.WithKind("Namespace")
	for _, res := range registry.Resources {
		if res.GVK() != gvk {
			continue
		}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: uuid.NewUUID(), CreationTimestamp: metav1.NewTime(time.Now().Truncate(time.Second)),
		}}
		res.Defaults(ns)
		res.PrepareObject(ctx, ns, nil)
		if wrong := res.CheckMetadata(ns, nil); len(wrong) > 0 {
			return apierrors.NewInvalid(gvk.GroupKind(), name, wrong)
		}
		_, err := n.cache.Resource(res.GVR()).Create(ctx, name, ns)
		if errors.Is(err, watchcache.ErrExists) {
			return nil
		}
		return err
	}
	return nil
}
