package localstorage

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"

	"knarr/addons/localstorage/disk"
	"knarr/internal/apitest"
	"knarr/internal/localpath"
	"knarr/internal/run"
)

// A world is an API server and nodes that provision on it. What binds claims and
// runs pods is the test.
type world struct {
	t      *testing.T
	ctx    context.Context
	api    *apitest.Server
	admin  kubernetes.Interface
	dir    string
	cancel context.CancelFunc
	parts  run.Group
	look   func() // before each look at the cluster, if not nil
}

func newWorld(t *testing.T, nodes ...string) *world {
	api, _ := apitest.New(t)
	dir, err := os.MkdirTemp("", "") // a socket's path must be short, which a test's name may not be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &world{t: t, api: api, admin: api.Client(t), dir: dir}
	w.ctx, w.cancel = context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(func() { w.cancel(); w.parts.Wait() })
	p, err := NewPublisher(PublisherConfig{Kube: api.Config()})
	w.must(err)
	w.must(p.publish(w.ctx))
	for _, name := range nodes {
		_, err := w.admin.CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}, metav1.CreateOptions{})
		w.must(err)
		w.start(w.ctx, name)
	}
	return w
}

func as(node string) *user.DefaultInfo {
	return &user.DefaultInfo{Name: User(node), Groups: []string{Group, user.AllAuthenticated}}
}

func (w *world) storage(node string) string { return filepath.Join(w.dir, node, "storage") }

func (w *world) start(ctx context.Context, node string) {
	n, err := New(Config{Kube: w.api.Config(as(node)), NodeName: node, Dir: w.storage(node), KubeletDir: filepath.Join(w.dir, node), Version: "test"})
	w.must(err)
	w.parts.Go("node", func() {
		if err := n.Run(ctx); err != nil {
			w.t.Errorf("node %s: %v", node, err)
		}
	})
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// await waits for something to become so.
func (w *world) await(what string, so func() bool) {
	w.t.Helper()
	for !so() {
		if w.look != nil {
			w.look()
		}
		select {
		case <-w.ctx.Done():
			events, _ := w.admin.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
			for i := range events.Items {
				w.t.Log(events.Items[i].Reason, events.Items[i].Message)
			}
			w.t.Fatalf("%s: not within a minute", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// claim makes one, handed over to the provisioner as the binder does, and given to
// a node as the scheduler does.
func (w *world) claim(name, node string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	class := ClassName
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{volume.AnnStorageProvisioner: Provisioner}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{storage: resource.MustParse("20Mi")}},
		},
	}
	if node != "" {
		c.Annotations[volume.AnnSelectedNode] = node
	}
	for _, f := range change {
		f(c)
	}
	c, err := w.admin.CoreV1().PersistentVolumeClaims("default").Create(w.ctx, c, metav1.CreateOptions{})
	w.must(err)
	return c
}

// bind does what the binder does once there is a volume.
func (w *world) bind(c *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	w.t.Helper()
	pv := w.volumeOf(c)
	return w.bindTo(c, pv), pv
}

// volumeOf waits for a claim's volume.
func (w *world) volumeOf(c *corev1.PersistentVolumeClaim) (pv *corev1.PersistentVolume) {
	w.t.Helper()
	w.await("volume of "+c.Name, func() (there bool) {
		var err error
		pv, err = w.admin.CoreV1().PersistentVolumes().Get(w.ctx, volumeName(c), metav1.GetOptions{})
		return err == nil
	})
	return pv
}

// bindTo binds a claim and its volume.
func (w *world) bindTo(c *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	pv.Status.Phase = corev1.VolumeBound
	_, err := w.admin.CoreV1().PersistentVolumes().UpdateStatus(w.ctx, pv, metav1.UpdateOptions{})
	w.must(err)
	c, err = w.admin.CoreV1().PersistentVolumeClaims("default").Get(w.ctx, c.Name, metav1.GetOptions{})
	w.must(err)
	c.Spec.VolumeName = pv.Name
	c, err = w.admin.CoreV1().PersistentVolumeClaims("default").Update(w.ctx, c, metav1.UpdateOptions{})
	w.must(err)
	c.Status.Phase, c.Status.Capacity, c.Status.AccessModes = corev1.ClaimBound, pv.Spec.Capacity, pv.Spec.AccessModes
	c, err = w.admin.CoreV1().PersistentVolumeClaims("default").UpdateStatus(w.ctx, c, metav1.UpdateOptions{})
	w.must(err)
	return c
}

// event waits for one on a claim.
func (w *world) event(claim, reason, part string) {
	w.t.Helper()
	w.await(claim+": event "+reason+" "+part, func() bool {
		all, err := w.admin.CoreV1().Events("default").List(w.ctx, metav1.ListOptions{})
		if err != nil {
			return false
		}
		for i := range all.Items {
			if e := &all.Items[i]; e.InvolvedObject.Name == claim && e.Reason == reason && strings.Contains(e.Message, part) {
				return true
			}
		}
		return false
	})
}

func (w *world) gone(pv string) {
	w.t.Helper()
	w.await("volume "+pv+" gone", func() bool {
		v, err := w.admin.CoreV1().PersistentVolumes().Get(w.ctx, pv, metav1.GetOptions{})
		// What protects a volume that is bound is another controller's.
		return apierrors.IsNotFound(err) || err == nil && v.DeletionTimestamp != nil && slices.Equal(v.Finalizers, []string{"kubernetes.io/pv-protection"})
	})
}

// releaseClaim does what the binder does when a claim has gone.
func (w *world) releaseClaim(c *corev1.PersistentVolumeClaim) {
	w.t.Helper()
	w.must(w.admin.CoreV1().PersistentVolumeClaims("default").Delete(w.ctx, c.Name, metav1.DeleteOptions{}))
	w.must(retry(func() error {
		pv, err := w.admin.CoreV1().PersistentVolumes().Get(w.ctx, c.Spec.VolumeName, metav1.GetOptions{})
		if err == nil {
			pv.Status.Phase = corev1.VolumeReleased
			_, err = w.admin.CoreV1().PersistentVolumes().UpdateStatus(w.ctx, pv, metav1.UpdateOptions{})
		}
		return err
	}))
}

func retry(do func() error) (err error) {
	for range 20 {
		if err = do(); !apierrors.IsConflict(err) {
			return err
		}
	}
	return err
}

// TestLifeOfAClaim: a claim gets a volume on its node, a larger one when it asks,
// and its data goes with it; no other node does anything about it.
func TestLifeOfAClaim(t *testing.T) {
	w := newWorld(t, "one", "two")
	c := w.claim("data", "one")
	c, pv := w.bind(c)
	w.event("data", "Provisioning", `External provisioner is provisioning volume for claim "default/data"`)
	w.event("data", "ProvisioningSucceeded", "Successfully provisioned volume "+pv.Name+": its size is ")
	handle := pv.Spec.CSI.VolumeHandle
	if want := pv.Name + "_default_data"; handle != want || pv.Annotations[volume.AnnDynamicallyProvisioned] != Provisioner {
		t.Errorf("volume %q of %q", handle, pv.Annotations)
	}
	if _, err := os.Stat(filepath.Join(w.storage("one"), handle)); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(w.storage("two"), "pvc-*")); len(left) > 0 {
		t.Errorf("node two has %v", left)
	}
	c.Spec.Resources.Requests[storage] = resource.MustParse("30Mi")
	_, err := w.admin.CoreV1().PersistentVolumeClaims("default").Update(w.ctx, c, metav1.UpdateOptions{})
	w.must(err)
	w.event("data", "Resizing", "External resizer is resizing volume "+pv.Name)
	w.event("data", "VolumeResizeSuccessful", "Resize volume succeeded")
	c, err = w.admin.CoreV1().PersistentVolumeClaims("default").Get(w.ctx, "data", metav1.GetOptions{})
	w.must(err)
	pv, err = w.admin.CoreV1().PersistentVolumes().Get(w.ctx, pv.Name, metav1.GetOptions{})
	w.must(err)
	if c.Status.Capacity.Storage().String() != "30Mi" || pv.Spec.Capacity.Storage().String() != "30Mi" || len(c.Status.Conditions) > 0 || len(c.Status.AllocatedResourceStatuses) > 0 {
		t.Errorf("claim %+v, volume %v", c.Status, pv.Spec.Capacity)
	}
	w.releaseClaim(c)
	w.gone(pv.Name)
	if left, _ := filepath.Glob(filepath.Join(w.storage("one"), "pvc-*")); len(left) > 0 {
		t.Errorf("node one has %v", left)
	}
}

// TestKept: with the policy Retain the data stays, also when the object goes.
func TestKept(t *testing.T) {
	w := newWorld(t, "one")
	c, pv := w.bind(w.claim("data", "one"))
	patch := []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
	_, err := w.admin.CoreV1().PersistentVolumes().Patch(w.ctx, pv.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	w.must(err)
	w.await("finalizer gone", func() bool {
		pv, err = w.admin.CoreV1().PersistentVolumes().Get(w.ctx, pv.Name, metav1.GetOptions{})
		return err == nil && !strings.Contains(strings.Join(pv.Finalizers, " "), volume.PVDeletionProtectionFinalizer)
	})
	w.releaseClaim(c)
	other, _ := w.bind(w.claim("other", "one"))
	w.releaseClaim(other)
	w.gone(volumeName(other)) // by then the other would have gone too
	w.must(w.admin.CoreV1().PersistentVolumes().Delete(w.ctx, pv.Name, metav1.DeleteOptions{}))
	if _, err := os.Stat(filepath.Join(w.storage("one"), pv.Spec.CSI.VolumeHandle)); err != nil {
		t.Error(err)
	}
}

// TestOrphan: a volume that a process made for a claim, and ended before it could
// say so, goes if the claim has gone, and is taken up if it has not. One that was
// saved stays without its object.
func TestOrphan(t *testing.T) {
	w := newWorld(t)
	kept := w.claim("kept", "one")
	store, err := disk.Open(w.ctx, w.storage("one"))
	w.must(err)
	for _, name := range []string{volumeName(kept), "pvc-gone", "pvc-saved", "other"} {
		id := disk.ID(name, "default", "x")
		_, err := store.Create(w.ctx, disk.Request{ID: id, Name: name, Size: 20 << 20, Limit: disk.None})
		w.must(err)
		if name == "pvc-saved" {
			w.must(store.Save(id))
		}
	}
	w.must(store.Close())
	_, err = w.admin.CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{corev1.LabelHostname: "one"}}}, metav1.CreateOptions{})
	w.must(err)
	w.start(w.ctx, "one")
	there := func(name string) bool {
		_, err := os.Stat(filepath.Join(w.storage("one"), disk.ID(name, "default", "x")))
		return err == nil
	}
	w.await("the orphan is gone", func() bool { return !there("pvc-gone") })
	if _, pv := w.bind(kept); pv.Spec.CSI.VolumeHandle != disk.ID(volumeName(kept), "default", "x") {
		t.Errorf("%s is not taken up: %s", volumeName(kept), pv.Spec.CSI.VolumeHandle)
	}
	for _, name := range []string{volumeName(kept), "pvc-saved", "other"} {
		if !there(name) {
			t.Errorf("%s is gone", name)
		}
	}
}

// TestRefused: what cannot be met says so on the claim, and a node without room
// gives the claim back to the scheduler.
func TestRefused(t *testing.T) {
	w := newWorld(t, "one")
	w.claim("big", "one", func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests[storage] = resource.MustParse("1Pi") })
	w.event("big", "ProvisioningFailed", `failed to provision volume with StorageClass "local-path": rpc error: code = ResourceExhausted`)
	w.await("the claim is given back", func() bool {
		c, err := w.admin.CoreV1().PersistentVolumeClaims("default").Get(w.ctx, "big", metav1.GetOptions{})
		return err == nil && c.Annotations[volume.AnnSelectedNode] == ""
	})
	w.claim("many", "one", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	w.event("many", "ProvisioningFailed", "use ReadWriteOnce or ReadWriteOncePod, or another class")
	w.claim("selects", "one", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	})
	w.event("selects", "ProvisioningFailed", "claim Selector is not supported")
	w.claim("copy", "one", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "nobody"}
	})
	w.event("copy", "ProvisioningFailed", "error getting PVC nobody from api server")
}

// TestCopyOfAClaim: a claim whose source is a claim has its data.
func TestCopyOfAClaim(t *testing.T) {
	w := newWorld(t, "one")
	limit := func(name string, parameters map[string]string) {
		wait := storagev1.VolumeBindingWaitForFirstConsumer
		_, err := w.admin.StorageV1().StorageClasses().Create(w.ctx, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: localpath.K3sProvisioner, VolumeBindingMode: &wait, Parameters: parameters,
		}, metav1.CreateOptions{})
		w.must(err)
	}
	limit("plain", map[string]string{"limit": "none"})
	k3s := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName, c.Annotations[volume.AnnStorageProvisioner] = new("plain"), localpath.K3sProvisioner
	}
	_, pv := w.bind(w.claim("data", "one", k3s))
	w.must(os.WriteFile(filepath.Join(w.storage("one"), pv.Spec.CSI.VolumeHandle, "file"), []byte("hello"), 0o600))
	_, copied := w.bind(w.claim("copy", "one", k3s, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "data"}
	}))
	b, err := os.ReadFile(filepath.Join(w.storage("one"), copied.Spec.CSI.VolumeHandle, "file"))
	if err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	if got := pv.Annotations[volume.AnnDynamicallyProvisioned]; got != localpath.K3sProvisioner {
		t.Errorf("provisioned by %q", got)
	}
}

// TestImmediate: a class that does not wait gets its volume on one node.
func TestImmediate(t *testing.T) {
	w := newWorld(t, "one", "two")
	_, err := w.admin.StorageV1().StorageClasses().Create(w.ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "now"}, Provisioner: Provisioner}, metav1.CreateOptions{})
	w.must(err)
	_, pv := w.bind(w.claim("data", "", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("now") }))
	at := 0
	for _, node := range []string{"one", "two"} {
		if _, err := os.Stat(filepath.Join(w.storage(node), pv.Spec.CSI.VolumeHandle)); err == nil {
			at++
		}
	}
	if at != 1 {
		t.Errorf("the volume is on %d nodes", at)
	}
}

// TestImmediateRefused: what is wrong with a class that does not wait is said on its
// claims, with a node's own rights.
func TestImmediateRefused(t *testing.T) {
	w := newWorld(t, "one", "two")
	_, err := w.admin.StorageV1().StorageClasses().Create(w.ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "wrong"}, Provisioner: Provisioner,
		Parameters: map[string]string{"size": "any"}}, metav1.CreateOptions{})
	w.must(err)
	w.claim("data", "", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("wrong") })
	w.event("data", "ProvisioningFailed", `failed to provision volume with StorageClass "wrong": rpc error: code = InvalidArgument desc = Parameter "size" is not supported`)
}

// TestCapacity: the scheduler learns what each class has on each node.
func TestCapacity(t *testing.T) {
	w := newWorld(t, "one", "two")
	list := func() (all []storagev1.CSIStorageCapacity) {
		l, err := w.admin.StorageV1().CSIStorageCapacities(Namespace).List(w.ctx, metav1.ListOptions{})
		w.must(err)
		return l.Items
	}
	w.await("capacities", func() bool { return len(list()) == 2 })
	for _, c := range list() {
		if c.Capacity.Value() <= 0 || c.StorageClassName != ClassName || len(c.NodeTopology.MatchLabels) != 1 || c.OwnerReferences[0].Kind != "Node" {
			t.Errorf("%+v", c)
		}
	}
	w.must(w.admin.StorageV1().StorageClasses().Delete(w.ctx, ClassName, metav1.DeleteOptions{}))
	w.await("no capacities", func() bool { return len(list()) == 0 })
}

// TestPublish: what a user has changed stays, and only what was made here goes.
func TestPublish(t *testing.T) {
	w := newWorld(t)
	classes := w.admin.StorageV1().StorageClasses()
	class, err := classes.Get(w.ctx, ClassName, metav1.GetOptions{})
	w.must(err)
	if class.Annotations[defaultClass] != "true" || !*class.AllowVolumeExpansion || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
		t.Errorf("%+v", class)
	}
	class.Annotations[defaultClass] = "false"
	_, err = classes.Update(w.ctx, class, metav1.UpdateOptions{})
	w.must(err)
	p := &Publisher{client: w.admin}
	w.must(p.publish(w.ctx))
	if class, err = classes.Get(w.ctx, ClassName, metav1.GetOptions{}); err != nil || class.Annotations[defaultClass] != "false" {
		t.Errorf("%v, %v", class.Annotations, err)
	}
	old, err := w.admin.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(w.ctx, policyName, metav1.GetOptions{})
	w.must(err)
	old.Spec.Validations = old.Spec.Validations[:1]
	_, err = w.admin.AdmissionregistrationV1().ValidatingAdmissionPolicies().Update(w.ctx, old, metav1.UpdateOptions{})
	w.must(err)
	w.must(p.publish(w.ctx))
	if now, err := w.admin.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(w.ctx, policyName, metav1.GetOptions{}); err != nil || len(now.Spec.Validations) < 2 {
		t.Errorf("an older release's policy stays: %v", err)
	}
	w.must(p.Withdraw(w.ctx))
	w.must(p.Withdraw(w.ctx))
	if _, err = classes.Get(w.ctx, ClassName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the class stays: %v", err)
	}
	_, err = classes.Create(w.ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: ClassName, Annotations: map[string]string{defaultClass: "true"}}, Provisioner: "example.com/theirs"}, metav1.CreateOptions{})
	w.must(err)
	w.must(p.publish(w.ctx))
	w.must(p.Withdraw(w.ctx))
	if class, err = classes.Get(w.ctx, ClassName, metav1.GetOptions{}); err != nil || class.Provisioner != "example.com/theirs" {
		t.Errorf("a user's class: %+v, %v", class, err)
	}
}
