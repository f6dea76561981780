package ephemeralvolume

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestKeys(t *testing.T) {
	ephemeral := corev1.Volume{Name: "e", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
	named := corev1.Volume{Name: "n", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}
	for name, tt := range map[string]struct {
		volumes  []corev1.Volume
		deleting bool
		want     int
	}{
		"no volumes":          {nil, false, 0},
		"a claim by name":     {[]corev1.Volume{named}, false, 0},
		"an ephemeral volume": {[]corev1.Volume{named, ephemeral}, false, 1},
		"is being deleted":    {[]corev1.Volume{ephemeral}, true, 0},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{Volumes: tt.volumes}}
		if tt.deleting {
			pod.DeletionTimestamp = &metav1.Time{}
		}
		if got := len(keys(pod)); got != tt.want {
			t.Errorf("%s: %d keys", name, got)
		}
	}
}

func TestClaim(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
	v := &corev1.Volume{Name: "e", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "2"}},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: new("gold")},
	}}}}
	got := claim(pod, v)
	if got.Name != "p-e" || !metav1.IsControlledBy(got, pod) || got.Labels["l"] != "1" || got.Annotations["a"] != "2" || *got.Spec.StorageClassName != "gold" {
		t.Errorf("claim %+v", got)
	}
	if ref := got.OwnerReferences[0]; ref.Kind != "Pod" || ref.APIVersion != "v1" || !*ref.BlockOwnerDeletion {
		t.Errorf("owner %+v", ref)
	}
}
