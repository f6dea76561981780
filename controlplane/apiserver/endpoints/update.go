package endpoints

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/equal"
)

// update replaces an object by the one in the request's body.
func (c *call) update() error {
	opts, err := c.updateOptions()
	if err != nil {
		return err
	}
	if c.out, err = c.negotiate(false); err != nil {
		return err
	}
	body := c.res.New()
	if err := c.readObject(body, c.gvk, opts.FieldValidation); err != nil {
		return err
	}
	c.res.Defaults(body)
	if err := c.namespaceOf(body); err != nil {
		return err
	}
	if err := c.checkName(body); err != nil {
		return err
	}
	c.dedupOwners(body)
	w := c.newWrite(opts, opts.FieldManager, opts.DryRun)
	rec, obj, created, err := w.change(c.ctx, c.res.Traits().CreateOnUpdate && c.sub == nil, func(_ context.Context, old registry.Object) (registry.Object, error) {
		obj := body
		if body = nil; obj == nil {
			// A second attempt starts from the request as it was sent.
			obj = c.res.New()
			if err := c.decodeAgain(obj); err != nil {
				return nil, err
			}
			c.res.Defaults(obj)
			if err := c.namespaceOf(obj); err != nil {
				return nil, err
			}
		}
		return c.managers.update(old, obj, w.manager, c.info.Subresource), nil
	})
	if err != nil {
		return err
	}
	if created {
		return c.answer(http.StatusCreated, rec, obj)
	}
	return c.answer(http.StatusOK, rec, obj)
}

func (c *call) newWrite(opts runtime.Object, manager string, dryRun []string) *write {
	return &write{call: c, opts: opts, manager: c.manager(manager), dryRun: len(dryRun) > 0}
}

// checkName compares the object's names with the URL's.
func (c *call) checkName(obj registry.Object) error {
	switch name := obj.GetName(); {
	case name == "":
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", c.info.Name))
	case name != c.info.Name:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, c.info.Name))
	}
	if ns := obj.GetNamespace(); c.namespaced && ns != "" && ns != c.info.Namespace {
		return apierrors.NewBadRequest(fmt.Sprintf("the namespace of the object (%s) does not match the namespace on the request (%s)", ns, c.info.Namespace))
	}
	return nil
}

// A maker makes the wanted object from the current one, which is shared and
// nil when there is none.
type maker func(ctx context.Context, old registry.Object) (registry.Object, error)

// change runs an update until it is stored or refused. The cached object is
// good for a first attempt; what an attempt on it finds wrong counts only if
// the store still holds it.
func (w *write) change(ctx context.Context, mayCreate bool, make maker) (*watchcache.Record, registry.Object, bool, error) {
	key, name := w.key(), w.info.Name
	current, fresh := w.store.Peek(key), false
	for {
		if current == nil && !fresh {
			var err error
			if current, err = w.fetch(ctx, key); err != nil {
				return nil, nil, false, err
			}
			fresh = true
		}
		if current == nil && !mayCreate {
			return nil, nil, false, apierrors.NewNotFound(w.gvr.GroupResource(), name)
		}
		rec, obj, err := w.attempt(ctx, key, current, make)
		lost := errors.Is(err, watchcache.ErrConflict) || errors.Is(err, watchcache.ErrNotFound) ||
			current == nil && errors.Is(err, watchcache.ErrExists)
		switch {
		case err == nil:
			return rec, obj, current == nil, nil
		case !lost && fresh:
			return nil, nil, false, w.fromCache(err, name)
		case ctx.Err() != nil:
			return nil, nil, false, ctx.Err()
		}
		latest, ferr := w.fetch(ctx, key)
		if ferr != nil {
			return nil, nil, false, ferr
		}
		if !lost && latest != nil && current != nil && latest.Revision == current.Revision {
			return nil, nil, false, w.fromCache(err, name)
		}
		current, fresh = latest, true
	}
}

// fetch is the store's record, nil when there is none.
func (w *write) fetch(ctx context.Context, key string) (*watchcache.Record, error) {
	rec, err := w.store.Fetch(ctx, key)
	if errors.Is(err, watchcache.ErrNotFound) {
		return nil, nil
	}
	return rec, w.fromCache(err, w.info.Name)
}

// attempt is one go at an update of current.
func (w *write) attempt(ctx context.Context, key string, current *watchcache.Record, make maker) (*watchcache.Record, registry.Object, error) {
	var old registry.Object
	if err := w.reserveForChange(current); err != nil {
		return nil, nil, err
	}
	if current != nil {
		var err error
		if old, err = w.object(current); err != nil {
			return nil, nil, err
		}
	}
	obj, err := make(ctx, old)
	if err != nil {
		return nil, nil, err
	}
	op, opts := admission.Update, updateOptionsOf(w.opts)
	if old == nil {
		op, opts = admission.Create, createOptionsOf(w.opts)
	}
	if old == nil {
		if err := w.mayCreate(w.info.Name); err != nil {
			return nil, nil, err
		}
	}
	attrs := w.attributes(op, opts, w.dryRun)
	if attrs.Object, err = w.admissionObject(obj); err != nil {
		return nil, nil, err
	}
	if old != nil {
		if attrs.Old, err = w.admissionObject(old); err != nil {
			return nil, nil, err
		}
	}
	if err := w.s.cfg.Admission.Admit(ctx, attrs); err != nil {
		return nil, nil, err
	}
	if scale, ok := attrs.Object.(*autoscalingv1.Scale); ok {
		w.sub.SetScale(obj, scale.Spec.Replicas)
	}
	w.dedupOwners(obj)
	if old == nil {
		if uid := obj.GetUID(); uid != "" {
			return nil, nil, w.otherUID(uid, "")
		}
		obj.SetResourceVersion("")
		return w.createNamed(ctx, obj)
	}
	if err := w.checkVersion(obj, old); err != nil {
		return nil, nil, err
	}
	finish, err := w.allocate(ctx, obj, old)
	if err != nil {
		return nil, nil, err
	}
	stored := false
	defer func() { finish(stored) }()
	if err := w.prepareUpdate(ctx, obj, old); err != nil {
		return nil, nil, err
	}
	if timesOnly(obj.GetManagedFields(), old.GetManagedFields()) && onlyManagedDiffer(obj, old) {
		obj.SetManagedFields(old.GetManagedFields())
	}
	if attrs.Object, err = w.admissionObject(obj); err != nil {
		return nil, nil, err
	}
	if err := w.s.cfg.Admission.Validate(ctx, attrs); err != nil {
		return nil, nil, err
	}
	if w.dryRun {
		obj, err := w.asStored(obj)
		return nil, obj, err
	}
	if deletesNow(obj, old) {
		rec, err := w.store.Delete(ctx, key, current)
		if err != nil {
			return nil, nil, err
		}
		stored = true
		w.s.release(old)
		return rec, obj, nil
	}
	hub, err := w.hub(obj)
	if err != nil {
		return nil, nil, err
	}
	rec, err := w.store.Update(ctx, key, current, hub)
	if err != nil {
		return nil, nil, err
	}
	stored = true
	return rec, obj, nil
}

// admissionObject is what admission sees of obj: through scale, its scale.
func (w *write) admissionObject(obj registry.Object) (registry.Object, error) {
	if w.sub != nil && w.sub.GetScale != nil {
		return w.scaleOf(obj)
	}
	return obj, nil
}

// checkVersion compares the object's resourceVersion and UID with what is stored.
func (w *write) checkVersion(obj, old registry.Object) error {
	gr, name := w.gvr.GroupResource(), w.info.Name
	// Only PUT takes the UID for a condition; a patch that changes it is invalid.
	if uid := obj.GetUID(); uid != "" && uid != old.GetUID() && w.info.Verb == "update" {
		return w.otherUID(uid, old.GetUID())
	}
	rv := obj.GetResourceVersion()
	if rv != "" {
		if _, err := strconv.ParseUint(rv, 10, 64); err != nil {
			return err
		}
	}
	switch {
	case rv == "" || rv == "0":
		if w.res.Traits().Conditional && (w.sub == nil || w.sub.GetScale == nil && w.custom == nil) {
			return apierrors.NewInvalid(schema.GroupKind{Group: w.gvr.Group, Kind: w.gvr.Resource}, name, field.ErrorList{
				field.Invalid(field.NewPath("metadata", "resourceVersion"), uint64(0), "must be specified for an update")})
		}
		obj.SetResourceVersion(old.GetResourceVersion())
	case rv != old.GetResourceVersion():
		return apierrors.NewConflict(gr, name, errors.New(lockMessage))
	}
	return nil
}

// otherUID is a write of an object that is another one by now. Upstream shows
// its store's key, which a dry run has without its root.
func (w *write) otherUID(want, have types.UID) error {
	root := "/registry"
	if w.dryRun {
		root = ""
	}
	return apierrors.NewConflict(w.gvr.GroupResource(), w.info.Name,
		fmt.Errorf("StorageError: invalid object, Code: 4, Key: %s/%s/%s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: %v, UID in object meta: %v",
			root, w.res.Storage().Prefix, w.key(), want, have))
}

// prepareUpdate restores the fields of obj that an update cannot change, and
// validates it.
func (w *write) prepareUpdate(ctx context.Context, obj, old registry.Object) error {
	if err := w.namespaceOf(obj); err != nil {
		return err
	}
	if errs := registry.ValidateExponents(obj); len(errs) > 0 {
		return invalid(w.faulty(), obj.GetName(), errs)
	}
	obj.SetGeneration(old.GetGeneration())
	if w.sub != nil && w.sub.Prepare != nil {
		w.sub.Prepare(ctx, obj, old)
	} else {
		w.res.PrepareObject(ctx, obj, old)
	}
	if w.sub != nil && len(obj.GetLabels()) == 0 && len(old.GetLabels()) > 0 {
		whole := copyOf(obj) // its parts may be old's
		w.res.Defaults(whole)
		obj.SetLabels(whole.GetLabels()) // some follow from the spec, which is whole only now
	}
	if obj.GetUID() == "" {
		obj.SetUID(old.GetUID())
	}
	if t := old.GetCreationTimestamp(); !t.IsZero() {
		obj.SetCreationTimestamp(t)
	}
	if t := old.GetDeletionTimestamp(); t != nil {
		obj.SetDeletionTimestamp(t)
	}
	if g := old.GetDeletionGracePeriodSeconds(); g != nil && obj.GetDeletionGracePeriodSeconds() == nil {
		obj.SetDeletionGracePeriodSeconds(g)
	}
	var errs field.ErrorList
	if w.sub == nil {
		errs = append(w.res.CheckMetadata(obj, old), w.res.ValidateObject(ctx, obj, old)...)
	} else if errs = registry.ValidateMetadataUpdate(obj, old, w.namespaced); w.sub.Validate != nil {
		errs = append(errs, w.sub.Validate(ctx, obj, old)...)
	}
	if len(errs) > 0 {
		return invalid(w.faulty(), obj.GetName(), errs)
	}
	if w.sub == nil {
		for _, text := range w.res.Warnings(ctx, obj, old) {
			request.Warn(ctx, text)
		}
	}
	return nil
}

// onlyManagedDiffer says that a write would change nothing but managedFields.
func onlyManagedDiffer(obj, old registry.Object) bool {
	own := obj.GetManagedFields()
	obj.SetManagedFields(old.GetManagedFields())
	defer obj.SetManagedFields(own)
	return equal.Objects(obj, old)
}

// deletesNow says that an update has taken away the last thing that kept a
// deleted object.
func deletesNow(obj, old registry.Object) bool {
	if old.GetDeletionTimestamp() == nil || len(obj.GetFinalizers()) > 0 {
		return false
	}
	if g := old.GetDeletionGracePeriodSeconds(); g != nil && *g > 0 {
		return false
	}
	return !namespaceKept(obj)
}

// updateOptionsOf are what admission sees of a patch's options: those of an
// update.
func updateOptionsOf(opts runtime.Object) runtime.Object {
	o, ok := opts.(*metav1.PatchOptions)
	if !ok {
		return opts
	}
	return &metav1.UpdateOptions{TypeMeta: metav1.TypeMeta{Kind: "UpdateOptions", APIVersion: "meta.k8s.io/v1"},
		DryRun: o.DryRun, FieldManager: o.FieldManager, FieldValidation: o.FieldValidation}
}

// createOptionsOf are a write's options for the case that it creates.
func createOptionsOf(opts runtime.Object) runtime.Object {
	out := &metav1.CreateOptions{TypeMeta: metav1.TypeMeta{Kind: "CreateOptions", APIVersion: "meta.k8s.io/v1"}}
	switch o := opts.(type) {
	case *metav1.UpdateOptions:
		out.DryRun, out.FieldManager, out.FieldValidation = o.DryRun, o.FieldManager, o.FieldValidation
	case *metav1.PatchOptions:
		out.DryRun, out.FieldManager, out.FieldValidation = o.DryRun, o.FieldManager, o.FieldValidation
	case *metav1.CreateOptions:
		return o
	}
	return out
}
