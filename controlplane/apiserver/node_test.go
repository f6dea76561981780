package apiserver_test

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func (w *world) secret(namespace, name string) {
	w.t.Helper()
	_, err := w.admin.CoreV1().Secrets(namespace).Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	w.must(err)
}

func withSecret(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v-" + name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}})
	}
}

func TestNodeReadsOnlyWhatItsPodsName(t *testing.T) {
	w := newWorld(t)
	w.namespace("other")
	for _, s := range []string{"vol", "env", "from", "pull", "eph", "init", "none", "theirs", "pv"} {
		w.secret("default", s)
	}
	w.secret("other", "vol")
	ref := func(n string) *corev1.SecretKeySelector {
		return &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: n}, Key: "k"}
	}
	w.pod("mine", "n1", withSecret("vol"), func(p *corev1.Pod) {
		p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "E", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: ref("env")}}}
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "from"}}}}
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i", Env: []corev1.EnvVar{{Name: "E", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: ref("init")}}}}}
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "c", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}})
	})
	w.pod("theirs", "n2", withSecret("theirs"))
	_, err := w.admin.CoreV1().PersistentVolumes().Create(w.ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{"storage": *one()}, AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce"},
		ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "claim"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: "h",
			NodePublishSecretRef: &corev1.SecretReference{Namespace: "default", Name: "pv"}}}}}, metav1.CreateOptions{})
	w.must(err)
	_, err = w.admin.CoreV1().PersistentVolumeClaims("default").Create(w.ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim"}, Spec: corev1.PersistentVolumeClaimSpec{
		VolumeName: "pv", AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce"},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": *one()}}}}, metav1.CreateOptions{})
	w.must(err)
	// It names the claim, which is another volume's, and a Secret that no pod has.
	_, err = w.admin.CoreV1().PersistentVolumes().Create(w.ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "thief"}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{"storage": *one()}, AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce"},
		ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "claim"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: "t",
			NodeStageSecretRef: &corev1.SecretReference{Namespace: "default", Name: "none"}}}}}, metav1.CreateOptions{})
	w.must(err)
	w.must(w.Cache().Sync(w.ctx))
	n1, n2 := w.node("n1"), w.node("n2")
	for _, name := range []string{"vol", "env", "from", "pull", "init", "pv"} {
		if _, err := n1.CoreV1().Secrets("default").Get(w.ctx, name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		_, err := n2.CoreV1().Secrets("default").Get(w.ctx, name, metav1.GetOptions{})
		refused(t, err, `secrets "`+name+`" is forbidden: User "system:node:n2" cannot get resource "secrets" in API group "" in the namespace "default": no relationship found between node 'n2' and this object`)
	}
	for _, name := range []string{"none", "theirs"} {
		_, err := n1.CoreV1().Secrets("default").Get(w.ctx, name, metav1.GetOptions{})
		refused(t, err, "no relationship found between node 'n1' and this object")
	}
	_, err = n1.CoreV1().Secrets("other").Get(w.ctx, "vol", metav1.GetOptions{})
	refused(t, err, "no relationship found")
	_, err = n1.CoreV1().Secrets("").List(w.ctx, metav1.ListOptions{FieldSelector: "metadata.name=vol"})
	refused(t, err, "can only read namespaced object of this type")
	_, err = n1.CoreV1().Secrets("default").List(w.ctx, metav1.ListOptions{})
	refused(t, err, "No Object name found")
	_, err = n1.CoreV1().Secrets("default").List(w.ctx, metav1.ListOptions{FieldSelector: "metadata.name=vol"})
	w.must(err)
	_, err = n1.CoreV1().Secrets("default").Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
	refused(t, err, "can only read resources of this type")
	_, err = n1.CoreV1().PersistentVolumes().Get(w.ctx, "pv", metav1.GetOptions{})
	w.must(err)
	_, err = n2.CoreV1().PersistentVolumes().Get(w.ctx, "pv", metav1.GetOptions{})
	refused(t, err, "no relationship found")
	_, err = n1.CoreV1().Pods("default").Get(w.ctx, "mine", metav1.GetOptions{})
	w.must(err)
	_, err = n1.CoreV1().Pods("default").Get(w.ctx, "theirs", metav1.GetOptions{})
	refused(t, err, "no relationship found")
	_, err = n1.CoreV1().Pods("").List(w.ctx, metav1.ListOptions{})
	refused(t, err, "can only list/watch pods with spec.nodeName field selector")
	_, err = n1.CoreV1().Pods("").List(w.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n2"})
	refused(t, err, "can only list/watch pods with spec.nodeName field selector")
	pods, err := n1.CoreV1().Pods("").List(w.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n1"})
	w.must(err)
	if len(pods.Items) != 1 {
		t.Errorf("%d pods", len(pods.Items))
	}
	_, err = n1.CoreV1().Nodes().List(w.ctx, metav1.ListOptions{})
	refused(t, err, "node 'n1' cannot read all nodes, only its own Node object")
	_, err = n1.CoreV1().Nodes().Get(w.ctx, "n2", metav1.GetOptions{})
	refused(t, err, "node 'n1' cannot read 'n2', only its own Node object")
	refused(t, n1.CoreV1().Nodes().Delete(w.ctx, "n1", metav1.DeleteOptions{}), "forbidden")
	_, err = w.as("system:node:", "system:nodes").CoreV1().Nodes().Get(w.ctx, "n2", metav1.GetOptions{})
	refused(t, err, `unknown node for user "system:node:"`)
}

func TestNodeLeases(t *testing.T) {
	w := newWorld(t)
	lease := func(name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	n1 := w.node("n1")
	_, err := n1.CoordinationV1().Leases("kube-node-lease").Create(w.ctx, lease("n1"), metav1.CreateOptions{})
	w.must(err)
	_, err = n1.CoordinationV1().Leases("kube-node-lease").Create(w.ctx, lease("n2"), metav1.CreateOptions{})
	refused(t, err, "can only access node lease with the same name as the requesting node")
	_, err = n1.CoordinationV1().Leases("kube-system").Create(w.ctx, lease("n1"), metav1.CreateOptions{})
	refused(t, err, `can only access leases in the "kube-node-lease" system namespace`)
	_, err = n1.CoordinationV1().Leases("kube-node-lease").List(w.ctx, metav1.ListOptions{})
	refused(t, err, "can only get, create, update, patch, or delete a node lease")
}

func TestNodeTokens(t *testing.T) {
	w := newWorld(t)
	mine, theirs := w.pod("mine", "n1"), w.pod("theirs", "n2")
	w.account("default", "robot")
	n1 := w.node("n1")
	ask := func(sa string, pod *corev1.Pod, audiences ...string) error {
		r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
		if pod != nil {
			r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
		}
		_, err := n1.CoreV1().ServiceAccounts("default").CreateToken(w.ctx, sa, r, metav1.CreateOptions{})
		return err
	}
	w.must(ask("default", mine))
	refused(t, ask("default", nil), "node requested token not bound to a pod")
	refused(t, ask("default", theirs), "node requested token bound to a pod scheduled on a different node")
	refused(t, ask("robot", mine), "no relationship found between node 'n1' and this object")
	refused(t, ask("default", mine, "vault"), `audience "vault" not found in pod spec volume, system:node:n1 is not authorized to request tokens for this audience`)
	refused(t, ask("default", mine, "a", "b"), "node may only request 0 or 1 audiences")
	other := mine.DeepCopy()
	other.UID = "1"
	refused(t, ask("default", other), "the UID in the bound object reference (1) does not match the UID in record")
	other.UID = ""
	refused(t, ask("default", other), "node requested token with a pod binding without a uid")
}

func TestNodeRestrictsItself(t *testing.T) {
	w := newWorld(t)
	n1 := w.node("n1")
	node, err := n1.CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"kubernetes.io/hostname": "n1", "own": "x"}}}, metav1.CreateOptions{})
	w.must(err)
	if len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != corev1.TaintNodeNotReady {
		t.Errorf("a new node is tainted %v", node.Spec.Taints)
	}
	_, err = n1.CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, metav1.CreateOptions{})
	refused(t, err, `node "n1" is not allowed to modify node "n2"`)
	_, err = w.node("n3").CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n3", Labels: map[string]string{"node-restriction.kubernetes.io/a": "x", "k8s.io/b": "y"}}}, metav1.CreateOptions{})
	refused(t, err, `node "n3" is not allowed to set the following labels: k8s.io/b, node-restriction.kubernetes.io/a`)
	// CVE-2021-25735: each patch type shows admission the new object.
	for kind, body := range map[types.PatchType]string{
		types.MergePatchType:          `{"metadata":{"labels":{"node-restriction.kubernetes.io/a":"x"}}}`,
		types.StrategicMergePatchType: `{"metadata":{"labels":{"node-restriction.kubernetes.io/a":"x"}}}`,
		types.JSONPatchType:           `[{"op":"add","path":"/metadata/labels/node-restriction.kubernetes.io~1a","value":"x"}]`,
		types.ApplyPatchType:          `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","labels":{"node-restriction.kubernetes.io/a":"x"}}}`,
	} {
		opts := metav1.PatchOptions{}
		if kind == types.ApplyPatchType {
			opts.FieldManager = "m"
		}
		for _, sub := range []string{"", "status"} {
			_, err := n1.CoreV1().Nodes().Patch(w.ctx, "n1", kind, []byte(body), opts, sub)
			refused(t, err, "is not allowed to modify labels: node-restriction.kubernetes.io/a")
		}
	}
	for body, want := range map[string]string{
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"1"}]}}`: `node "n1" is not allowed to modify ownerReferences`, // CVE-2025-5187
		`{"spec":{"taints":null}}`: `node "n1" is not allowed to modify taints`,
	} {
		_, err := n1.CoreV1().Nodes().Patch(w.ctx, "n1", types.MergePatchType, []byte(body), metav1.PatchOptions{})
		refused(t, err, want)
	}
	_, err = n1.CoreV1().Nodes().Patch(w.ctx, "n1", types.MergePatchType, []byte(`{"metadata":{"labels":{"own":"y","topology.kubernetes.io/zone":"z"}}}`), metav1.PatchOptions{})
	w.must(err)
	_, err = w.node("n2").CoreV1().Nodes().Patch(w.ctx, "n1", types.MergePatchType, []byte(`{"metadata":{"labels":{"own":"z"}}}`), metav1.PatchOptions{})
	refused(t, err, `node "n2" is not allowed to modify node "n1"`)
}

func TestNodeRestrictsPods(t *testing.T) {
	w := newWorld(t)
	n1 := w.node("n1")
	self, err := n1.CoreV1().Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	w.must(err)
	mirror := func(change ...func(*corev1.Pod)) *corev1.Pod {
		p := podNamed("mirror", "n1")
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: self.UID, Controller: new(true)}}
		for _, c := range change {
			c(p)
		}
		return p
	}
	create := func(p *corev1.Pod) error {
		_, err := n1.CoreV1().Pods("default").Create(w.ctx, p, metav1.CreateOptions{})
		return err
	}
	for want, change := range map[string]func(*corev1.Pod){
		`pod does not have "kubernetes.io/config.mirror" annotation, node "n1" can only create mirror pods`: func(p *corev1.Pod) { p.Annotations = nil },
		`node "n1" can only create pods with spec.nodeName set to itself`:                                   func(p *corev1.Pod) { p.Spec.NodeName = "n2" },
		`node "n1" can only create pods with an owner reference set to itself`:                              func(p *corev1.Pod) { p.OwnerReferences = nil },
		`node "n1" can only create pods with a controller owner reference set to itself`:                    func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil },
		`UID mismatch`:                           func(p *corev1.Pod) { p.OwnerReferences[0].UID = "1" },
		`a mirror pod may not reference secrets`: withSecret("s"),
		`a mirror pod may not use ServiceAccountToken volume projections`: func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "t"}}}}}}}
		},
		`node "n1" can not create pods that reference resourceclaims`: func(p *corev1.Pod) { // CVE-2025-4563
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: new("c")}}
		},
		`node "n1" can not create pods that reference persistentvolumeclaims`: func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		},
	} {
		err := create(mirror(change))
		if strings.HasPrefix(want, "a mirror pod") && err != nil && strings.Contains(err.Error(), "can not create pods that reference") {
			continue // either plugin may be the one that refuses
		}
		refused(t, err, want)
	}
	w.must(create(mirror()))
	got, err := w.admin.CoreV1().Pods("default").Get(w.ctx, "mirror", metav1.GetOptions{})
	w.must(err)
	if got.Spec.ServiceAccountName != "" || len(got.Spec.Volumes) != 0 {
		t.Error("a mirror pod was changed")
	}
	w.pod("theirs", "n2")
	w.must(w.Cache().Sync(w.ctx))
	refused(t, n1.CoreV1().Pods("default").Delete(w.ctx, "theirs", metav1.DeleteOptions{}), `node "n1" can only delete pods with spec.nodeName set to itself`)
	refused(t, n1.CoreV1().Pods("default").EvictV1(w.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}), `node n1 can only evict pods with spec.nodeName set to itself`)
	patch := func(name, body string) error {
		_, err := n1.CoreV1().Pods("default").Patch(w.ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{}, "status")
		return err
	}
	refused(t, patch("theirs", `{"status":{"phase":"Running"}}`), `node "n1" can only update pod status for pods with spec.nodeName set to itself`)
	refused(t, patch("mirror", `{"metadata":{"labels":{"a":"b"}}}`), `node "n1" cannot update labels through pod status`)
	refused(t, patch("mirror", `{"status":{"resourceClaimStatuses":[{"name":"c","resourceClaimName":"x"}]}}`), `node "n1" cannot update resource claim statues`)
	w.must(patch("mirror", `{"status":{"phase":"Running"}}`))
}
