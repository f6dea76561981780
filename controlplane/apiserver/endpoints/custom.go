package endpoints

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/watchcache"
)

// setCustom fills in what only custom kinds need.
func (e *entry) setCustom(res registry.Resource) {
	custom, ok := res.(registry.Custom)
	if !ok {
		return
	}
	e.custom = custom
	e.served = &watchcache.View{Make: func(obj registry.Object) (registry.Object, error) {
		return custom.Served(obj.(*unstructured.Unstructured))
	}}
}

func (e *entry) customHub(obj registry.Object) (registry.Object, error) {
	stored, err := e.custom.Stored(obj.(*unstructured.Unstructured))
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return stored, nil
}

// selectable is what selectors look at: custom objects as they are served.
func (e *entry) selectable() func(*watchcache.Record) (registry.Object, error) {
	if e.custom == nil {
		return nil
	}
	return e.object
}

// writeCustom answers with a record's JSON.
func (c *call) writeCustom(code int, rec *watchcache.Record) error {
	_, data, err := rec.See(c.served)
	if err != nil {
		return err
	}
	if c.out.pretty {
		if data, err = indent(bytes.Clone(data)); err != nil {
			return err
		}
		writeBody(c.w, c.r, code, typeJSON, data)
		return nil
	}
	writeBody(c.w, c.r, code, typeJSON, data, newline)
	return nil
}

// mayCreate refuses new objects of a kind that is on its way out.
func (c *call) mayCreate(name string) error {
	if c.custom == nil || !c.custom.Ending() {
		return nil
	}
	return apierrors.NewForbidden(c.gvr.GroupResource(), name, errors.New("create not allowed while custom resource definition is terminating"))
}

// coerce makes of what a client has sent an object of the kind. The fields that
// were dropped are reported as faults.
func (c *call) coerce(obj runtime.Object, wanted bool) (strict []error, err error) {
	u, ok := obj.(*unstructured.Unstructured)
	if c.custom == nil || !ok {
		return nil, nil
	}
	unknown, err := c.custom.Coerce(u, wanted)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", c.gvk.Kind, c.gvk.Version, c.gvk.Kind, err))
	}
	for _, path := range unknown {
		strict = append(strict, fmt.Errorf("unknown field %q", path))
	}
	return strict, nil
}

// decodeCustom reads a document into an object that can be of any form. Its
// kind and version must be there, and be those of the endpoint.
func decodeCustom(body []byte, u *unstructured.Unstructured, gvk schema.GroupVersionKind, wantStrict bool) (strict []error, err error) {
	u.Object = nil
	strict, err = kjson.UnmarshalStrict(body, &u.Object)
	if !wantStrict {
		strict = nil
	}
	found := u.GroupVersionKind()
	switch {
	case err != nil:
		return nil, unrecognised(fmt.Errorf("couldn't get version/kind; json parse error: %w", err), gvk, body)
	case u.GetKind() == "":
		return nil, unrecognised(fmt.Errorf("Object 'Kind' is missing in '%s'", bytes.TrimSpace(body)), gvk, body)
	case found.GroupVersion() != gvk.GroupVersion():
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)",
			u.GetAPIVersion(), gvk.GroupVersion()))
	case found.Kind != gvk.Kind:
		return nil, otherKind(u, gvk)
	}
	return strict, nil
}

// otherKind refuses an object that is not of the endpoint's kind.
func otherKind(u *unstructured.Unstructured, gvk schema.GroupVersionKind) error {
	var errs field.ErrorList
	if kind := u.GetKind(); kind != gvk.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), kind, "must be "+gvk.Kind))
	}
	if v := u.GetAPIVersion(); v != gvk.GroupVersion().String() {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), v, "must be "+gvk.GroupVersion().String()))
	}
	return invalid(u.GroupVersionKind().GroupKind(), u.GetName(), errs)
}

// customManager tracks who owns which field of a kind without a Go type.
func (e *entry) customManager(sub string, reset map[fieldpath.APIVersion]fieldpath.Filter) (*managedfields.FieldManager, error) {
	types, err := e.custom.Types()
	if err != nil {
		return nil, err
	}
	own := customVersions{e.custom}
	return managedfields.NewDefaultCRDFieldManager(types, own, own, own, e.gvk, e.gvr.GroupVersion(), sub, reset)
}

// customVersions converts, defaults and makes custom objects for the merge
// machinery.
type customVersions struct{ registry.Custom }

func (v customVersions) Convert(in, out, context any) error { return errNoConversion }

func (v customVersions) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	u, ok := in.(*unstructured.Unstructured)
	if !ok {
		return nil, errNoConversion
	}
	to, ok := gv.KindForGroupVersionKinds([]schema.GroupVersionKind{u.GroupVersionKind()})
	if !ok {
		return nil, errNoConversion
	}
	if to.GroupVersion() == u.GroupVersionKind().GroupVersion() {
		return u, nil
	}
	return v.Custom.Convert(u.DeepCopy(), to.GroupVersion())
}

func (v customVersions) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

func (v customVersions) Default(obj runtime.Object) {
	if u, ok := obj.(*unstructured.Unstructured); ok && u.GroupVersionKind() == v.GVK() {
		v.Defaults(u)
	}
}

func (v customVersions) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	return u, nil
}

// DeleteAll deletes every object of a kind, asking nobody.
func (s *Server) DeleteAll(ctx context.Context, gvr schema.GroupVersionResource) error {
	e := s.table.Load().entries[gvr]
	if e == nil || e.store == nil {
		return noResource()
	}
	c := &call{s: s, ctx: ctx, entry: e, info: &request.Info{IsResource: true, Verb: "deletecollection", Group: gvr.Group, Version: gvr.Version, Resource: gvr.Resource}}
	found, err := e.store.List(ctx, watchcache.Query{})
	if err != nil {
		return err
	}
	var errs []error
	for _, rec := range found.Records {
		d := &deletion{call: c, opts: &metav1.DeleteOptions{}, admitted: true}
		namespace, name, ok := strings.Cut(rec.Key, "/")
		if !ok {
			namespace, name = "", rec.Key
		}
		if _, _, _, err := d.run(ctx, namespace, name); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return utilerrors.NewAggregate(errs)
}

// ChangeStatus lets change write the status of an object of cluster scope, as
// the API server itself. It is asked again when somebody was faster.
func (s *Server) ChangeStatus(ctx context.Context, gvr schema.GroupVersionResource, name string, change func(registry.Object)) error {
	e := s.table.Load().entries[gvr]
	const me = "kube-apiserver"
	info := &request.Info{IsResource: true, Verb: "update", Group: gvr.Group, Version: gvr.Version, Resource: gvr.Resource, Subresource: "status", Name: name}
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	c := &call{s: s, ctx: ctx, entry: e, info: info, sub: e.subs["status"]}
	w := &write{call: c, opts: &metav1.UpdateOptions{}, manager: me}
	_, _, _, err := w.change(ctx, false, func(_ context.Context, old registry.Object) (registry.Object, error) {
		obj := copyOf(old)
		change(obj)
		return e.managers.update(old, obj, me, "status"), nil
	})
	return err
}
