package replicaset

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"knarr/controlplane/controllermanager/pods"
	"knarr/internal/equal"
)

// status is what the pods make of rs.
func status(rs *appsv1.ReplicaSet, active []*corev1.Pod, terminating int, manageErr error, now time.Time) appsv1.ReplicaSetStatus {
	s := rs.Status
	s.Conditions = slices.Clone(s.Conditions)
	s.Replicas, s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas = int32(len(active)), 0, 0, 0
	s.TerminatingReplicas = new(int32(terminating))
	template := labels.SelectorFromSet(rs.Spec.Template.Labels)
	for _, p := range active {
		if template.Matches(labels.Set(p.Labels)) {
			s.FullyLabeledReplicas++
		}
		if pods.Ready(p) {
			s.ReadyReplicas++
			if pods.Available(p, rs.Spec.MinReadySeconds, now) {
				s.AvailableReplicas++
			}
		}
	}
	failing := slices.IndexFunc(s.Conditions, func(c appsv1.ReplicaSetCondition) bool { return c.Type == appsv1.ReplicaSetReplicaFailure })
	switch {
	case manageErr != nil && failing < 0:
		reason := "FailedCreate"
		if len(active) > int(*rs.Spec.Replicas) {
			reason = "FailedDelete"
		}
		s.Conditions = append(s.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(now), Reason: reason, Message: manageErr.Error(),
		})
	case manageErr == nil && failing >= 0:
		s.Conditions = slices.Delete(s.Conditions, failing, failing+1)
	}
	return s
}

func statusChanged(rs *appsv1.ReplicaSet, next appsv1.ReplicaSetStatus) bool {
	return rs.Generation != rs.Status.ObservedGeneration || !equal.Objects(rs.Status, next)
}

// untilAvailable is when the next ready pod becomes available; 0 is never.
func untilAvailable(active []*corev1.Pod, minReady int32, now time.Time) (soonest time.Duration) {
	for _, p := range active {
		if left, ok := pods.AvailableIn(p, minReady, now); ok && left > 0 && (soonest == 0 || left < soonest) {
			soonest = left
		}
	}
	return soonest
}
