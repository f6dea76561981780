package endpoints

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"knarr/controlplane/apiserver/connect"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// serveSub serves a subresource: by a handler from elsewhere, as an action, or
// as a view of its object.
func (c *call) serveSub() error {
	name := c.info.Subresource
	if c.custom != nil && c.subs[name] == nil {
		return apierrors.NewNotFound(c.gvr.GroupResource(), c.info.Name)
	}
	if c.info.Name == "" || c.namespaced == (c.info.Namespace == "") && c.gvr.Resource != "namespaces" {
		return noResource()
	}
	c.sub = c.subs[name]
	if c.sub == nil {
		return noResource()
	}
	full := c.qualified + "/" + name
	if h := c.s.cfg.Special[full]; h != nil {
		h.ServeHTTP(c.w, c.r)
		return nil
	}
	if connect.Serves(full) {
		return c.connect()
	}
	if !slices.Contains(c.sub.Verbs, c.info.Verb) {
		return c.notAllowed()
	}
	if err := c.routed(); err != nil {
		return err
	}
	if v := c.s.cfg.Virtual[full]; v != nil {
		return c.bounded(func(c *call) error { return c.serveVirtual(v) })
	}
	if do := action(full); do != nil {
		return c.bounded(do)
	}
	return c.bounded((*call).serveView)
}

// serveView serves a subresource that is a view of its object.
func (c *call) serveView() error {
	switch c.info.Verb {
	case "get":
		return c.get()
	case "update":
		if c.sub.SetScale != nil {
			return c.updateScale()
		}
		return c.update()
	case "patch":
		return c.patch()
	}
	return c.notAllowed()
}

// newBody is an object of a kind that has no endpoint of its own.
func newBody(gvk schema.GroupVersionKind) (registry.Object, error) {
	o, err := scheme.Scheme.New(gvk)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", gvk.Kind, err)
	}
	obj, ok := o.(registry.Object)
	if !ok {
		return nil, fmt.Errorf("%s has no metadata", gvk.Kind)
	}
	return obj, nil
}

// scaleOf is the scale view of an object.
func (c *call) scaleOf(obj registry.Object) (*autoscalingv1.Scale, error) {
	scale, err := c.sub.GetScale(obj)
	if err != nil {
		return nil, err
	}
	scale.Name, scale.Namespace, scale.UID = obj.GetName(), obj.GetNamespace(), obj.GetUID()
	scale.ResourceVersion, scale.CreationTimestamp = obj.GetResourceVersion(), obj.GetCreationTimestamp()
	return scale, nil
}

func (c *call) writeScale(code int, rec *watchcache.Record) error {
	obj, err := c.object(rec)
	if err != nil {
		return err
	}
	return c.answerScale(code, nil, obj)
}

func (c *call) answerScale(code int, rec *watchcache.Record, obj registry.Object) error {
	if rec != nil {
		return c.writeScale(code, rec)
	}
	scale, err := c.scaleOf(obj)
	if err != nil {
		return err
	}
	gvk := c.sub.Kind
	if gvk.Empty() || gvk == c.gvk {
		gvk = autoscalingv1.SchemeGroupVersion.WithKind("Scale")
	}
	if c.out.as == "PartialObjectMetadata" {
		writeObject(c.w, c.r, c.out, code, partial(scale), c.viewKind(c.out.as))
		return nil
	}
	if c.out.as != "" {
		return notAcceptable()
	}
	writeObject(c.w, c.r, c.out, code, scale, gvk)
	return nil
}

func (c *call) updateScale() error {
	opts, err := c.updateOptions()
	if err != nil {
		return err
	}
	if c.out, err = c.negotiate(false); err != nil {
		return err
	}
	want := &autoscalingv1.Scale{}
	if err := c.readObject(want, autoscalingv1.SchemeGroupVersion.WithKind("Scale"), opts.FieldValidation); err != nil {
		return err
	}
	if err := c.checkName(want); err != nil {
		return err
	}
	w := c.newWrite(opts, opts.FieldManager, opts.DryRun)
	rec, obj, _, err := w.change(c.ctx, false, func(_ context.Context, old registry.Object) (registry.Object, error) {
		return w.scaled(old, want)
	})
	if err != nil {
		return err
	}
	return c.answerScale(http.StatusOK, rec, obj)
}

// scaled is old with want's replicas.
func (w *write) scaled(old registry.Object, want *autoscalingv1.Scale) (registry.Object, error) {
	if want.Spec.Replicas < 0 && w.custom == nil { // a custom kind's own rules say the same

		return nil, apierrors.NewInvalid(autoscalingv1.SchemeGroupVersion.WithKind("Scale").GroupKind(), want.Name, field.ErrorList{
			field.Invalid(field.NewPath("spec", "replicas"), want.Spec.Replicas, "must be greater than or equal to 0").WithOrigin("minimum")})
	}
	if rv := want.ResourceVersion; rv != "" && rv != old.GetResourceVersion() {
		return nil, apierrors.NewConflict(w.gvr.GroupResource(), w.info.Name, errors.New(lockMessage))
	}
	if want.UID != "" && want.UID != old.GetUID() {
		return nil, w.otherUID(want.UID, old.GetUID())
	}
	obj := copyOf(old)
	w.sub.SetScale(obj, want.Spec.Replicas)
	return w.managers.update(old, obj, w.manager, "scale"), nil
}

// makeScale patches the scale view and carries the result into the object.
func (p *patch) makeScale(old registry.Object) (registry.Object, error) {
	scale, err := p.scaleOf(old)
	if err != nil {
		return nil, err
	}
	kind := autoscalingv1.SchemeGroupVersion.WithKind("Scale")
	var want *autoscalingv1.Scale
	if p.want != nil {
		data, err := encodeJSON(p.want.Object, false)
		if err != nil {
			return nil, err
		}
		if p.want.GetKind() == "" || p.want.GetAPIVersion() == "" {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid object type: %v", p.want.GroupVersionKind()))
		}
		want = &autoscalingv1.Scale{}
		if _, err := decodePatched(data, want); err != nil {
			return nil, p.invalid(err)
		}
	} else {
		if scale.ManagedFields, err = p.scaleOwners(old); err != nil {
			return nil, err
		}
		obj, err := p.merged(scale, kind, func() registry.Object { return &autoscalingv1.Scale{} })
		if err != nil {
			return nil, err
		}
		want = obj.(*autoscalingv1.Scale)
	}
	return p.scaled(old, want)
}

// scaleOwners are the owners of obj's replicas, as a patch of its scale sees them.
func (e *entry) scaleOwners(obj registry.Object) ([]metav1.ManagedFieldsEntry, error) {
	at := fieldpath.MakePathOrDie("spec", "replicas")
	if path := e.subs["scale"].ReplicasPath; path != nil {
		at = fieldpath.Path{}
		for _, name := range path {
			at = append(at, fieldpath.PathElement{FieldName: &name})
		}
	}
	version := e.gvr.GroupVersion()
	return managedfields.NewScaleHandler(obj.GetManagedFields(), version, managedfields.ResourcePathMappings{version.String(): at}).ToSubresource()
}
