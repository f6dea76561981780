package deployment

import (
	"fmt"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons of the conditions.
const (
	reasonUpdated     = "ReplicaSetUpdated"
	reasonCreateError = "ReplicaSetCreateError"
	reasonNew         = "NewReplicaSetCreated"
	reasonFound       = "FoundNewReplicaSet"
	reasonAvailable   = "NewReplicaSetAvailable"
	reasonTimedOut    = "ProgressDeadlineExceeded"
	reasonPaused      = "DeploymentPaused"
	reasonResumed     = "DeploymentResumed"
)

func hasDeadline(d *appsv1.Deployment) bool {
	return d.Spec.ProgressDeadlineSeconds != nil && *d.Spec.ProgressDeadlineSeconds != math.MaxInt32
}

func condition(s *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i]
		}
	}
	return nil
}

func drop(s *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType) {
	s.Conditions = slices.DeleteFunc(slices.Clone(s.Conditions), func(c appsv1.DeploymentCondition) bool { return c.Type == kind })
}

// set stores a condition, at the end, unless one of that status and reason is
// there.
func set(s *appsv1.DeploymentStatus, c appsv1.DeploymentCondition) bool {
	have := condition(s, c.Type)
	if have != nil && have.Status == c.Status {
		if have.Reason == c.Reason {
			return false
		}
		c.LastTransitionTime = have.LastTransitionTime
	}
	drop(s, c.Type)
	s.Conditions = append(s.Conditions, c)
	return true
}

func progressing(status corev1.ConditionStatus, reason, message string, now time.Time) appsv1.DeploymentCondition {
	at := metav1.NewTime(now)
	return appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: status,
		LastUpdateTime: at, LastTransitionTime: at, Reason: reason, Message: message}
}

// baseStatus is what the sets make of d, but for its progress.
func baseStatus(d *appsv1.Deployment, s sets, now time.Time) appsv1.DeploymentStatus {
	all := s.all()
	status := appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation,
		Replicas:           sum(all, actual), ReadyReplicas: sum(all, ready), AvailableReplicas: sum(all, available),
		TerminatingReplicas: terminating(all),
		CollisionCount:      d.Status.CollisionCount,
		Conditions:          slices.Clone(d.Status.Conditions),
	}
	status.UnavailableReplicas = max(0, sum(all, wanted)-status.AvailableReplicas)
	if s.current != nil {
		status.UpdatedReplicas = s.current.Status.Replicas
	}
	at := metav1.NewTime(now)
	c := appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue,
		LastUpdateTime: at, LastTransitionTime: at,
		Reason: "MinimumReplicasAvailable", Message: "Deployment has minimum availability."}
	if status.AvailableReplicas < *d.Spec.Replicas-maxUnavailable(d) {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "MinimumReplicasUnavailable", "Deployment does not have minimum availability."
	}
	set(&status, c)
	return status
}

// terminating is nil as long as a set has not counted.
func terminating(all []*appsv1.ReplicaSet) *int32 {
	var n int32
	for _, rs := range all {
		switch {
		case rs.Status.TerminatingReplicas != nil:
			n += *rs.Status.TerminatingReplicas
		case rs.Status.ObservedGeneration != 0:
			return nil
		}
	}
	return &n
}

// complete says that the rollout has reached its end.
func complete(d *appsv1.Deployment, s *appsv1.DeploymentStatus) bool {
	want := *d.Spec.Replicas
	return s.UpdatedReplicas == want && s.Replicas == want && s.AvailableReplicas == want && s.ObservedGeneration >= d.Generation
}

// moved reports whether the rollout got further than the stored status.
func moved(d *appsv1.Deployment, s *appsv1.DeploymentStatus) bool {
	was := &d.Status
	return s.UpdatedReplicas > was.UpdatedReplicas ||
		s.Replicas-s.UpdatedReplicas < was.Replicas-was.UpdatedReplicas ||
		s.ReadyReplicas > was.ReadyReplicas || s.AvailableReplicas > was.AvailableReplicas
}

func timedOut(d *appsv1.Deployment, s *appsv1.DeploymentStatus, now time.Time) bool {
	c := condition(s, appsv1.DeploymentProgressing)
	switch {
	case c == nil || c.Reason == reasonAvailable:
		return false
	case c.Reason == reasonTimedOut:
		return true
	}
	return c.LastUpdateTime.Add(time.Duration(*d.Spec.ProgressDeadlineSeconds) * time.Second).Before(now)
}

// rolloutStatus is the status of a deployment that rolls out, with its progress.
func rolloutStatus(d *appsv1.Deployment, s sets, now time.Time) appsv1.DeploymentStatus {
	next := baseStatus(d, s, now)
	had := condition(&d.Status, appsv1.DeploymentProgressing)
	switch {
	case !hasDeadline(d):
		drop(&next, appsv1.DeploymentProgressing)
	case next.Replicas == next.UpdatedReplicas && had != nil && had.Reason == reasonAvailable:
		// It was complete and no rollout has begun since.
	default:
		name := fmt.Sprintf("Deployment %q", d.Name)
		if s.current != nil {
			name = fmt.Sprintf("ReplicaSet %q", s.current.Name)
		}
		switch {
		case complete(d, &next):
			set(&next, progressing(corev1.ConditionTrue, reasonAvailable, name+" has successfully progressed.", now))
		case moved(d, &next):
			c := progressing(corev1.ConditionTrue, reasonUpdated, name+" is progressing.", now)
			if had != nil && had.Status == corev1.ConditionTrue {
				c.LastTransitionTime = had.LastTransitionTime
			}
			drop(&next, c.Type) // so that its update time tells of the progress
			set(&next, c)
		case timedOut(d, &next, now):
			set(&next, progressing(corev1.ConditionFalse, reasonTimedOut, name+" has timed out progressing.", now))
		}
	}
	if c := failure(s); c != nil {
		set(&next, *c)
	} else {
		drop(&next, appsv1.DeploymentReplicaFailure)
	}
	return next
}

// failure is what the current set, or else another, could not do.
func failure(s sets) *appsv1.DeploymentCondition {
	all := s.old
	if s.current != nil {
		all = append([]*appsv1.ReplicaSet{s.current}, s.old...)
	}
	for _, rs := range all {
		for _, c := range rs.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure {
				return &appsv1.DeploymentCondition{Type: appsv1.DeploymentReplicaFailure, Status: c.Status,
					LastUpdateTime: c.LastTransitionTime, LastTransitionTime: c.LastTransitionTime,
					Reason: c.Reason, Message: c.Message}
			}
		}
	}
	return nil
}

// untilDeadline is when to look whether the rollout has stalled; 0 is never.
func untilDeadline(d *appsv1.Deployment, next *appsv1.DeploymentStatus, now time.Time) time.Duration {
	c := condition(next, appsv1.DeploymentProgressing)
	if !hasDeadline(d) || c == nil || complete(d, next) || c.Reason == reasonTimedOut || c.Reason == reasonAvailable {
		return 0
	}
	left := c.LastUpdateTime.Add(time.Duration(*d.Spec.ProgressDeadlineSeconds) * time.Second).Sub(now)
	return max(left, 0) + time.Second
}
