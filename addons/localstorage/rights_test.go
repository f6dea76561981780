package localstorage

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"
)

// class makes a class.
func (w *world) class(name, provisioner string, mode storagev1.VolumeBindingMode) {
	w.t.Helper()
	_, err := w.admin.StorageV1().StorageClasses().Create(w.ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &mode}, metav1.CreateOptions{})
	w.must(err)
}

// of makes a claim one of the class.
func of(class string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &class }
}

// volumeOn is the volume that a node makes for a claim.
func volumeOn(c *corev1.PersistentVolumeClaim, driver, node string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volumeName(c), Annotations: map[string]string{volume.AnnDynamicallyProvisioned: Provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{storage: resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: *c.Spec.StorageClassName, ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}
}

// restricted waits until the admission policy holds for a node.
func (w *world) restricted(node kubernetes.Interface) {
	w.t.Helper()
	probe := volumeOn(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "probe"}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new(ClassName)}}, "other.example.com", "nobody")
	probe.Spec.ClaimRef = nil
	w.await("the policy holds", func() bool {
		_, err := node.CoreV1().PersistentVolumes().Create(w.ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), policyName)
	})
}

// TestDrawn: a node makes volumes for claims that were given to it, and for nothing else
// that a claim could be bound to: it would have the claim's pod, and what that reads.
func TestDrawn(t *testing.T) {
	w := newWorld(t)
	one := w.api.Client(t, as("one"))
	w.restricted(one)
	w.class("now", Provisioner, storagev1.VolumeBindingImmediate)
	w.class("foreign", "other.example.com", storagev1.VolumeBindingImmediate)
	w.class("foreign-wait", "other.example.com", storagev1.VolumeBindingWaitForFirstConsumer)
	claims := 0
	mine := func(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		claims++
		v := volumeOn(w.claim(fmt.Sprint("mine", claims), "one"), Provisioner, "one")
		change(v)
		return v
	}
	as := func(name, node string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolume {
		return volumeOn(w.claim(name, node, change...), Provisioner, "one")
	}
	gone := as("gone", "one")
	_, err := w.admin.CoreV1().PersistentVolumeClaims("default").Patch(w.ctx, "gone", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	w.must(err) // what protects it is another controller's
	w.must(w.admin.CoreV1().PersistentVolumeClaims("default").Delete(w.ctx, "gone", metav1.DeleteOptions{}))
	w.claim("anew", "one")
	other := w.claim("other", "one")
	for name, tt := range map[string]struct {
		v   *corev1.PersistentVolume
		why string
	}{
		"a claim that is to come": {mine(func(v *corev1.PersistentVolume) {
			v.Name, v.Spec.ClaimRef = "drawn", &corev1.ObjectReference{Namespace: "default", Name: "data-db-0"}
		}), policyName},
		"a claim by name":      {mine(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "" }), policyName},
		"no claim":             {mine(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }), policyName},
		"no claim nor class":   {mine(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef, v.Spec.StorageClassName = nil, "" }), policyName},
		"no class":             {mine(func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "" }), policyName},
		"another name":         {mine(func(v *corev1.PersistentVolume) { v.Name = "pvc-x" }), policyName},
		"bound by the binder":  {mine(func(v *corev1.PersistentVolume) { v.Annotations[volume.AnnBoundByController] = "yes" }), policyName},
		"another class":        {mine(func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "foreign" }), `is of class "local-path", the volume is not`},
		"another claim's UID":  {mine(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Name = other.Name }), "is another one than the volume names"},
		"another namespace":    {mine(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Namespace = "kube-system" }), "not found"},
		"a claim that is gone": {gone, "not found"},
		"a claim made anew": {mine(func(v *corev1.PersistentVolume) {
			v.Name, v.Spec.ClaimRef.Name, v.Spec.ClaimRef.UID = "pvc-past", "anew", "past"
		}), "is another one than the volume names"},
		"another node's":        {as("of-two", "two"), "was not given to node one"},
		"nobody's":              {as("of-nobody", "", of("now")), "was not given to node one"},
		"another provisioner's": {as("of-foreign", "one", of("foreign")), "is of provisioner other.example.com"},
		"one that has a volume": {as("bound", "one", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "elsewhere" }), "has a volume"},
	} {
		if _, err := one.CoreV1().PersistentVolumes().Create(w.ctx, tt.v, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s: %v", name, err)
		}
	}
	v, err := one.CoreV1().PersistentVolumes().Create(w.ctx, mine(func(*corev1.PersistentVolume) {}), metav1.CreateOptions{})
	w.must(err)
	for _, c := range []struct {
		patch string
		ok    bool
	}{
		{`{"spec":{"claimRef":null}}`, false},
		{`{"spec":{"claimRef":{"uid":null}}}`, false},
		{`{"spec":{"claimRef":{"name":"other"}}}`, false},
		{`{"spec":{"storageClassName":"foreign"}}`, false},
		{`{"metadata":{"annotations":{"pv.kubernetes.io/bound-by-controller":"yes"}}}`, false},
		{`{"metadata":{"finalizers":["example.com/f"]},"spec":{"capacity":{"storage":"2Gi"}}}`, true},
	} {
		_, err := one.CoreV1().PersistentVolumes().Patch(w.ctx, v.Name, types.MergePatchType, []byte(c.patch), metav1.PatchOptions{})
		if (err == nil) != c.ok {
			t.Errorf("patch %s: %v", c.patch, err)
		}
	}
	// Nor does it have such a claim given to it by itself.
	w.claim("waits", "")
	w.claim("foreign", "", of("foreign"))
	w.claim("foreign-waits", "", of("foreign-wait"))
	for _, name := range []string{"waits", "foreign", "foreign-waits"} {
		take := []byte(`{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"one"}}}`)
		if _, err := one.CoreV1().PersistentVolumeClaims("default").Patch(w.ctx, name, types.MergePatchType, take, metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("took the claim %s: %v", name, err)
		}
	}
}

// TestRights: a node writes its own volumes and claims, and nothing of another's.
func TestRights(t *testing.T) {
	w := newWorld(t)
	one := w.api.Client(t, as("one"))
	pv := func(claim, driver, node string) *corev1.PersistentVolume {
		return volumeOn(w.claim(claim, "one"), driver, node)
	}
	w.restricted(one)
	host := pv("host", Provisioner, "one")
	host.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
	thief := pv("thief", Provisioner, "one") // its kubelet would be given the Secret
	thief.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "kube-system", Name: "theirs"}
	own := pv("a", Provisioner, "one")
	for _, c := range []struct {
		pv *corev1.PersistentVolume
		ok bool
	}{{own, true}, {pv("b", Provisioner, "two"), false}, {pv("c", "other.example.com", "one"), false}, {host, false}, {thief, false}} {
		_, err := one.CoreV1().PersistentVolumes().Create(w.ctx, c.pv, metav1.CreateOptions{})
		if (err == nil) != c.ok {
			t.Errorf("create %s: %v", c.pv.Name, err)
		}
	}
	theirs, err := w.admin.CoreV1().PersistentVolumes().Create(w.ctx, pv("of-two", Provisioner, "two"), metav1.CreateOptions{})
	w.must(err)
	if err := one.CoreV1().PersistentVolumes().Delete(w.ctx, theirs.Name, metav1.DeleteOptions{}); err == nil {
		t.Error("deleted another node's volume")
	}
	w.must(one.CoreV1().PersistentVolumes().Delete(w.ctx, own.Name, metav1.DeleteOptions{}))
	w.claim("mine", "one")
	w.class("now", Provisioner, storagev1.VolumeBindingImmediate)
	w.claim("any", "", of("now"))
	w.claim("theirs", "two")
	w.claim("bound", "", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "elsewhere" })
	for _, c := range []struct {
		claim, patch string
		ok           bool
	}{
		{"theirs", `{"metadata":{"annotations":{"a":"b"}}}`, false},
		{"theirs", `{"spec":{"volumeName":"b"}}`, false},
		{"mine", `{"spec":{"volumeName":"b"}}`, false},
		{"theirs", `{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"one"}}}`, false},
		{"mine", `{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"two"}}}`, false},
		{"mine", `{"metadata":{"annotations":{"pv.kubernetes.io/bind-completed":"yes"}}}`, false},
		{"mine", `{"metadata":{"finalizers":[]}}`, false},
		{"mine", `{"metadata":{"labels":{"a":"b"}}}`, false},
		{"mine", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"nobody"}]}}`, false},
		{"mine", `{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":null}}}`, true},
		{"mine", `{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"one"}}}`, false}, // the scheduler says who has it now
		{"any", `{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"one"}}}`, true},
		{"any", `{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":null}}}`, true},
		{"any", `{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"one"}}}`, true}, // taken again
		{"bound", `{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"one"}}}`, false},
	} {
		_, err := one.CoreV1().PersistentVolumeClaims("default").Patch(w.ctx, c.claim, types.MergePatchType, []byte(c.patch), metav1.PatchOptions{})
		if (err == nil) != c.ok {
			t.Errorf("patch %s %s: %v", c.claim, c.patch, err)
		}
	}
	if _, err := one.CoreV1().Secrets("default").List(w.ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("list secrets: %v", err)
	}
}
