package localstorage

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"knarr/internal/localpath"
)

// roleName is that of the roles, their bindings and the admission policy.
const roleName = "system:knarr-local-path"

const policyName = "local-path.knarr.io"

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{managedBy: us}}
}

// storageClass is the one that claims without a class get, as with k3s. Where
// another class is the default already it is not: of two, the newer one counts.
func storageClass(others []storagev1.StorageClass) *storagev1.StorageClass {
	policy, wait := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingWaitForFirstConsumer
	c := &storagev1.StorageClass{
		ObjectMeta: meta(ClassName), Provisioner: Provisioner,
		ReclaimPolicy: &policy, VolumeBindingMode: &wait, AllowVolumeExpansion: new(true),
	}
	for i := range others {
		if others[i].Annotations[defaultClass] == "true" {
			return c
		}
	}
	c.Annotations = map[string]string{defaultClass: "true"}
	return c
}

// csiDriver says what the driver wants of the scheduler and of kubelets.
func csiDriver() *storagev1.CSIDriver {
	policy := storagev1.FileFSGroupPolicy
	return &storagev1.CSIDriver{ObjectMeta: meta(Provisioner), Spec: storagev1.CSIDriverSpec{
		AttachRequired: new(false), PodInfoOnMount: new(false), StorageCapacity: new(true), FSGroupPolicy: &policy,
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
	}}
}

// clusterRole is what a node's provisioner may do; the admission policy says to
// which objects.
func clusterRole() *rbacv1.ClusterRole {
	read := []string{"get", "list", "watch"}
	return &rbacv1.ClusterRole{ObjectMeta: meta(roleName), Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: read},
		{APIGroups: []string{""}, Resources: []string{"persistentvolumes"}, Verbs: append([]string{"create", "patch", "delete"}, read...)},
		{APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims"}, Verbs: append([]string{"patch"}, read...)},
		{APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims/status"}, Verbs: []string{"update"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
		{APIGroups: []string{"storage.k8s.io"}, Resources: []string{"storageclasses"}, Verbs: read},
		{APIGroups: []string{snapshotGroup}, Resources: []string{"volumesnapshots", "volumesnapshotcontents"}, Verbs: []string{"get"}},
	}}
}

func subjects() []rbacv1.Subject {
	return []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: Group}}
}

func clusterRoleBinding() *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta(roleName), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: roleName}, Subjects: subjects(),
	}
}

func role() *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: meta(roleName), Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"storage.k8s.io"}, Resources: []string{"csistoragecapacities"}, Verbs: []string{"get", "list", "watch", "create", "update", "delete"},
	}}}
}

func roleBinding() *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: meta(roleName), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: roleName}, Subjects: subjects(),
	}
}

// What the policy's expressions say of a user of the group: which node it is, and
// whether a volume is of this driver and on that node alone. A volume that named a
// Secret would let the node's kubelet read it.
const (
	nodeOfUser = `request.userInfo.username.startsWith('` + localpath.UserPrefix + `') ? request.userInfo.username.substring('` + localpath.UserPrefix + `'.size()) : ''`
	ownVolume  = `has(v.spec.csi) && v.spec.csi.driver == '` + Provisioner + `' && ` +
		`!has(v.spec.csi.controllerPublishSecretRef) && !has(v.spec.csi.nodeStageSecretRef) && !has(v.spec.csi.nodePublishSecretRef) && ` +
		`!has(v.spec.csi.controllerExpandSecretRef) && !has(v.spec.csi.nodeExpandSecretRef) && has(v.spec.nodeAffinity) && has(v.spec.nodeAffinity.required) && ` +
		`v.spec.nodeAffinity.required.nodeSelectorTerms.size() == 1 && v.spec.nodeAffinity.required.nodeSelectorTerms.all(t, ` +
		`has(t.matchExpressions) && t.matchExpressions.size() == 1 && t.matchExpressions.all(e, e.key == '` + corev1.LabelHostname +
		`' && e.operator == 'In' && has(e.values) && e.values == [variables.node]))`
	isVolume = `request.resource.resource == 'persistentvolumes'`
	isClaim  = `request.resource.resource == 'persistentvolumeclaims'`

	// A volume is made for one claim, which the API server's plugin LocalVolumes looks for, and
	// stays that claim's: one that named none, or one by its name alone, would be bound to a
	// claim of others, and so would one that the binder believes to have bound by itself.
	forClaim = `has(object.spec.claimRef) && has(object.spec.claimRef.namespace) && has(object.spec.claimRef.name) && has(object.spec.claimRef.uid) && ` +
		`object.metadata.name == '` + localpath.VolumePrefix + `' + object.spec.claimRef.uid && has(object.spec.storageClassName) && ` +
		`(!has(object.metadata.annotations) || object.metadata.annotations.all(k, k == '` + volume.AnnDynamicallyProvisioned + `'))`
	sameClaim = `has(object.spec.claimRef) == has(oldObject.spec.claimRef) && (!has(object.spec.claimRef) || object.spec.claimRef == oldObject.spec.claimRef) && ` +
		`has(object.spec.storageClassName) == has(oldObject.spec.storageClassName) && ` +
		`(!has(object.spec.storageClassName) || object.spec.storageClassName == oldObject.spec.storageClassName)`

	// The node that a claim was given to and is given to; nothing for none.
	selected = `'` + volume.AnnSelectedNode + `'`
	before   = `oldObject != null && has(oldObject.metadata.annotations) && ` + selected + ` in oldObject.metadata.annotations ? oldObject.metadata.annotations[` + selected + `] : ''`
	after    = `object != null && has(object.metadata.annotations) && ` + selected + ` in object.metadata.annotations ? object.metadata.annotations[` + selected + `] : ''`
	// A claim that nobody has and that has no volume may be taken.
	given = `variables.node != '' && (variables.before == variables.node || ` +
		`!has(request.subResource) && variables.before == '' && variables.after == variables.node && (!has(oldObject.spec.volumeName) || oldObject.spec.volumeName == ''))`

	isCapacity  = `request.resource.resource == 'csistoragecapacities'`
	ownCapacity = `has(v.nodeTopology) && has(v.nodeTopology.matchLabels) && v.nodeTopology.matchLabels == {'` + corev1.LabelHostname + `': variables.node} && ` +
		`has(v.metadata.labels) && '` + driverLabel + `' in v.metadata.labels && v.metadata.labels['` + driverLabel + `'] == '` + Provisioner + `'`
)

// driverLabel names the driver of a CSIStorageCapacity.
const driverLabel = "csi.storage.k8s.io/drivername"

// same is an expression that holds if a list or map of the metadata does not change.
func same(field string) string {
	return `has(object.metadata.` + field + `) == has(oldObject.metadata.` + field + `) && (!has(object.metadata.` + field + `) || object.metadata.` + field + ` == oldObject.metadata.` + field + `)`
}

// sameAnnotations holds if none changes but the one that says which node has a claim.
func sameAnnotations() string {
	within := func(a, b string) string {
		return `(!has(` + a + `.metadata.annotations) || ` + a + `.metadata.annotations.all(k, k == ` + selected + ` || has(` + b + `.metadata.annotations) && ` +
			`k in ` + b + `.metadata.annotations && ` + a + `.metadata.annotations[k] == ` + b + `.metadata.annotations[k]))`
	}
	return within("object", "oldObject") + " && " + within("oldObject", "object") + ` && (variables.after == '' || variables.after == variables.node)`
}

// policy keeps a node that was taken over from other nodes' volumes and claims: it may
// write volumes that are on it alone, each for one claim, and claims that were given to it.
func policy() *admissionv1.ValidatingAdmissionPolicy {
	fail := admissionv1.Fail
	validation := func(message string, expression string) admissionv1.Validation {
		return admissionv1.Validation{Expression: expression, Message: message}
	}
	both := func(own string) string {
		each := func(object string) string { return `(` + object + ` == null || [` + object + `].all(v, ` + own + `))` }
		return `variables.node != '' && ` + each("oldObject") + ` && ` + each("object")
	}
	return &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta(policyName), Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: &fail,
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{
			rule("", "persistentvolumes", admissionv1.Create, admissionv1.Update, admissionv1.Delete),
			rule("", "persistentvolumeclaims", admissionv1.Update), rule("", "persistentvolumeclaims/status", admissionv1.Update),
			rule("storage.k8s.io", "csistoragecapacities", admissionv1.Create, admissionv1.Update, admissionv1.Delete),
		}},
		MatchConditions: []admissionv1.MatchCondition{{Name: "provisioner-of-a-node", Expression: `request.userInfo.groups.exists(g, g == '` + Group + `')`}},
		Variables:       []admissionv1.Variable{{Name: "node", Expression: nodeOfUser}, {Name: "before", Expression: before}, {Name: "after", Expression: after}},
		Validations: []admissionv1.Validation{
			validation("a node may write volumes of its own only, that name no Secret", `!(`+isVolume+`) || `+both(ownVolume)),
			validation("a node may make volumes only for one claim each, named by its UID", `!(`+isVolume+` && request.operation == 'CREATE') || `+forClaim),
			validation("a node may not change whose a volume is", `!(`+isVolume+` && request.operation == 'UPDATE') || `+sameClaim+` && `+same("annotations")),
			validation("a node may write capacities of its own only", `!(`+isCapacity+`) || `+both(ownCapacity)),
			validation("a node may write claims that were given to it only", `!(`+isClaim+`) || `+given),
			validation("a node may not change what a claim asks for", `!(`+isClaim+`) || object.spec == oldObject.spec`),
			validation("a node may not change a claim's metadata, but which node has it", `!(`+isClaim+`) || `+
				same("labels")+` && `+same("finalizers")+` && `+same("ownerReferences")+` && `+sameAnnotations()),
		},
	}}
}

func rule(group, resource string, operations ...admissionv1.OperationType) admissionv1.NamedRuleWithOperations {
	return admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: operations, Rule: admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource}},
	}}
}

func policyBinding() *admissionv1.ValidatingAdmissionPolicyBinding {
	return &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta(policyName), Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: policyName, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
}
