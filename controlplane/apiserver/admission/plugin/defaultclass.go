package plugin

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// defaultStorageClass gives a claim that names no class the default one.
type defaultStorageClass struct{ cache *watchcache.Cache }

func (*defaultStorageClass) Name() string { return "DefaultStorageClass" }

func (d *defaultStorageClass) Admit(_ context.Context, a *admission.Attributes) error {
	claim, ok := a.Object.(*corev1.PersistentVolumeClaim)
	if !ok || a.Operation != admission.Create || a.Subresource != "" || claim.Spec.StorageClassName != nil {
		return nil
	}
	if _, named := claim.Annotations[corev1.BetaStorageClassAnnotation]; named {
		return nil
	}
	claim.Spec.StorageClassName = newest(d.cache, storagev1.SchemeGroupVersion.WithResource("storageclasses"), func(c *storagev1.StorageClass) bool {
		return c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" ||
			c.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true"
	})
	return nil
}

// defaultIngressClass gives an Ingress that names no class the default one.
type defaultIngressClass struct{ cache *watchcache.Cache }

func (*defaultIngressClass) Name() string { return "DefaultIngressClass" }

func (d *defaultIngressClass) Admit(_ context.Context, a *admission.Attributes) error {
	ingress, ok := a.Object.(*networkingv1.Ingress)
	if !ok || a.Operation != admission.Create || a.Subresource != "" || ingress.Spec.IngressClassName != nil {
		return nil
	}
	if _, named := ingress.Annotations["kubernetes.io/ingress.class"]; named {
		return nil
	}
	ingress.Spec.IngressClassName = newest(d.cache, networkingv1.SchemeGroupVersion.WithResource("ingressclasses"), func(c *networkingv1.IngressClass) bool {
		return c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true"
	})
	return nil
}

// newest is the name of the class made last among those that are wanted, of
// several the first by name. Nil when there is none.
func newest[T registry.Object](cache *watchcache.Cache, gvr schema.GroupVersionResource, wanted func(T) bool) *string {
	var name string
	var made metav1.Time
	watchcache.Each(cache.Resource(gvr), "", func(class T) bool {
		t := class.GetCreationTimestamp()
		if wanted(class) && (name == "" || made.Before(&t) || made.Equal(&t) && class.GetName() < name) {
			name, made = class.GetName(), t
		}
		return true
	})
	if name == "" {
		return nil
	}
	return &name
}
