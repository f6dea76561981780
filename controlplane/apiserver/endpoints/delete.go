package endpoints

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/run"
)

// delete removes an object, or marks it so that others can.
func (c *call) delete() error {
	opts, err := c.deleteOptions()
	if err != nil {
		return err
	}
	c.warnOrphans(opts)
	if c.out, err = c.negotiate(false); err != nil {
		return err
	}
	if ignore := opts.IgnoreStoreReadErrorWithClusterBreakingPotential; ignore != nil && *ignore {
		return c.discard()
	}
	d := &deletion{call: c, opts: opts, dryRun: len(opts.DryRun) > 0}
	rec, obj, gone, err := d.run(c.ctx, c.info.Namespace, c.info.Name)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if !gone {
		if opts.OrphanDependents != nil && !*opts.OrphanDependents {
			code = http.StatusAccepted
		}
		return c.answer(code, rec, obj)
	}
	if registry.AnswersDeleted(c.gvr.GroupResource()) {
		return c.answer(code, rec, obj)
	}
	return c.write(code, &metav1.Status{
		Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{
			Name: obj.GetName(), Group: c.gvr.Group, Kind: c.gvr.Resource, UID: obj.GetUID()},
	})
}

// warnOrphans warns that a job's pods stay, which few expect.
func (c *call) warnOrphans(opts *metav1.DeleteOptions) {
	if c.qualified == "jobs.batch" && opts.PropagationPolicy == nil && opts.OrphanDependents == nil {
		request.Warn(c.ctx, "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning")
	}
}

// A deletion is one object's on its way out.
type deletion struct {
	*call
	opts   *metav1.DeleteOptions
	dryRun bool
	// admitted says that admission has had its say.
	admitted bool
}

// run deletes name. gone says that the object is no more; else it has been
// marked, or had been before.
func (d *deletion) run(ctx context.Context, namespace, name string) (rec *watchcache.Record, obj registry.Object, gone bool, err error) {
	key := d.keyOf(namespace, name)
	current, fresh := d.store.Peek(key), false
	for {
		if current == nil {
			if current, err = d.store.Fetch(ctx, key); err != nil {
				return nil, nil, false, d.fromCache(err, name)
			}
			fresh = true
		}
		old, err := d.object(current)
		if err != nil {
			return nil, nil, false, err
		}
		if !d.admitted {
			if err := d.admit(ctx, namespace, name, old); err != nil {
				return nil, nil, false, err
			}
			d.admitted = true
		}
		rec, obj, gone, err = d.attempt(ctx, key, current, old)
		lost := errors.Is(err, watchcache.ErrConflict) || errors.Is(err, watchcache.ErrNotFound)
		switch {
		case err == nil:
			return rec, obj, gone, nil
		case !lost && fresh:
			return nil, nil, false, d.fromCache(err, name)
		case ctx.Err() != nil:
			return nil, nil, false, ctx.Err()
		}
		latest, ferr := d.store.Fetch(ctx, key)
		if ferr != nil {
			return nil, nil, false, d.fromCache(ferr, name)
		}
		if !lost && latest.Revision == current.Revision {
			return nil, nil, false, d.fromCache(err, name)
		}
		current, fresh = latest, true
	}
}

// admit asks admission about the deletion of old.
func (d *deletion) admit(ctx context.Context, namespace, name string, old registry.Object) error {
	attrs := d.attributes(admission.Delete, d.opts, d.dryRun)
	attrs.Name, attrs.Old = name, old
	if d.namespaced {
		attrs.Namespace = namespace
	}
	if err := d.s.cfg.Admission.Admit(ctx, attrs); err != nil {
		return err
	}
	return d.s.cfg.Admission.Validate(ctx, attrs)
}

func (d *deletion) attempt(ctx context.Context, key string, current *watchcache.Record, old registry.Object) (*watchcache.Record, registry.Object, bool, error) {
	if err := preconditions(d.opts.Preconditions, old); err != nil {
		return nil, nil, false, d.refused(old.GetName(), err)
	}
	obj, remove := planDelete(d.res, old, d.opts, time.Now())
	switch {
	case obj == nil && !remove: // pending already
		return current, old, false, nil
	case d.dryRun && obj != nil:
		return nil, obj, remove, nil
	case d.dryRun:
		return nil, copyOf(old), true, nil
	case remove:
		rec, err := d.store.Delete(ctx, key, current)
		if err != nil {
			return nil, nil, false, err
		}
		d.s.release(old)
		if obj != nil {
			obj.SetResourceVersion(strconv.FormatInt(rec.Revision, 10))
			return nil, obj, true, nil
		}
		return rec, old, true, nil
	}
	hub, err := d.hub(obj)
	if err != nil {
		return nil, nil, false, err
	}
	rec, err := d.store.Update(ctx, key, current, hub)
	return rec, obj, false, err
}

// refused is a deletion whose preconditions do not hold. Two kinds are asked
// before their own rules are, in other words.
func (d *deletion) refused(name string, err error) error {
	if d.info.Verb == "deletecollection" || d.qualified != "namespaces" && d.gvk.Group != apiextensionsv1.GroupName {
		kind := d.faulty()
		return apierrors.NewConflict(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, name, err)
	}
	var unmet *preconditionError
	if errors.As(err, &unmet) {
		err = fmt.Errorf("Precondition failed: %s in precondition: %v, %s in object meta: %v", unmet.what, unmet.want, unmet.what, unmet.have)
	}
	return apierrors.NewConflict(d.gvr.GroupResource(), name, err)
}

// A preconditionError is a deletion of what is another object by now.
type preconditionError struct{ what, want, have, why string }

func (e *preconditionError) Error() string {
	return fmt.Sprintf("the %s in the precondition (%s) does not match the %s in record (%s). The object might have been %s", e.what, e.want, e.what, e.have, e.why)
}

func preconditions(p *metav1.Preconditions, obj registry.Object) error {
	if p == nil {
		return nil
	}
	if p.UID != nil && *p.UID != obj.GetUID() {
		return &preconditionError{"UID", string(*p.UID), string(obj.GetUID()), "deleted and then recreated"}
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != obj.GetResourceVersion() {
		return &preconditionError{"ResourceVersion", *p.ResourceVersion, obj.GetResourceVersion(), "modified"}
	}
	return nil
}

// planDelete decides what a deletion does to old: remove it, or store the
// object returned, or, with neither, nothing as it is pending. With both, the
// object returned is what the answer shows.
func planDelete(res registry.Resource, old registry.Object, opts *metav1.DeleteOptions, now time.Time) (obj registry.Object, remove bool) {
	if ns, ok := old.(*corev1.Namespace); ok {
		return planDeleteNamespace(ns, opts, now)
	}
	if crd, ok := old.(*apiextensionsv1.CustomResourceDefinition); ok && crd.DeletionTimestamp == nil {
		return planDeleteDefinition(crd, now), false
	}
	grace := res.GraceSeconds(old, opts)
	if t := old.GetDeletionTimestamp(); t != nil && grace > 0 || t != nil && res.GraceSeconds(old, &metav1.DeleteOptions{}) > 0 {
		// A graceful deletion is under way: it can only be shortened.
		left := old.GetDeletionGracePeriodSeconds()
		if left != nil && (*left > 0 || len(old.GetFinalizers()) > 0) {
			if opts.GracePeriodSeconds == nil || *opts.GracePeriodSeconds >= *left {
				return nil, false
			}
			period := *opts.GracePeriodSeconds
			obj = copyOf(old)
			sooner := metav1.NewTime(t.Add(time.Duration(period-*left) * time.Second))
			obj.SetDeletionTimestamp(&sooner)
			obj.SetDeletionGracePeriodSeconds(&period)
			if period > 0 || len(old.GetFinalizers()) > 0 {
				return obj, false
			}
			return nil, true
		}
		grace = 0
	}
	finalizers, changed := collectorFinalizers(res, old, opts)
	if grace <= 0 && len(finalizers) == 0 {
		if _, pod := old.(*corev1.Pod); !pod {
			return nil, true
		}
		obj = copyOf(old)
		mark(obj, now, 0)
		return obj, true
	}
	obj = copyOf(old)
	if changed {
		obj.SetFinalizers(finalizers)
	}
	mark(obj, now, max(grace, 0))
	if grace <= 0 && !changed && sameMark(obj, old) {
		return nil, false
	}
	return obj, false
}

// mark sets the deletion time, never later than one already set.
func mark(obj registry.Object, now time.Time, grace int64) {
	at := metav1.NewTime(now.Add(time.Duration(grace) * time.Second).Truncate(time.Second))
	if t := obj.GetDeletionTimestamp(); t == nil {
		if g := obj.GetGeneration(); g > 0 {
			obj.SetGeneration(g + 1)
		}
		obj.SetDeletionTimestamp(&at)
	} else if t.After(at.Time) {
		obj.SetDeletionTimestamp(&at)
	}
	obj.SetDeletionGracePeriodSeconds(&grace)
}

func sameMark(a, b registry.Object) bool {
	ga, gb := a.GetDeletionGracePeriodSeconds(), b.GetDeletionGracePeriodSeconds()
	return b.GetDeletionTimestamp() != nil && a.GetDeletionTimestamp().Equal(b.GetDeletionTimestamp()) &&
		ga != nil && gb != nil && *ga == *gb
}

// collectorFinalizers are the object's finalizers with those of the garbage
// collector as the propagation policy wants them.
func collectorFinalizers(res registry.Resource, obj registry.Object, opts *metav1.DeleteOptions) (out []string, changed bool) {
	switch obj.(type) {
	case *corev1.Event, *eventsv1.Event: // nobody collects what they own
		opts = &metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}
	}
	have := obj.GetFinalizers()
	orphan := slices.Contains(have, metav1.FinalizerOrphanDependents)
	foreground := slices.Contains(have, metav1.FinalizerDeleteDependents)
	if !orphan && !foreground && opts.PropagationPolicy == nil && opts.OrphanDependents == nil {
		switch res.Traits().Propagation {
		case metav1.DeletePropagationOrphan:
			orphan = true
		case metav1.DeletePropagationForeground:
			foreground = true
		}
	}
	if o := opts.OrphanDependents; o != nil {
		orphan, foreground = *o, false
	}
	if p := opts.PropagationPolicy; p != nil {
		orphan, foreground = *p == metav1.DeletePropagationOrphan, *p == metav1.DeletePropagationForeground
	}
	for _, f := range have {
		if f == metav1.FinalizerOrphanDependents && !orphan || f == metav1.FinalizerDeleteDependents && !foreground {
			changed = true
			continue
		}
		out = append(out, f)
	}
	if orphan && !slices.Contains(out, metav1.FinalizerOrphanDependents) {
		out, changed = append(out, metav1.FinalizerOrphanDependents), true
	}
	if foreground && !slices.Contains(out, metav1.FinalizerDeleteDependents) {
		out, changed = append(out, metav1.FinalizerDeleteDependents), true
	}
	return out, changed
}

// deleteWorkers is how many objects of a collection are deleted at once.
const deleteWorkers = 8

// deleteCollection deletes what a query finds and answers with the list of it.
func (c *call) deleteCollection() error {
	list, err := c.listOptions()
	if err != nil {
		return err
	}
	opts, err := c.deleteOptions()
	if err != nil {
		return err
	}
	if c.out, err = c.negotiate(false); err != nil {
		return err
	}
	if ignore := opts.IgnoreStoreReadErrorWithClusterBreakingPotential; ignore != nil && *ignore {
		return invalidOptions("DeleteOptions", field.ErrorList{field.Invalid(ignoreReadError, true, "is not allowed with DELETECOLLECTION, try again after removing the option")})
	}
	q := c.listQuery(list)
	q.ResourceVersion, q.Match = "", ""
	found, err := c.found(q, true)
	if err != nil {
		return err
	}
	if len(found.Records) > 0 {
		c.warnOrphans(opts)
	}
	d := &deletion{call: c, opts: opts, dryRun: len(opts.DryRun) > 0}
	errs := run.Each("DeleteCollection goroutine", deleteWorkers, len(found.Records), func(i int) error {
		err := d.member(found.Records[i])
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return c.writeList(found)
}

// member deletes one object of a collection.
func (d *deletion) member(rec *watchcache.Record) error {
	obj, err := rec.Object()
	if err != nil {
		return err
	}
	own := *d.opts // each object's grace is its own
	one := &deletion{call: d.call, opts: &own, dryRun: d.dryRun}
	_, _, _, err = one.run(d.ctx, obj.GetNamespace(), obj.GetName())
	return err
}

// release takes back what a deleted Service had.
func (s *Server) release(old registry.Object) {
	if svc, ok := old.(*corev1.Service); ok {
		s.services.Release(svc)
	}
}
