package deployment

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"

	"knarr/controlplane/controllermanager/ownership"
	"knarr/controlplane/controllermanager/pods"
	"knarr/internal/equal"
)

// A rollout is one look at one deployment.
type rollout struct {
	*reconciler
	key cache.ObjectName
	// stored is the deployment as the server has it; d is this look's own
	// copy, whose status gathers what to store.
	stored, d *appsv1.Deployment
	sets      sets
	now       time.Time
}

func equalStatus(a, b *appsv1.DeploymentStatus) bool { return equal.Objects(a, b) }

func (x *rollout) run(ctx context.Context) (time.Duration, error) {
	d := x.d
	if d.DeletionTimestamp != nil {
		if err := x.keepCurrent(ctx); err != nil {
			return 0, err
		}
		return 0, x.write(ctx, baseStatus(d, x.sets, x.now))
	}
	x.notePause()
	if err := x.keepCurrent(ctx); err != nil {
		return 0, err
	}
	if d.Spec.Paused || x.resized() {
		resizes, annotate := planScale(d, x.sets)
		if err := x.resize(ctx, resizes, annotate); err != nil {
			return 0, err
		}
		if d.Spec.Paused {
			if err := x.cleanup(ctx); err != nil {
				return 0, err
			}
		}
		return 0, x.write(ctx, baseStatus(d, x.sets, x.now))
	}
	roll := x.roll
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		roll = x.recreate
	}
	if err := roll(ctx); err != nil {
		return 0, err
	}
	next := rolloutStatus(d, x.sets, x.now)
	return untilDeadline(d, &next, x.now), x.write(ctx, next)
}

// notePause records a pause in the Progressing condition, as paused time is no stall.
func (x *rollout) notePause() {
	c := condition(&x.d.Status, appsv1.DeploymentProgressing)
	if !hasDeadline(x.d) || c != nil && c.Reason == reasonTimedOut {
		return
	}
	noted := c != nil && c.Reason == reasonPaused
	switch {
	case x.d.Spec.Paused && !noted:
		set(&x.d.Status, progressing(corev1.ConditionUnknown, reasonPaused, "Deployment is paused", x.now))
	case !x.d.Spec.Paused && noted:
		set(&x.d.Status, progressing(corev1.ConditionUnknown, reasonResumed, "Deployment is resumed", x.now))
	}
}

// resized says that the deployment's size changed since its sets were sized.
func (x *rollout) resized() bool {
	for _, rs := range active(x.sets.all()) {
		if desired, ok := annotated(rs, desiredReplicasAnnotation); ok && desired != *x.d.Spec.Replicas {
			return true
		}
	}
	return false
}

// keepCurrent brings the annotations of the set of the present template, if
// there is one, up to date.
func (x *rollout) keepCurrent(ctx context.Context) error {
	rs, d := x.sets.current, x.d
	if rs == nil {
		return nil
	}
	next := rs.DeepCopy()
	if annotate(d, next, nextRevision(x.sets.old)) || next.Spec.MinReadySeconds != d.Spec.MinReadySeconds {
		next.Spec.MinReadySeconds = d.Spec.MinReadySeconds
		made, err := x.update(ctx, next)
		if err != nil {
			return err
		}
		rs = made
	}
	x.setRevision(rs.Annotations[revisionAnnotation])
	if hasDeadline(d) && condition(&d.Status, appsv1.DeploymentProgressing) == nil {
		set(&d.Status, progressing(corev1.ConditionTrue, reasonFound, fmt.Sprintf("Found new replica set %q", rs.Name), x.now))
	}
	return nil
}

func (x *rollout) setRevision(revision string) {
	if x.d.Annotations == nil {
		x.d.Annotations = map[string]string{}
	}
	x.d.Annotations[revisionAnnotation] = revision
}

func (x *rollout) update(ctx context.Context, rs *appsv1.ReplicaSet) (*appsv1.ReplicaSet, error) {
	made, err := x.client.ReplicaSets(rs.Namespace).Update(ctx, rs, metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	x.wrote.Wrote(x.key, x.reconciler.sets, made)
	x.sets.replace(made)
	return made, nil
}

// roll takes one step of a rolling update: up, or else down.
func (x *rollout) roll(ctx context.Context) error {
	if err := x.create(ctx); err != nil || x.sets.current == nil {
		return err
	}
	d, current := x.d, x.sets.current
	if have := wanted(current); have != *d.Spec.Replicas {
		size := *d.Spec.Replicas
		if have < size {
			size = currentSize(d, have, sum(x.sets.all(), wanted))
		}
		if size != have {
			return x.resize(ctx, []resize{{current, size}}, false)
		}
	}
	unhealthy, rest := planOld(d, x.sets)
	if err := x.resize(ctx, unhealthy, false); err != nil {
		return err
	}
	if err := x.resize(ctx, rest, false); err != nil {
		return err
	}
	if len(unhealthy)+len(rest) == 0 && complete(d, &d.Status) {
		return x.cleanup(ctx)
	}
	return nil
}

// recreate takes one step of a change without overlap.
func (x *rollout) recreate(ctx context.Context) error {
	var down []resize
	for _, rs := range active(x.sets.old) {
		down = append(down, resize{rs, 0})
	}
	if len(down) > 0 {
		return x.resize(ctx, down, false)
	}
	running, err := x.oldPodsRun()
	if err != nil || running {
		return err
	}
	if err := x.create(ctx); err != nil || x.sets.current == nil {
		return err
	}
	if err := x.resize(ctx, []resize{{x.sets.current, *x.d.Spec.Replicas}}, false); err != nil {
		return err
	}
	if complete(x.d, &x.d.Status) {
		return x.cleanup(ctx)
	}
	return nil
}

func (x *rollout) oldPodsRun() (bool, error) {
	if sum(x.sets.old, actual) > 0 {
		return true, nil
	}
	for _, rs := range x.sets.old {
		left, err := ownership.Of[*corev1.Pod](x.pods, rs, false)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(left, func(p *corev1.Pod) bool { return !pods.Terminal(p) }) {
			return true, nil
		}
	}
	return false, nil
}

// create makes the set of the present template, if there is none.
func (x *rollout) create(ctx context.Context) error {
	if x.sets.current != nil {
		return nil
	}
	d := x.d
	rs, revision := x.newSet()
	made, err := x.client.ReplicaSets(d.Namespace).Create(ctx, rs, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		have, gerr := x.client.ReplicaSets(d.Namespace).Get(ctx, rs.Name, metav1.GetOptions{})
		if gerr != nil {
			return gerr
		}
		if metav1.IsControlledBy(have, d) && sameTemplate(&have.Spec.Template, &d.Spec.Template) {
			x.sets.current = have
			x.setRevision(revision)
			return nil
		}
		// Another template hashes alike, or another's set bears the name.
		if d.Status.CollisionCount == nil {
			d.Status.CollisionCount = new(int32)
		}
		*d.Status.CollisionCount++
		return nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case err != nil:
		message := fmt.Sprintf("Failed to create new replica set %q: %v", rs.Name, err)
		x.events.Event(x.stored, corev1.EventTypeWarning, reasonCreateError, message)
		if hasDeadline(d) {
			set(&d.Status, progressing(corev1.ConditionFalse, reasonCreateError, message, x.now))
			_ = x.write(ctx, d.Status) // the error at hand says more
		}
		return err
	}
	x.wrote.Wrote(x.key, x.reconciler.sets, made)
	x.sets.current = made
	if n := wanted(made); n > 0 {
		x.events.Eventf(x.stored, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled up replica set %s from 0 to %d", made.Name, n)
	}
	x.setRevision(revision)
	if hasDeadline(d) {
		set(&d.Status, progressing(corev1.ConditionTrue, reasonNew, fmt.Sprintf("Created new replica set %q", made.Name), x.now))
	}
	return nil
}

// newSet is the set that the present template wants.
func (x *rollout) newSet() (rs *appsv1.ReplicaSet, revision string) {
	d := x.d
	hash := pods.TemplateHash(&d.Spec.Template, d.Status.CollisionCount)
	template := *d.Spec.Template.DeepCopy()
	template.Labels = with(template.Labels, hash)
	selector := d.Spec.Selector.DeepCopy()
	selector.MatchLabels = with(selector.MatchLabels, hash)
	rs = &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: setName(d.Name, hash), Namespace: d.Namespace, Labels: template.Labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, kind)},
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas:        new(currentSize(d, 0, sum(x.sets.old, wanted))),
			MinReadySeconds: d.Spec.MinReadySeconds, Selector: selector, Template: template,
		},
	}
	revision = nextRevision(x.sets.old)
	annotate(d, rs, revision)
	annotateSize(d, rs)
	return rs, revision
}

func with(labels map[string]string, hash string) map[string]string {
	out := maps.Clone(labels)
	if out == nil {
		out = map[string]string{}
	}
	out[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	return out
}

func setName(deployment, hash string) string {
	if most := validation.DNS1123SubdomainMaxLength - 1 - len(hash); len(deployment) > most {
		deployment = deployment[:most]
	}
	return deployment + "-" + hash
}

// resize gives sets their sizes and tells of each that changed. With always,
// sets that keep their size get the new annotations.
func (x *rollout) resize(ctx context.Context, list []resize, always bool) error {
	for _, one := range list {
		// An earlier step may have stored a newer one.
		i := slices.IndexFunc(x.sets.all(), func(rs *appsv1.ReplicaSet) bool { return rs.UID == one.set.UID })
		rs := x.sets.all()[i].DeepCopy()
		was := wanted(rs)
		if was == one.size && !always {
			continue
		}
		if changed := annotateSize(x.d, rs); was == one.size && !changed {
			continue
		}
		rs.Spec.Replicas = &one.size
		if _, err := x.update(ctx, rs); err != nil {
			return err
		}
		if was != one.size {
			direction := "up"
			if one.size < was {
				direction = "down"
			}
			x.events.Eventf(x.stored, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled %s replica set %s from %d to %d", direction, rs.Name, was, one.size)
		}
	}
	return nil
}

// cleanup deletes the oldest sets beyond the history limit.
func (x *rollout) cleanup(ctx context.Context) error {
	limit := x.d.Spec.RevisionHistoryLimit
	if limit == nil || *limit == math.MaxInt32 {
		return nil
	}
	for _, rs := range beyond(x.sets.old, int(*limit)) {
		err := x.client.ReplicaSets(rs.Namespace).Delete(ctx, rs.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &rs.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// beyond are the sets of the lowest revisions, without pods, of which there are
// more than limit.
func beyond(old []*appsv1.ReplicaSet, limit int) []*appsv1.ReplicaSet {
	alive := slices.DeleteFunc(slices.Clone(old), func(rs *appsv1.ReplicaSet) bool { return rs.DeletionTimestamp != nil })
	excess := len(alive) - limit
	if excess <= 0 {
		return nil
	}
	slices.SortStableFunc(alive, func(a, b *appsv1.ReplicaSet) int {
		if ra, rb := revision(a), revision(b); ra != rb {
			return int(ra - rb)
		}
		return byAge(a, b)
	})
	return slices.DeleteFunc(alive[:excess], func(rs *appsv1.ReplicaSet) bool {
		return rs.Status.Replicas != 0 || wanted(rs) != 0 || rs.Generation > rs.Status.ObservedGeneration
	})
}
