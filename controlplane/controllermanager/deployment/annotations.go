package deployment

import (
	"maps"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	revisionAnnotation        = "deployment.kubernetes.io/revision"
	revisionHistoryAnnotation = "deployment.kubernetes.io/revision-history"
	desiredReplicasAnnotation = "deployment.kubernetes.io/desired-replicas"
	maxReplicasAnnotation     = "deployment.kubernetes.io/max-replicas"
	// historyChars bounds the revision history of one set.
	historyChars = 2000
)

// notCopied are the annotations that a set does not take over.
var notCopied = map[string]bool{
	corev1.LastAppliedConfigAnnotation: true,
	revisionAnnotation:                 true,
	revisionHistoryAnnotation:          true,
	desiredReplicasAnnotation:          true,
	maxReplicasAnnotation:              true,
	appsv1.DeprecatedRollbackTo:        true,
}

func revision(rs *appsv1.ReplicaSet) int64 {
	n, err := strconv.ParseInt(rs.Annotations[revisionAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func nextRevision(old []*appsv1.ReplicaSet) string {
	var last int64
	for _, rs := range old {
		last = max(last, revision(rs))
	}
	return strconv.FormatInt(last+1, 10)
}

// annotate gives rs what the deployment says and the revision; it reports whether
// that changed rs.
func annotate(d *appsv1.Deployment, rs *appsv1.ReplicaSet, revision string) bool {
	before := maps.Clone(rs.Annotations)
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	for k, v := range d.Annotations {
		if !notCopied[k] {
			rs.Annotations[k] = v
		}
	}
	have, had := rs.Annotations[revisionAnnotation]
	was, err := strconv.ParseInt(have, 10, 64)
	now, _ := strconv.ParseInt(revision, 10, 64)
	if (err == nil || have == "") && was < now {
		rs.Annotations[revisionAnnotation] = revision
		if had {
			rs.Annotations[revisionHistoryAnnotation] = history(rs.Annotations[revisionHistoryAnnotation], have)
		}
	}
	return !maps.Equal(before, rs.Annotations)
}

// history appends a revision and drops the oldest where it gets too long.
func history(past, last string) string {
	if past == "" {
		return last
	}
	out := past + "," + last
	for len(out) > historyChars {
		_, rest, ok := strings.Cut(out, ",")
		if !ok {
			return past
		}
		out = rest
	}
	return out
}

// annotateSize writes the size of the deployment on rs and reports whether that
// changed rs.
func annotateSize(d *appsv1.Deployment, rs *appsv1.ReplicaSet) bool {
	desired := strconv.Itoa(int(*d.Spec.Replicas))
	most := strconv.Itoa(int(*d.Spec.Replicas + maxSurge(d)))
	if rs.Annotations[desiredReplicasAnnotation] == desired && rs.Annotations[maxReplicasAnnotation] == most {
		return false
	}
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	rs.Annotations[desiredReplicasAnnotation], rs.Annotations[maxReplicasAnnotation] = desired, most
	return true
}
