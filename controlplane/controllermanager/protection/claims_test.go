package protection

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestFree(t *testing.T) {
	now := metav1.NewTime(time.Unix(1, 0))
	claim := func(name string, going bool, owner string) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		if going {
			c.DeletionTimestamp = &now
		}
		if owner != "" {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: owner, UID: "uid-" + "pod", Controller: new(true)}}
		}
		return c
	}
	pod := func(node string, change ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid-pod"}, Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{
			{Name: "a", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "named"}}},
			{Name: "e", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		}}}
		for _, c := range change {
			c(p)
		}
		return p
	}
	over := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	shutDown := func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, new(int64(0)) }
	going := []*corev1.PersistentVolumeClaim{claim("named", true, ""), claim("p-e", true, "p"), claim("other", true, "")}
	for name, tt := range map[string]struct {
		claims []*corev1.PersistentVolumeClaim
		pods   []*corev1.Pod
		want   []string
	}{
		"no pods":                             {going, nil, []string{"named", "p-e", "other"}},
		"a pod without a node uses nothing":   {going, []*corev1.Pod{pod("")}, []string{"named", "p-e", "other"}},
		"a pod with a node":                   {going, []*corev1.Pod{pod("n")}, []string{"other"}},
		"a pod that is over still uses":       {going, []*corev1.Pod{pod("n", over)}, []string{"other"}},
		"one shut down lets its own claim go": {going, []*corev1.Pod{pod("n", shutDown)}, []string{"p-e", "other"}},
		"another's claim is not the pod's":    {[]*corev1.PersistentVolumeClaim{claim("p-e", true, "")}, []*corev1.Pod{pod("n")}, []string{"p-e"}},
		"what stays is used by whoever wants": {[]*corev1.PersistentVolumeClaim{claim("named", false, "")}, []*corev1.Pod{pod("n")}, []string{"named"}},
	} {
		var got []string
		for _, c := range free(tt.claims, tt.pods) {
			got = append(got, c.Name)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestUnfinished(t *testing.T) {
	for _, tt := range []struct{ going, has, want bool }{{false, true, false}, {false, false, true}, {true, true, true}, {true, false, false}} {
		o := &metav1.ObjectMeta{Finalizers: []string{"other"}}
		if tt.going {
			o.DeletionTimestamp = &metav1.Time{}
		}
		if tt.has {
			o.Finalizers = append(o.Finalizers, "f")
		}
		if got := unfinished(o, "f"); got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
		if !tt.want {
			continue
		}
		finish(o, "f")
		if slices.Contains(o.Finalizers, "f") == tt.going || !slices.Contains(o.Finalizers, "other") {
			t.Errorf("%+v: %v", tt, o.Finalizers)
		}
	}
}
