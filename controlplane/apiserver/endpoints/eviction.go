package endpoints

import (
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

	"knarr/controlplane/apiserver/watchcache"
)

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
	// Who names the version to evict gets that one or none.
	named := del.Preconditions != nil && del.Preconditions.ResourceVersion != nil
	for try := 1; ; try++ {
		pod, err := c.podToEvict()
		if err != nil {
			return err
		}
		atOnce := evictableAtOnce(pod)
		// A pod that is no loss now may be one in a moment.
		hold, budget := atOnce && pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp == nil, ""
		if !atOnce {
			if budget, hold, err = c.spendBudget(pod, len(opts.DryRun) > 0); err != nil {
				return err
			}
		}
		only := del
		if hold && !named {
			only = del.DeepCopy()
			if only.Preconditions == nil {
				only.Preconditions = &metav1.Preconditions{}
			}
			only.Preconditions.ResourceVersion = new(pod.ResourceVersion)
		}
		err = c.remove(opts, only)
		switch {
		case err == nil:
			return c.write(http.StatusCreated, &metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated})
		case apierrors.IsConflict(err) && atOnce && !named && try < evictTries && c.ctx.Err() == nil:
		case apierrors.IsConflict(err) && !atOnce && hold && !named:
			return beingProcessed(budget)
		default:
			return err
		}
	}
}

// evictTries is how often the eviction of a changing pod is tried.
const evictTries = 20

func (c *call) podToEvict() (*corev1.Pod, error) {
	rec, err := c.store.Get(c.ctx, c.key(), "")
	if err != nil {
		return nil, c.fromCache(err, c.info.Name)
	}
	obj, err := rec.Object()
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Pod), nil
}

// remove sets the pod's DisruptionTarget condition, and deletes it.
func (c *call) remove(opts *metav1.CreateOptions, del *metav1.DeleteOptions) error {
	w := c.podWrite(opts, c.info.Name)
	err := w.changePod(c.ctx, func(pod *corev1.Pod) error {
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
	// An eviction has been admitted as such; upstream runs no admission for the deletion.
	d := &deletion{call: w.call, opts: del, dryRun: w.dryRun, admitted: true}
	_, _, _, err = d.run(c.ctx, c.info.Namespace, c.info.Name)
	return err
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

// spendBudget takes one disruption from the pod's budget, if it has any, and
// names it. A pod that is not healthy may cost nothing: then free is true, and
// it must go as it is now or not at all.
func (c *call) spendBudget(pod *corev1.Pod, dryRun bool) (name string, free bool, err error) {
	e := c.s.table.Load().entries[policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")]
	if e == nil {
		return "", false, nil
	}
	found, err := e.store.List(c.ctx, watchcache.Query{Namespace: pod.Namespace})
	if err != nil {
		return "", false, e.fromCache(err, "")
	}
	var mine []*watchcache.Record
	for _, rec := range found.Records {
		obj, err := rec.Object()
		if err != nil {
			return "", false, err
		}
		selector, err := metav1.LabelSelectorAsSelector(obj.(*policyv1.PodDisruptionBudget).Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			mine = append(mine, rec)
		}
	}
	if len(mine) > 1 {
		return "", false, statusError(http.StatusInternalServerError, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
	}
	if len(mine) == 0 {
		return "", false, nil
	}
	rec := mine[0]
	for {
		obj, err := rec.Object()
		if err != nil {
			return "", false, err
		}
		pdb := obj.(*policyv1.PodDisruptionBudget)
		if !podReady(pod) {
			if p := pdb.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow ||
				pdb.Status.CurrentHealthy >= pdb.Status.DesiredHealthy && pdb.Status.DesiredHealthy > 0 {
				return pdb.Name, true, nil
			}
		}
		if err := budgetAllows(pdb); err != nil {
			return "", false, err
		}
		if dryRun {
			return pdb.Name, false, nil
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
			return pdb.Name, false, e.fromCache(err, pdb.Name)
		}
		if rec, err = e.store.Fetch(c.ctx, rec.Key); err != nil {
			return "", false, e.fromCache(err, pdb.Name)
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

// tooMany is the 429 of a budget.
func tooMany(retry int, text string) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", retry)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: policyv1.DisruptionBudgetCause, Message: text})
	return err
}

func beingProcessed(budget string) error {
	return tooMany(10, fmt.Sprintf("The disruption budget %s is still being processed by the server.", budget))
}

// budgetAllows says no with 429, and why.
func budgetAllows(pdb *policyv1.PodDisruptionBudget) error {
	budgets := policyv1.Resource("poddisruptionbudget")
	s := &pdb.Status
	switch {
	case s.ObservedGeneration < pdb.Generation:
		return beingProcessed(pdb.Name)
	case s.DisruptionsAllowed < 0:
		return apierrors.NewForbidden(budgets, pdb.Name, constError("pdb disruptions allowed is negative"))
	case len(s.DisruptedPods) > maxDisrupted:
		return apierrors.NewForbidden(budgets, pdb.Name, constError("DisruptedPods map too big - too many evictions not confirmed by PDB controller"))
	case s.DisruptionsAllowed > 0:
		return nil
	}
	text := fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", pdb.Name)
	cond := meta.FindStatusCondition(s.Conditions, policyv1.DisruptionAllowedCondition)
	hasMessage := cond != nil && cond.Status == metav1.ConditionFalse && cond.Message != ""
	switch {
	case hasMessage && cond.Reason == policyv1.SyncFailedReason:
		text += fmt.Sprintf(" because it failed sync: %s", cond.Message)
	case s.CurrentHealthy <= s.DesiredHealthy:
		text = fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", pdb.Name, s.DesiredHealthy, s.CurrentHealthy)
	case hasMessage:
		text += fmt.Sprintf(" (%s): %s", cond.Reason, cond.Message)
	}
	return tooMany(0, text)
}
