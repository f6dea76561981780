package apiserver_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func sliceOf(name string, node *string) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "d.example.com", Pool: resourcev1.ResourcePool{Name: name, ResourceSliceCount: 1}, NodeName: node}}
	if node == nil {
		s.Spec.AllNodes = new(true)
	}
	return s
}

// TestNodeSlices: a node offers the devices of itself, and nobody else's.
func TestNodeSlices(t *testing.T) {
	w := newWorld(t)
	n1, n2 := w.node("n1").ResourceV1().ResourceSlices(), w.node("n2").ResourceV1().ResourceSlices()
	const create = "can only create ResourceSlice with the same NodeName as the requesting node"
	_, err := n1.Create(w.ctx, sliceOf("theirs", new("n2")), metav1.CreateOptions{})
	refused(t, err, create)
	_, err = n1.Create(w.ctx, sliceOf("all", nil), metav1.CreateOptions{})
	refused(t, err, create)
	_, err = n1.Create(w.ctx, sliceOf("mine", new("n1")), metav1.CreateOptions{})
	w.must(err)
	_, err = n2.Create(w.ctx, sliceOf("theirs", new("n2")), metav1.CreateOptions{})
	w.must(err)
	w.must(w.Cache().Sync(w.ctx))

	patch := []byte(`{"metadata":{"labels":{"a":"b"}}}`)
	_, err = n1.Get(w.ctx, "mine", metav1.GetOptions{})
	w.must(err)
	_, err = n1.Patch(w.ctx, "mine", types.MergePatchType, patch, metav1.PatchOptions{})
	w.must(err)
	_, err = n1.Get(w.ctx, "theirs", metav1.GetOptions{})
	refused(t, err, "no relationship found between node 'n1' and this object")
	_, err = n1.Patch(w.ctx, "theirs", types.MergePatchType, patch, metav1.PatchOptions{})
	refused(t, err, "no relationship found between node 'n1' and this object")
	refused(t, n1.Delete(w.ctx, "theirs", metav1.DeleteOptions{}), "no relationship found between node 'n1' and this object")
	_, err = n1.Patch(w.ctx, "mine", types.MergePatchType, []byte(`{"spec":{"nodeName":"n2"}}`), metav1.PatchOptions{})
	refused(t, err, "field is immutable")

	own := metav1.ListOptions{FieldSelector: "spec.nodeName=n1"}
	refused(t, n1.DeleteCollection(w.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}), "can only list/watch/deletecollection resourceslices with nodeName field selector")
	refused(t, n2.DeleteCollection(w.ctx, metav1.DeleteOptions{}, own), "can only list/watch/deletecollection resourceslices with nodeName field selector")
	w.must(n1.DeleteCollection(w.ctx, metav1.DeleteOptions{}, own))
	left, err := w.admin.ResourceV1().ResourceSlices().List(w.ctx, metav1.ListOptions{})
	w.must(err)
	if len(left.Items) != 1 || left.Items[0].Name != "theirs" {
		t.Errorf("left are %v", left.Items)
	}
	w.must(n2.Delete(w.ctx, "theirs", metav1.DeleteOptions{}))
}

// TestNodeReadsClaims: a node reads the claims of its pods: those named, those
// made for them, and the one that stands for extended resources.
func TestNodeReadsClaims(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("p", "n1", func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: new("named")}, {Name: "b", ResourceClaimTemplateName: new("t")}}
		devices := corev1.ResourceList{"d.example.com/x": resource.MustParse("1")}
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: devices, Limits: devices}
	})
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "b", ResourceClaimName: new("made")}}
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "extended",
		RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "c", ResourceName: "d.example.com/x", RequestName: "r"}}}
	_, err := w.admin.CoreV1().Pods("default").UpdateStatus(w.ctx, pod, metav1.UpdateOptions{})
	w.must(err)
	for _, name := range []string{"named", "made", "extended", "other"} {
		_, err := w.admin.ResourceV1().ResourceClaims("default").Create(w.ctx, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		w.must(err)
	}
	w.must(w.Cache().Sync(w.ctx))
	for _, name := range []string{"named", "made", "extended"} {
		_, err := w.node("n1").ResourceV1().ResourceClaims("default").Get(w.ctx, name, metav1.GetOptions{})
		w.must(err)
		_, err = w.node("n2").ResourceV1().ResourceClaims("default").Get(w.ctx, name, metav1.GetOptions{})
		refused(t, err, "no relationship found between node 'n2' and this object")
	}
	_, err = w.node("n1").ResourceV1().ResourceClaims("default").Get(w.ctx, "other", metav1.GetOptions{})
	refused(t, err, "no relationship found")
}
