package endpoints

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/endpoints/ownership"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/watchcache"
)

// create stores a new object from the request's body.
func (c *call) create() error {
	opts, err := c.createOptions()
	if err != nil {
		return err
	}
	if c.out, err = c.negotiate(false); err != nil {
		return err
	}
	obj := c.res.New()
	if err := c.readObject(obj, c.gvk, opts.FieldValidation); err != nil {
		return err
	}
	c.res.Defaults(obj)
	if err := c.namespaceOf(obj); err != nil {
		return err
	}
	c.dedupOwners(obj)
	clearServerMetadata(obj)
	if err := c.mayCreate(obj.GetName()); err != nil {
		return err
	}
	w := &write{call: c, opts: opts, manager: c.manager(opts.FieldManager), dryRun: len(opts.DryRun) > 0}
	obj = c.managers.update(nil, obj, w.manager, "")
	attrs := c.attributes(admission.Create, opts, w.dryRun)
	attrs.Name, attrs.Object = obj.GetName(), obj
	if err := c.s.cfg.Admission.Admit(c.ctx, attrs); err != nil {
		return err
	}
	c.dedupOwners(obj)
	rec, obj, err := w.create(c.ctx, obj)
	if err != nil {
		return err
	}
	return c.answer(http.StatusCreated, rec, obj)
}

// answer writes what a write has made: the record, or the object a dry run
// would have stored.
func (c *call) answer(code int, rec *watchcache.Record, obj registry.Object) error {
	if rec != nil {
		return c.writeRecord(code, rec)
	}
	return c.write(code, obj)
}

// clearServerMetadata takes away the metadata that only the server sets.
func clearServerMetadata(obj registry.Object) {
	obj.SetCreationTimestamp(metav1.Time{})
	obj.SetUID("")
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetSelfLink("")
}

// namespaceOf makes the object's namespace the request's.
func (c *call) namespaceOf(obj registry.Object) error {
	want := ""
	if c.namespaced {
		want = c.info.Namespace
	}
	switch got := obj.GetNamespace(); {
	case got == want:
	case got == "":
		obj.SetNamespace(want)
	case want == "":
		obj.SetNamespace("")
	default:
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	return nil
}

// dedupOwners drops owner references that are there twice.
func (c *call) dedupOwners(obj registry.Object) {
	refs := obj.GetOwnerReferences()
	if len(refs) < 2 {
		return
	}
	seen := make(map[owner]bool, len(refs))
	kept := make([]metav1.OwnerReference, 0, len(refs))
	var twice []string
	for i := range refs {
		o := ownerOf(&refs[i])
		if seen[o] {
			twice = append(twice, string(refs[i].UID))
			continue
		}
		seen[o] = true
		kept = append(kept, refs[i])
	}
	if len(twice) == 0 {
		return
	}
	obj.SetOwnerReferences(kept)
	for _, uid := range twice {
		request.Warn(c.ctx, ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: "+uid)
	}
}

// An owner is an OwnerReference that can be compared.
type owner struct {
	uid                   types.UID
	name, kind, version   string
	controls, controlsSet bool
	blocks, blocksSet     bool
}

func ownerOf(r *metav1.OwnerReference) owner {
	valueOf := func(b *bool) (bool, bool) { return b != nil && *b, b != nil }
	o := owner{uid: r.UID, name: r.Name, kind: r.Kind, version: r.APIVersion}
	o.controls, o.controlsSet = valueOf(r.Controller)
	o.blocks, o.blocksSet = valueOf(r.BlockOwnerDeletion)
	return o
}

// A write is what creates, updates and patches share.
type write struct {
	*call
	opts    runtime.Object
	manager string
	dryRun  bool
}

// nameTries is how often a generated name is tried.
const nameTries = 8

// create runs the last part of a creation: names, preparation, validation,
// storage. obj is given away.
func (w *write) create(ctx context.Context, obj registry.Object) (*watchcache.Record, registry.Object, error) {
	generate := obj.GetGenerateName()
	if obj.GetName() != "" || generate == "" {
		return w.createNamed(ctx, obj)
	}
	var err error
	for range nameTries {
		var rec *watchcache.Record
		// A try that loses must leave the object as it was.
		try := copyOf(obj)
		try.SetName(generatedName(generate))
		rec, try, err = w.createNamed(ctx, try)
		if err == nil {
			return rec, try, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, nil, err
		}
	}
	return nil, nil, apierrors.NewGenerateNameConflict(w.gvr.GroupResource(), generate, 1)
}

// generatedName leaves room for its suffix in a DNS label.
func generatedName(base string) string {
	const suffix, longest = 5, 63
	if len(base) > longest-suffix {
		base = base[:longest-suffix]
	}
	return base + rand.String(suffix)
}

func (w *write) createNamed(ctx context.Context, obj registry.Object) (*watchcache.Record, registry.Object, error) {
	clearServerMetadata(obj)
	obj.SetCreationTimestamp(metav1.Time{Time: time.Now().Truncate(time.Second)})
	obj.SetUID(types.UID(uuid.NewUUID()))
	if err := w.namespaceOf(obj); err != nil {
		return nil, nil, err
	}
	if errs := registry.ValidateExponents(obj); len(errs) > 0 {
		return nil, nil, invalid(w.faulty(), obj.GetName(), errs)
	}
	w.res.PrepareObject(ctx, obj, nil)

	finish, err := w.allocate(ctx, obj, nil)
	if err != nil {
		return nil, nil, err
	}
	stored := false
	defer func() { finish(stored) }()
	if errs := w.validateNew(ctx, obj); len(errs) > 0 {
		return nil, nil, invalid(w.faulty(), obj.GetName(), errs)
	}
	for _, text := range w.res.Warnings(ctx, obj, nil) {
		request.Warn(ctx, text)
	}
	attrs := w.attributes(admission.Create, w.opts, w.dryRun)
	attrs.Name, attrs.Object = obj.GetName(), obj
	if err := w.s.cfg.Admission.Validate(ctx, attrs); err != nil {
		return nil, nil, err
	}
	key := w.keyOf(obj.GetNamespace(), obj.GetName())
	if w.dryRun {
		if _, err := w.store.Get(ctx, key, ""); err == nil {
			return nil, nil, apierrors.NewAlreadyExists(w.gvr.GroupResource(), obj.GetName())
		}
		obj, err := w.asStored(obj)
		return nil, obj, err
	}
	// Upstream's store says this, which a dry run never reaches, and no Status.
	if n, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64); err == nil && n != 0 {
		return nil, nil, errors.New("resourceVersion should not be set on objects to be created")
	}
	name := obj.GetName()
	hub, err := w.hub(obj)
	if err != nil {
		return nil, nil, err
	}
	rec, err := w.store.Create(ctx, key, hub)
	if err != nil {
		err = w.fromCache(err, name)
		if apierrors.IsAlreadyExists(err) {
			if old := w.store.Peek(key); old != nil {
				if o, oerr := old.Object(); oerr == nil && o.GetDeletionTimestamp() != nil {
					s := err.(*apierrors.StatusError)
					s.ErrStatus.Message = "object is being deleted: " + s.ErrStatus.Message
				}
			}
		}
		return nil, nil, err
	}
	stored = true
	return rec, obj, nil
}

// allocate gives a Service that is about to be stored what it needs. Finish must
// be called with whether it was stored.
func (w *write) allocate(ctx context.Context, obj, old registry.Object) (finish func(stored bool), err error) {
	svc, ok := obj.(*corev1.Service)
	if !ok || w.sub != nil {
		return func(bool) {}, nil
	}
	before, _ := old.(*corev1.Service)
	return w.s.services.Allocate(ctx, svc, before, w.dryRun)
}

// validateNew is what is wrong with a new object: by the rules of its kind, or else
// by those of all kinds.
func (w *write) validateNew(ctx context.Context, obj registry.Object) field.ErrorList {
	if errs := append(w.res.CheckMetadata(obj, nil), w.res.ValidateObject(ctx, obj, nil)...); len(errs) > 0 {
		return errs
	}
	if w.res.Traits().Metadata == registry.Bare {
		return registry.ValidateNewMetadata(obj, w.namespaced, registry.NameIsPathSegment)
	}
	return registry.PathNames(obj)
}

// faulty is the kind that errors name: of two that share their storage, the
// one stored.
func (e *entry) faulty() schema.GroupKind {
	if e.fromHub != nil {
		return e.res.Storage().Hub.GVK().GroupKind()
	}
	return e.gvk.GroupKind()
}

// serveVirtual answers a question asked by creating an object.
func (c *call) serveVirtual(answer Virtual) error {
	if answer == nil {
		return c.notAllowed()
	}
	opts, err := c.createOptions()
	if err != nil {
		return err
	}
	if c.out, err = negotiateOf(c.r, false, false, false); err != nil {
		return err
	}
	gvk := c.gvk
	if c.sub != nil && !c.sub.Kind.Empty() {
		gvk = c.sub.Kind
	}
	empty, err := newBody(gvk)
	if err != nil {
		return err
	}
	obj := empty.DeepCopyObject().(registry.Object)
	if err := c.readObject(obj, gvk, opts.FieldValidation); err != nil {
		return err
	}
	if c.sub == nil {
		c.res.Defaults(obj)
		clearServerMetadata(obj)
	} else if token, ok := obj.(*authenticationv1.TokenRequest); ok {
		registry.DefaultTokenRequest(token)
	}
	if err := c.namespaceOf(obj); err != nil {
		return err
	}
	// Nothing is stored, but upstream's answer says who owns the question.
	obj.SetManagedFields(ownership.Update(ownership.Request{
		Old: empty, Obj: obj, Creating: true, Sent: obj.GetManagedFields(), Manager: c.manager(opts.FieldManager),
		APIVersion: gvk.GroupVersion().String(), Subresource: c.info.Subresource, Now: time.Now(),
	}))
	attrs := c.attributes(admission.Create, opts, len(opts.DryRun) > 0)
	attrs.Object = obj
	if err := c.s.cfg.Admission.Admit(c.ctx, attrs); err != nil {
		return err
	}
	if err := c.s.cfg.Admission.Validate(c.ctx, attrs); err != nil {
		return err
	}
	if c.sub == nil {
		if errs := c.res.ValidateObject(c.ctx, obj, nil); len(errs) > 0 {
			return invalid(schema.GroupKind{Group: gvk.Group}, "", errs)
		}
	}
	if obj, err = answer(c.ctx, obj, opts); err != nil {
		return err
	}
	return c.write(http.StatusCreated, obj)
}
