package localstorage

import (
	"slices"

	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
)

// lost has somebody look after what nodes left.
func (w *world) lost(grace time.Duration) {
	w.parts.Go("lost nodes", func() {
		if err := keepLost(w.ctx, w.admin, grace); err != nil {
			w.t.Error(err)
		}
	})
}

func (w *world) node(name string) {
	w.t.Helper()
	_, err := w.admin.CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}, metav1.CreateOptions{})
	w.must(err)
}

func (w *world) selected(claim string) string {
	c, err := w.admin.CoreV1().PersistentVolumeClaims("default").Get(w.ctx, claim, metav1.GetOptions{})
	w.must(err)
	return c.Annotations[volume.AnnSelectedNode]
}

// TestLostNode: a claim of a node that is gone is given back, and says so; a volume that
// only that node could delete says how to let it go. Nothing else is touched.
func TestLostNode(t *testing.T) {
	w := newWorld(t)
	w.node("stays")
	w.node("goes")
	w.class("foreign", "other.example.com", storagev1.VolumeBindingWaitForFirstConsumer)
	w.claim("kept", "stays")
	w.claim("theirs", "never", of("foreign"))
	w.claim("early", "never")
	w.claim("late", "goes")
	c, pv := w.claim("bound", "goes"), (*corev1.PersistentVolume)(nil)
	pv = volumeOn(c, Provisioner, "goes")
	pv.Finalizers, pv.Spec.PersistentVolumeReclaimPolicy = []string{volume.PVDeletionProtectionFinalizer}, corev1.PersistentVolumeReclaimDelete
	pv, err := w.admin.CoreV1().PersistentVolumes().Create(w.ctx, pv, metav1.CreateOptions{})
	w.must(err)
	c = w.bindTo(c, pv)
	w.lost(time.Millisecond)
	w.event("early", "ProvisioningFailed", `node "never", which it was given to, is not there any more`)
	w.await("the claim is given back", func() bool { return w.selected("early") == "" })
	w.must(w.admin.CoreV1().Nodes().Delete(w.ctx, "goes", metav1.DeleteOptions{}))
	w.event("late", "ProvisioningFailed", `failed to provision volume with StorageClass "local-path": node "goes"`)
	w.releaseClaim(c)
	w.event(pv.Name, "VolumeFailedDelete", `node "goes" is not there any more`)
	w.event(pv.Name, "VolumeFailedDelete", volume.PVDeletionProtectionFinalizer)
	w.must(w.admin.CoreV1().PersistentVolumes().Delete(w.ctx, pv.Name, metav1.DeleteOptions{}))
	w.claim("another", "never") // what comes after it has been looked at once it is
	w.await("another claim is given back", func() bool { return w.selected("another") == "" })
	if kept, theirs := w.selected("kept"), w.selected("theirs"); kept != "stays" || theirs != "never" {
		t.Errorf("kept by %q, another provisioner's by %q", kept, theirs)
	}
	all, err := w.admin.CoreV1().Events("default").List(w.ctx, metav1.ListOptions{})
	w.must(err)
	for i := range all.Items {
		if e := &all.Items[i]; e.Count > 1 || slices.Contains([]string{"kept", "theirs", "bound"}, e.InvolvedObject.Name) {
			t.Errorf("%d times %s %s", e.Count, e.InvolvedObject.Name, e.Message)
		}
	}
}

// TestLostGrace: a node that is away for a moment keeps its claims, and a claim made anew
// waits as long as the first.
func TestLostGrace(t *testing.T) {
	now, key := time.Unix(0, 0), cache.ObjectName{Namespace: "ns", Name: "c"}
	l, all := &lostNodes{grace: time.Minute}, map[cache.ObjectName]missed{}
	for _, c := range []struct {
		after time.Duration
		uid   string
		node  string
		want  time.Duration
	}{
		{0, "a", "n", time.Minute}, {30 * time.Second, "a", "n", 30 * time.Second}, {time.Minute, "a", "n", 0},
		{time.Minute, "b", "n", time.Minute}, {2 * time.Minute, "b", "m", time.Minute}, {4 * time.Minute, "b", "m", 0},
	} {
		if got := l.overdue(all, key, types.UID(c.uid), c.node, now.Add(c.after)); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestUndeletable: what its node would delete is told of, and nothing else.
func TestUndeletable(t *testing.T) {
	v := volumeOn(&corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new(ClassName)}}, Provisioner, "n")
	v.Finalizers, v.Spec.PersistentVolumeReclaimPolicy = []string{volume.PVDeletionProtectionFinalizer}, corev1.PersistentVolumeReclaimDelete
	for name, c := range map[string]struct {
		change func(*corev1.PersistentVolume)
		want   bool
	}{
		"bound": {func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound }, false},
		"bound, to go": {func(v *corev1.PersistentVolume) {
			v.Status.Phase, v.DeletionTimestamp = corev1.VolumeBound, &metav1.Time{}
		}, false},
		"released": {func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeReleased }, true},
		"retained": {func(v *corev1.PersistentVolume) {
			v.Status.Phase, v.Spec.PersistentVolumeReclaimPolicy = corev1.VolumeReleased, corev1.PersistentVolumeReclaimRetain
		}, false},
		"to go": {func(v *corev1.PersistentVolume) {
			v.Status.Phase, v.DeletionTimestamp = corev1.VolumeAvailable, &metav1.Time{}
		}, true},
		"another's": {func(v *corev1.PersistentVolume) { v.Status.Phase, v.Annotations = corev1.VolumeReleased, nil }, false},
	} {
		v := v.DeepCopy()
		c.change(v)
		if got := undeletable(v); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
