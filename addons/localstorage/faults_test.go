package localstorage

import (
	"context"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/internal/apitest/fault"
)

// supervise runs a node whose first process is p, and starts another when one ends.
func (w *world) supervise(node string, p *fault.Process) {
	ctx, cancel := context.WithCancel(w.ctx)
	p.Stop = cancel
	w.parts.Go("node", func() {
		for wrap := true; w.ctx.Err() == nil; wrap = false {
			kube := w.api.Config(as(node))
			if wrap {
				kube.Wrap(p.Wrap(""))
			} else {
				ctx, cancel = context.WithCancel(w.ctx)
			}
			n, err := New(Config{Kube: kube, NodeName: node, Dir: w.storage(node), KubeletDir: filepath.Join(w.dir, node), Version: "test"})
			if err != nil {
				w.t.Error(err)
				return
			}
			if err := n.Run(ctx); err != nil && ctx.Err() == nil {
				w.t.Errorf("node %s: %v", node, err)
				return
			}
			cancel()
		}
	})
}

// lateBy is for how many looks at the cluster a process that is late sees nothing.
const lateBy = 12

// lag has watches bring what they have between two looks of many only.
func (w *world) lag(watches *fault.Watches, resource string) {
	watches.Hold(resource)
	looks := 0
	w.look = func() {
		switch looks++; looks % lateBy {
		case 0:
			watches.Release(resource)
		case 1:
			watches.Hold(resource)
		}
	}
}

// missed makes a change whose event is lost: the watch is too old to go on from.
func (w *world) missed(watches *fault.Watches, resource string, change func()) {
	watches.Hold(resource)
	change()
	looks := 0
	w.await("time for the process to do what it can", func() bool { looks++; return looks > lateBy })
	watches.Expire(resource)
}

// onDisk are the volumes that a node has.
func (w *world) onDisk(node string) []string {
	all, _ := filepath.Glob(filepath.Join(w.storage(node), "pvc-*"))
	return all
}

// live takes a claim through its life: it is made, made anew while its first volume is
// there, grows, and goes. It gives how many writes the first process began.
func live(t *testing.T, d fault.Disturbance) int {
	w := newWorld(t)
	_, err := w.admin.CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{corev1.LabelHostname: "one"}}}, metav1.CreateOptions{})
	w.must(err)
	watches := fault.NewWatches()
	p := &fault.Process{StopAt: d.StopAt, Unsent: d.Unsent, Watches: watches}
	w.supervise("one", p)
	change := func(f func()) { f() }
	switch {
	case d.Expire:
		change = func(f func()) { w.missed(watches, d.Lag, f) }
	case d.Lag != "":
		w.lag(watches, d.Lag)
	}
	var first, c *corev1.PersistentVolumeClaim
	change(func() { first = w.claim("data", "one") })
	firstVolume := w.volumeOf(first)
	change(func() { first = w.bindTo(first, firstVolume) })
	change(func() {
		w.releaseClaim(first)
		_, err = w.admin.CoreV1().PersistentVolumeClaims("default").Patch(w.ctx, "data", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		w.must(err) // what protects a claim that is used is another controller's
		c = w.claim("data", "one")
	})
	pv := w.volumeOf(c)
	change(func() { c = w.bindTo(c, pv) })
	w.gone(firstVolume.Name)
	w.await("one volume on disk", func() bool { return len(w.onDisk("one")) == 1 })
	change(func() {
		w.must(retry(func() error {
			c, err = w.admin.CoreV1().PersistentVolumeClaims("default").Get(w.ctx, "data", metav1.GetOptions{})
			w.must(err)
			c.Spec.Resources.Requests[storage] = resource.MustParse("30Mi")
			_, err = w.admin.CoreV1().PersistentVolumeClaims("default").Update(w.ctx, c, metav1.UpdateOptions{})
			return err
		}))
	})
	w.await("the claim has grown", func() bool {
		c, err = w.admin.CoreV1().PersistentVolumeClaims("default").Get(w.ctx, "data", metav1.GetOptions{})
		w.must(err)
		return c.Status.Capacity.Storage().String() == "30Mi" && len(c.Status.Conditions)+len(c.Status.AllocatedResourceStatuses) == 0
	})
	pv, err = w.admin.CoreV1().PersistentVolumes().Get(w.ctx, pv.Name, metav1.GetOptions{})
	if err != nil || pv.Spec.Capacity.Storage().String() != "30Mi" {
		t.Errorf("volume %+v, %v", pv, err)
	}
	change(func() { w.releaseClaim(c) })
	w.gone(pv.Name)
	w.await("nothing on disk", func() bool { return len(w.onDisk("one")) == 0 })
	w.await("each class has a capacity", func() bool {
		list, err := w.admin.StorageV1().CSIStorageCapacities(Namespace).List(w.ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 1
	})
	for _, name := range []string{firstVolume.Name, pv.Name} {
		if o, err := w.admin.CoreV1().PersistentVolumes().Get(w.ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) && o.DeletionTimestamp == nil {
			t.Errorf("%s is there: %v", name, err)
		}
	}
	return p.Writes()
}

// TestFaults: whichever write of its a node's provisioner ends at, the next one takes up
// what it left, and whatever it sees late or not at all, it ends at the same: no volume is
// made twice, forgotten or kept.
func TestFaults(t *testing.T) {
	var all []fault.Disturbance
	writes := live(t, fault.Disturbance{})
	for k := 1; k <= writes; k++ {
		all = append(all, fault.Disturbance{StopAt: k}, fault.Disturbance{StopAt: k, Unsent: true})
	}
	for _, kind := range []string{"*", "persistentvolumeclaims", "persistentvolumes", "storageclasses", "csistoragecapacities"} {
		all = append(all, fault.Disturbance{Lag: kind}, fault.Disturbance{Lag: kind, Expire: true})
	}
	t.Logf("%d writes, %d disturbances", writes, len(all))
	for _, d := range fault.Sample("local-path", all) {
		t.Run(d.String(), func(t *testing.T) { live(t, d) })
	}
}
