package volumeexpand

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLarger(t *testing.T) {
	size := func(text string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(text)}
	}
	for name, tt := range map[string]struct {
		request, have string
		resizing      bool
		want          bool
	}{
		"as large as asked for":    {"1Gi", "1Gi", false, false},
		"larger than asked for":    {"1Gi", "2Gi", false, false},
		"smaller than asked for":   {"2Gi", "1Gi", false, true},
		"an expansion is underway": {"2Gi", "2Gi", true, true},
	} {
		claim := &corev1.PersistentVolumeClaim{
			Spec:   corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{Requests: size(tt.request)}},
			Status: corev1.PersistentVolumeClaimStatus{Capacity: size(tt.have)},
		}
		v := &corev1.PersistentVolume{}
		if tt.resizing {
			metav1.SetMetaDataAnnotation(&v.ObjectMeta, preResizeCapacity, "1Gi")
		}
		if got := larger(claim, v); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
