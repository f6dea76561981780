// Package match says which webhooks and policies concern a write, and shows
// them the write in the version they asked for. It reads namespaces in the
// cache and writes nothing.
package match

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/admission"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/watchcache"
)

// A Request is one write as webhooks and policies see it.
type Request struct {
	*admission.Attributes
	cache *watchcache.Cache
	forms []admission.Form
	known bool // forms has been asked for
}

// NewRequest looks at a write.
func NewRequest(a *admission.Attributes, cache *watchcache.Cache) *Request {
	return &Request{Attributes: a, cache: cache}
}

// A Target is the version of a write that was asked for.
type Target struct {
	admission.Form
	other bool // than the write's own
}

// own is the version of the write itself.
func (r *Request) own() Target { return Target{Form: r.Form()} }

func (r *Request) equivalents() []admission.Form {
	if !r.known {
		r.forms, r.known = r.Served.Forms(r.Resource, r.Subresource), true
	}
	return r.forms
}

// configurations are the kinds that no webhook and no policy applies to: one that
// refused its own removal could not be removed.
var configurations = map[string]bool{
	"ValidatingWebhookConfiguration": true, "MutatingWebhookConfiguration": true,
	"ValidatingAdmissionPolicy": true, "ValidatingAdmissionPolicyBinding": true,
	"MutatingAdmissionPolicy": true, "MutatingAdmissionPolicyBinding": true,
}

// Exempt says that nothing configured may interfere with the write.
func Exempt(a *admission.Attributes) bool {
	return a.Kind.Group == "admissionregistration.k8s.io" && configurations[a.Kind.Kind]
}

// View is the write in the version t: copies, with their kinds.
func (r *Request) View(t Target) (*upstream.VersionedAttributes, error) {
	v := &upstream.VersionedAttributes{
		Attributes: upstream.NewAttributesRecord(r.Object, r.Old, r.Kind, r.Namespace, r.Name, r.Resource, r.Subresource,
			upstream.Operation(r.Operation), options(r.Options), r.DryRun, r.User),
		VersionedKind: t.Kind,
	}
	var err error
	if v.VersionedObject, err = r.see(t, r.Object); err == nil {
		v.VersionedOldObject, err = r.see(t, r.Old)
	}
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return v, nil
}

func (r *Request) see(t Target, obj runtime.Object) (runtime.Object, error) {
	if obj == nil {
		return nil, nil
	}
	obj = obj.DeepCopyObject()
	if t.other {
		var err error
		if obj, err = r.Served.Convert(obj, r.Form(), t.Form); err != nil {
			return nil, err
		}
	}
	obj.GetObjectKind().SetGroupVersionKind(t.Kind)
	return obj, nil
}

// Accept makes obj, in version t, the incoming object.
func (r *Request) Accept(t Target, obj runtime.Object) error {
	if t.other {
		var err error
		if obj, err = r.Served.Convert(obj, t.Form, r.Form()); err != nil {
			return apierrors.NewInternalError(err)
		}
	}
	kind := schema.GroupVersionKind{}
	if _, custom := obj.(runtime.Unstructured); custom {
		kind = r.Kind
	}
	obj.GetObjectKind().SetGroupVersionKind(kind)
	r.Replace(obj)
	return nil
}

// options are the request's with their kind.
func options(o runtime.Object) runtime.Object {
	if o == nil {
		return nil
	}
	kind := ""
	switch o.(type) {
	case *metav1.CreateOptions:
		kind = "CreateOptions"
	case *metav1.UpdateOptions:
		kind = "UpdateOptions"
	case *metav1.PatchOptions:
		kind = "PatchOptions"
	case *metav1.DeleteOptions:
		kind = "DeleteOptions"
	}
	o = o.DeepCopyObject()
	o.GetObjectKind().SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind(kind))
	return o
}

// NamespaceOf is the Namespace that the write takes place in, nil when it is in
// none. Writes of Namespaces are in none.
func (r *Request) NamespaceOf(ctx context.Context) (*corev1.Namespace, error) {
	if r.Namespace == "" || r.Kind == corev1.SchemeGroupVersion.WithKind("Namespace") {
		return nil, nil
	}
	return r.namespace(ctx)
}

func (r *Request) namespace(ctx context.Context) (*corev1.Namespace, error) {
	gvr := corev1.SchemeGroupVersion.WithResource("namespaces")
	resource := r.cache.Resource(gvr)
	if ns, ok := watchcache.Read[*corev1.Namespace](resource, r.Namespace); ok {
		return ns, nil
	}
	// It may have been made a moment ago, by way of another server.
	rec, err := resource.Get(ctx, r.Namespace, "")
	if errors.Is(err, watchcache.ErrNotFound) {
		return nil, apierrors.NewNotFound(gvr.GroupResource(), r.Namespace)
	} else if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	obj, err := rec.Object()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return obj.(*corev1.Namespace), nil
}

// namespaceLabels are those of the write's namespace; a Namespace that is
// written has those it brings along.
func (r *Request) namespaceLabels(ctx context.Context) (labels.Set, error) {
	if r.Resource.Resource == "namespaces" && r.Subresource == "" && (r.Operation == admission.Create || r.Operation == admission.Update) {
		if o, ok := r.Object.(metav1.Object); ok {
			return o.GetLabels(), nil
		}
	}
	ns, err := r.namespace(ctx)
	if err != nil {
		return nil, err
	}
	return ns.Labels, nil
}
