package deployment

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func deploymentOf(replicas int32, surge, unavailable string) *appsv1.Deployment {
	return &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &replicas, Strategy: appsv1.DeploymentStrategy{
		Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
			MaxSurge: new(intstr.Parse(surge)), MaxUnavailable: new(intstr.Parse(unavailable))}}}}
}

// setOf is the i-th set, with its size, its available pods, and the most pods
// its deployment could have when it was sized.
func setOf(i int, size, available, most int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(i), UID: "", CreationTimestamp: metav1.NewTime(time.Unix(int64(i), 0)),
			Annotations: map[string]string{maxReplicasAnnotation: strconv.Itoa(int(most))}},
		Spec: appsv1.ReplicaSetSpec{Replicas: &size}, Status: appsv1.ReplicaSetStatus{Replicas: size, AvailableReplicas: available},
	}
}

func show(list []resize) (s string) {
	for _, r := range list {
		s += fmt.Sprintf("%s:%d ", r.set.Name, r.size)
	}
	return s
}

func TestPlanScale(t *testing.T) {
	for _, c := range []struct {
		name string
		d    *appsv1.Deployment
		s    sets
		want string
	}{
		{"one set takes all", deploymentOf(12, "25%", "25%"), sets{current: setOf(2, 10, 10, 13), old: []*appsv1.ReplicaSet{setOf(1, 0, 0, 13)}}, "2:12 "},
		{"up in proportion", deploymentOf(20, "0", "1"), sets{current: setOf(2, 5, 5, 10), old: []*appsv1.ReplicaSet{setOf(1, 5, 5, 10)}}, "2:10 1:10 "},
		{"the larger takes what is left over", deploymentOf(12, "0", "1"), sets{current: setOf(3, 3, 3, 10), old: []*appsv1.ReplicaSet{setOf(1, 5, 5, 10), setOf(2, 2, 2, 10)}}, "1:6 3:4 2:2 "},
		{"down in proportion, the older first", deploymentOf(5, "0", "1"), sets{current: setOf(2, 5, 5, 10), old: []*appsv1.ReplicaSet{setOf(1, 5, 5, 10)}}, "1:2 2:3 "},
		{"down to nothing", deploymentOf(0, "0", "1"), sets{current: setOf(2, 5, 5, 10), old: []*appsv1.ReplicaSet{setOf(1, 5, 5, 10)}}, "1:0 2:0 "},
	} {
		got, _ := planScale(c.d, c.s)
		if show(got) != c.want {
			t.Errorf("%s: %s, want %s", c.name, show(got), c.want)
		}
	}
}

func TestPlanOld(t *testing.T) {
	for _, c := range []struct {
		name            string
		d               *appsv1.Deployment
		s               sets
		unhealthy, rest string
	}{
		{"nothing before the new serve", deploymentOf(10, "3", "0"), sets{current: setOf(2, 3, 0, 13), old: []*appsv1.ReplicaSet{setOf(1, 10, 10, 13)}}, "", ""},
		{"as many as the new make up for", deploymentOf(10, "3", "0"), sets{current: setOf(2, 3, 2, 13), old: []*appsv1.ReplicaSet{setOf(1, 10, 10, 13)}}, "", "1:8 "},
		{"what does not serve first", deploymentOf(10, "0", "2"), sets{current: setOf(2, 2, 2, 10), old: []*appsv1.ReplicaSet{setOf(1, 8, 7, 10)}}, "1:7 ", "1:6 "},
	} {
		unhealthy, rest := planOld(c.d, c.s)
		if show(unhealthy) != c.unhealthy || show(rest) != c.rest {
			t.Errorf("%s: %s then %s; want %s then %s", c.name, show(unhealthy), show(rest), c.unhealthy, c.rest)
		}
	}
}

func TestHistory(t *testing.T) {
	if got := history(history("", "1"), "3"); got != "1,3" {
		t.Errorf("history %q", got)
	}
	long := ""
	for i := range 1000 {
		long = history(long, strconv.Itoa(i))
	}
	if len(long) > historyChars || long[len(long)-4:] != ",999" {
		t.Errorf("history of %d characters ends in %q", len(long), long[len(long)-4:])
	}
}

func TestFailureOfTheCurrentSetComesFirst(t *testing.T) {
	broken := func(i int, reason string) *appsv1.ReplicaSet {
		rs := setOf(i, 1, 0, 1)
		rs.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: reason}}
		return rs
	}
	s := sets{current: broken(2, "new"), old: []*appsv1.ReplicaSet{broken(1, "old")}}
	if c := failure(s); c == nil || c.Reason != "new" {
		t.Errorf("got %v", c)
	}
}
