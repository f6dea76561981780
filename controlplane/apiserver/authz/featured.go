package authz

import (
	"slices"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagemigrationv1beta1 "k8s.io/api/storagemigration/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver/registry"
	"knarr/internal/features"
)

var eventRule = rbacv1.PolicyRule{Verbs: []string{"create", "patch", "update"}, APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}}

// featured are the ClusterRoles that upstream has where a feature is on, each bound to
// one subject.
var featured = []struct {
	feature, role string
	subject       rbacv1.Subject
	rules         []rbacv1.PolicyRule
}{
	{features.StorageVersionMigrator, "system:controller:storage-version-migrator-controller", account("storage-version-migrator-controller"), []rbacv1.PolicyRule{
		{Verbs: []string{"list", "create", "patch"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
		{Verbs: []string{"get"}, APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"}},
		{Verbs: []string{"patch"}, APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions/status"}},
		{Verbs: []string{"update"}, APIGroups: []string{storagemigrationv1beta1.GroupName}, Resources: []string{"storageversionmigrations/status"}},
	}},
	{features.StorageVersions, "system:controller:storage-version-garbage-collector", account("storage-version-garbage-collector"), []rbacv1.PolicyRule{
		{Verbs: read, APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}},
		{Verbs: []string{"delete", "get", "list", "patch", "update", "watch"}, APIGroups: []string{apiserverinternalv1alpha1.GroupName}, Resources: []string{"storageversions"}},
		{Verbs: []string{"get", "patch", "update"}, APIGroups: []string{apiserverinternalv1alpha1.GroupName}, Resources: []string{"storageversions/status"}},
	}},
	{features.TrustBundles, "system:controller:kube-apiserver-serving-clustertrustbundle-publisher", account("kube-apiserver-serving-clustertrustbundle-publisher"), []rbacv1.PolicyRule{
		{Verbs: []string{"attest"}, APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"signers"}, ResourceNames: []string{"kubernetes.io/kube-apiserver-serving"}},
		{Verbs: []string{"create", "update", "delete", "list", "watch"}, APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"clustertrustbundles"}},
		eventRule,
	}},
	{features.TrustBundles, "system:cluster-trust-bundle-discovery",
		rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:serviceaccounts"}, []rbacv1.PolicyRule{
			{Verbs: read, APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"clustertrustbundles"}},
		}},
	{features.PodCertificates, "system:controller:podcertificaterequestcleaner", account("podcertificaterequestcleaner"), []rbacv1.PolicyRule{
		{Verbs: append([]string{"delete"}, read...), APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"podcertificaterequests"}},
	}},
}

var read = []string{"get", "list", "watch"}

// nodeFeatures are the rules that kubelets have besides where a feature is on.
var nodeFeatures = []struct {
	feature string
	rule    rbacv1.PolicyRule
}{
	{features.TrustBundles, rbacv1.PolicyRule{Verbs: read, APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"clustertrustbundles"}}},
	{features.PodCertificates, rbacv1.PolicyRule{Verbs: append([]string{"create"}, read...), APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"podcertificaterequests"}}},
}

func account(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: metav1.NamespaceSystem}
}

// withFeatures adds to the objects that every cluster starts with what the features have
// besides.
func withFeatures(objects []registry.Object, on features.Set) []registry.Object {
	for _, f := range featured {
		if !on[f.feature] {
			continue
		}
		about := metav1.ObjectMeta{Name: f.role,
			Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"}, Labels: map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"}}
		objects = append(objects,
			&rbacv1.ClusterRole{ObjectMeta: about, Rules: slices.Clone(f.rules)},
			&rbacv1.ClusterRoleBinding{ObjectMeta: *about.DeepCopy(),
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: f.role}, Subjects: []rbacv1.Subject{f.subject}})
	}
	for _, o := range objects {
		role, ok := o.(*rbacv1.ClusterRole)
		if !ok || role.Name != "system:node" {
			continue
		}
		for _, f := range nodeFeatures {
			if on[f.feature] {
				role.Rules = append(role.Rules, f.rule)
			}
		}
	}
	return objects
}
