package watchcache

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/registry"
)

// TestIncomplete: what upstream leaves out of what it stores, and fills whenever
// it reads, is there.
func TestIncomplete(t *testing.T) {
	labels := map[string]string{"job-name": "a"}
	for _, c := range []struct {
		gvr    schema.GroupVersionResource
		stored registry.Object
		want   func(registry.Object) bool
	}{
		{corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"),
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns"}},
			func(o registry.Object) bool {
				return o.(*corev1.PersistentVolumeClaim).Status.Phase == corev1.ClaimPending
			}},
		{batchv1.SchemeGroupVersion.WithResource("jobs"),
			&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns"},
				Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}}},
			func(o registry.Object) bool { return o.GetLabels()["job-name"] == "a" }},
		{appsv1.SchemeGroupVersion.WithResource("statefulsets"),
			&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns"},
				Spec: appsv1.StatefulSetSpec{VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}}},
			func(o registry.Object) bool {
				return o.(*appsv1.StatefulSet).Spec.VolumeClaimTemplates[0].Kind == "PersistentVolumeClaim"
			}},
	} {
		synctest.Test(t, func(t *testing.T) {
			cache, _, store := start(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r := cache.Resource(c.gvr)
			value, _, err := r.codec.encode(c.stored)
			if err != nil {
				t.Fatal(err)
			}
			rev, _, _, err := store.Put(ctx, "/registry/"+r.codec.prefix+"/ns/a", value, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			rec := must[*Record](t)(r.Get(ctx, "ns/a", ""))
			if o := must[registry.Object](t)(rec.Object()); !c.want(o) || rec.Revision != rev {
				t.Errorf("%s read at %d is %v", c.gvr.Resource, rec.Revision, o)
			}
			// Its JSON says the same, for that is what patches are applied to.
			o := r.codec.new()
			if text := must[[]byte](t)(rec.AppendJSON(nil)); json.Unmarshal(text, o) != nil || !c.want(o) {
				t.Errorf("%s", text)
			}
		})
	}
}
