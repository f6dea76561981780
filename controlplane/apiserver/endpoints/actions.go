package endpoints

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// action is the subresource, or kind, that does something of its own.
func action(name string) func(*call) error {
	switch name {
	case "pods/binding", "bindings":
		return (*call).bind
	case "pods/eviction":
		return (*call).evict
	case "componentstatuses":
		return (*call).componentStatuses
	case "namespaces/finalize":
		return (*call).finalizeNamespace
	}
	return nil
}

// readAction reads the body of an action on the object named in the URL.
func (c *call) readAction(obj registry.Object) (*metav1.CreateOptions, error) {
	opts, err := c.createOptions()
	if err != nil {
		return nil, err
	}
	if c.out, err = c.negotiate(false); err != nil {
		return nil, err
	}
	gvk := c.gvk
	if c.sub != nil && !c.sub.Kind.Empty() {
		gvk = c.sub.Kind
	}
	if err := c.readObject(obj, gvk, opts.FieldValidation); err != nil {
		return nil, err
	}
	if err := c.namespaceOf(obj); err != nil {
		return nil, err
	}
	attrs := c.attributes(Create, opts, len(opts.DryRun) > 0)
	attrs.Object = obj
	if attrs.Name == "" {
		attrs.Name = obj.GetName()
	}
	if err := c.s.cfg.Admission.Admit(c.ctx, attrs); err != nil {
		return nil, err
	}
	return opts, c.s.cfg.Admission.Validate(c.ctx, attrs)
}

// pods is the entry of pods, which bindings need, too.
func (c *call) pods() *entry {
	return c.s.table.Load().entries[corev1.SchemeGroupVersion.WithResource("pods")]
}

// bind gives a pod its node.
func (c *call) bind() error {
	binding := &corev1.Binding{}
	opts, err := c.readAction(binding)
	if err != nil {
		return err
	}
	if c.info.Name != "" && binding.Name != c.info.Name {
		return apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	var errs field.ErrorList
	target := field.NewPath("target")
	if k := binding.Target.Kind; k != "" && k != "Node" {
		errs = append(errs, field.NotSupported(target.Child("kind"), k, []string{"Node", "<empty>"}))
	}
	if binding.Target.Name == "" {
		errs = append(errs, field.Required(target.Child("name"), ""))
	}
	if len(errs) > 0 {
		return errs.ToAggregate()
	}
	w := c.podWrite(opts, binding.Name)
	err = w.changePod(c.ctx, func(pod *corev1.Pod) error {
		switch {
		case binding.UID != "" && binding.UID != pod.UID:
			return w.staleBinding("UID", binding.UID, pod.UID)
		case binding.ResourceVersion != "" && binding.ResourceVersion != pod.ResourceVersion:
			return w.staleBinding("ResourceVersion", binding.ResourceVersion, pod.ResourceVersion)
		case pod.DeletionTimestamp != nil:
			return w.bindConflict(fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name))
		case pod.Spec.NodeName != "":
			return w.bindConflict(fmt.Errorf("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName))
		case len(pod.Spec.SchedulingGates) != 0:
			return w.bindConflict(fmt.Errorf("pod %v has non-empty .spec.schedulingGates", pod.Name))
		}
		pod.Spec.NodeName = binding.Target.Name
		pod.Status.NominatedNodeName = ""
		for k, v := range binding.Annotations {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, k, v)
		}
		for k, v := range binding.Labels {
			metav1.SetMetaDataLabel(&pod.ObjectMeta, k, v)
		}
		setPodCondition(&pod.Status, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, time.Now())
		return nil
	})
	if err != nil {
		return err
	}
	return c.write(http.StatusCreated, &metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated})
}

// podWrite is a write of a pod that no client has sent as a whole.
func (c *call) podWrite(opts *metav1.CreateOptions, name string) *write {
	info := *c.info
	info.Name = name
	own := *c
	own.info, own.entry, own.sub = &info, c.pods(), nil
	return &write{call: &own, opts: opts, manager: c.manager(opts.FieldManager), dryRun: len(opts.DryRun) > 0}
}

func (w *write) bindConflict(err error) error {
	return apierrors.NewConflict(corev1.Resource("pods/binding"), w.info.Name, err)
}

// staleBinding is a binding meant for another pod, or another state of it.
func (w *write) staleBinding(what string, want, have any) error {
	return apierrors.NewConflict(corev1.Resource("pods"), w.info.Name, fmt.Errorf(
		"StorageError: invalid object, Code: 4, Key: /registry/pods/%s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: %s in precondition: %v, %s in object meta: %v",
		w.key(), what, want, what, have))
}

// changePod stores what change makes of the pod, as often as it takes.
func (w *write) changePod(ctx context.Context, change func(*corev1.Pod) error) error {
	key := w.key()
	current, fresh := w.store.Peek(key), false
	for {
		if current == nil {
			var err error
			if current, err = w.store.Fetch(ctx, key); err != nil {
				return w.fromCache(err, w.info.Name)
			}
			fresh = true
		}
		old, err := w.object(current)
		if err != nil {
			return err
		}
		pod := old.DeepCopyObject().(*corev1.Pod)
		err = change(pod)
		if err == nil {
			if w.dryRun {
				return nil
			}
			_, err = w.store.Update(ctx, key, current, pod)
			if err == nil {
				return nil
			}
			if !errors.Is(err, watchcache.ErrConflict) && !errors.Is(err, watchcache.ErrNotFound) {
				return err
			}
		} else if fresh {
			return err
		}
		if current, err = w.store.Fetch(ctx, key); err != nil {
			return w.fromCache(err, w.info.Name)
		}
		fresh = true
	}
}

// setPodCondition sets a condition and, when its status changes, its time.
func setPodCondition(status *corev1.PodStatus, c corev1.PodCondition, now time.Time) {
	c.LastTransitionTime = metav1.Time{Time: now.Truncate(time.Second)}
	for i := range status.Conditions {
		have := &status.Conditions[i]
		if have.Type != c.Type {
			continue
		}
		if have.Status == c.Status {
			c.LastTransitionTime = have.LastTransitionTime
		}
		*have = c
		return
	}
	status.Conditions = append(status.Conditions, c)
}

// evict deletes a pod if its disruption budget allows it.
func (c *call) evict() error {
	eviction := &policyv1.Eviction{}
	opts, err := c.readAction(eviction)
	if err != nil {
		return err
	}
	if eviction.Name != c.info.Name {
		return apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	del := eviction.DeleteOptions
	if del == nil {
		del = &metav1.DeleteOptions{}
	}
	if len(opts.DryRun) > 0 && len(del.DryRun) == 0 {
		del.DryRun = opts.DryRun
	} else if !slices.Equal(opts.DryRun, del.DryRun) && len(opts.DryRun) > 0 {
		return fmt.Errorf("Non-matching dry-run options in request and content: %v and %v", opts.DryRun, del.DryRun)
	}
	if len(del.DryRun) > 0 {
		opts.DryRun = del.DryRun
	}
	rec, err := c.store.Get(c.ctx, c.key(), "")
	if err != nil {
		return c.fromCache(err, c.info.Name)
	}
	obj, err := rec.Object()
	if err != nil {
		return err
	}
	pod := obj.(*corev1.Pod)
	if !evictableAtOnce(pod) {
		if err := c.spendBudget(pod, len(opts.DryRun) > 0); err != nil {
			return err
		}
	}
	w := c.podWrite(opts, c.info.Name)
	err = w.changePod(c.ctx, func(pod *corev1.Pod) error {
		if err := preconditions(del.Preconditions, pod); err != nil {
			return apierrors.NewConflict(corev1.Resource("Pod"), pod.Name, err)
		}
		setPodCondition(&pod.Status, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
			Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting"}, time.Now())
		return nil
	})
	if err != nil {
		return err
	}
	if p := del.Preconditions; p != nil && p.ResourceVersion != nil {
		own := *p // our own write has moved it on
		own.ResourceVersion = nil
		del = del.DeepCopy()
		del.Preconditions = &own
	}
	// An eviction has been admitted as such; upstream asks no more.
	d := &deletion{call: w.call, opts: del, dryRun: w.dryRun, admitted: true}
	if _, _, _, err := d.run(c.ctx, c.info.Namespace, c.info.Name); err != nil {
		return err
	}
	return c.write(http.StatusCreated, &metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated})
}

// evictableAtOnce are pods whose going disrupts nothing.
func evictableAtOnce(pod *corev1.Pod) bool {
	switch pod.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return true
	}
	return pod.DeletionTimestamp != nil
}

// maxDisrupted bounds the evictions that the budget's controller has not seen.
const maxDisrupted = 2000

// spendBudget takes one disruption from the pod's budget, if it has any.
func (c *call) spendBudget(pod *corev1.Pod, dryRun bool) error {
	e := c.s.table.Load().entries[policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")]
	if e == nil {
		return nil
	}
	found, err := e.store.List(c.ctx, watchcache.Query{Namespace: pod.Namespace})
	if err != nil {
		return err
	}
	var mine []*watchcache.Record
	for _, rec := range found.Records {
		obj, err := rec.Object()
		if err != nil {
			return err
		}
		selector, err := metav1.LabelSelectorAsSelector(obj.(*policyv1.PodDisruptionBudget).Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			mine = append(mine, rec)
		}
	}
	if len(mine) > 1 {
		return statusError(http.StatusInternalServerError, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
	}
	if len(mine) == 0 {
		return nil
	}
	rec := mine[0]
	for {
		obj, err := rec.Object()
		if err != nil {
			return err
		}
		pdb := obj.(*policyv1.PodDisruptionBudget)
		if !podReady(pod) {
			if p := pdb.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow ||
				pdb.Status.CurrentHealthy >= pdb.Status.DesiredHealthy && pdb.Status.DesiredHealthy > 0 {
				return nil
			}
		}
		if err := budgetAllows(pdb); err != nil {
			return err
		}
		if dryRun {
			return nil
		}
		next := pdb.DeepCopy()
		next.Status.DisruptionsAllowed--
		if next.Status.DisruptionsAllowed == 0 {
			meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
				Type: policyv1.DisruptionAllowedCondition, Reason: policyv1.InsufficientPodsReason,
				Status: metav1.ConditionFalse, ObservedGeneration: next.Status.ObservedGeneration})
		}
		if next.Status.DisruptedPods == nil {
			next.Status.DisruptedPods = map[string]metav1.Time{}
		}
		next.Status.DisruptedPods[pod.Name] = metav1.Time{Time: time.Now()}
		_, err = e.store.Update(c.ctx, rec.Key, rec, next)
		if !errors.Is(err, watchcache.ErrConflict) {
			return e.fromCache(err, pdb.Name)
		}
		if rec, err = e.store.Fetch(c.ctx, rec.Key); err != nil {
			return e.fromCache(err, pdb.Name)
		}
	}
}

func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// budgetAllows says no with 429, and why.
func budgetAllows(pdb *policyv1.PodDisruptionBudget) error {
	refuse := func(retry int, text string) error {
		err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", retry)
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: policyv1.DisruptionBudgetCause, Message: text})
		return err
	}
	budgets := policyv1.Resource("poddisruptionbudget")
	switch {
	case pdb.Status.ObservedGeneration < pdb.Generation:
		return refuse(10, fmt.Sprintf("The disruption budget %s is still being processed by the server.", pdb.Name))
	case pdb.Status.DisruptionsAllowed < 0:
		return apierrors.NewForbidden(budgets, pdb.Name, constError("pdb disruptions allowed is negative"))
	case len(pdb.Status.DisruptedPods) > maxDisrupted:
		return apierrors.NewForbidden(budgets, pdb.Name, constError("DisruptedPods map too big - too many evictions not confirmed by PDB controller"))
	case pdb.Status.DisruptionsAllowed > 0:
		return nil
	}
	cond := meta.FindStatusCondition(pdb.Status.Conditions, policyv1.DisruptionAllowedCondition)
	text := fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", pdb.Name, pdb.Status.DesiredHealthy, pdb.Status.CurrentHealthy)
	if cond != nil && cond.Status == metav1.ConditionFalse && cond.Message != "" {
		if cond.Reason == policyv1.SyncFailedReason {
			text = fmt.Sprintf("The disruption budget %s does not allow evicting pods currently because it failed sync: %s", pdb.Name, cond.Message)
		} else {
			text = fmt.Sprintf("The disruption budget %s does not allow evicting pods currently (%s): %s", pdb.Name, cond.Reason, cond.Message)
		}
	}
	return refuse(0, text)
}
