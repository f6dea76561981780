package registry

import (
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type storageVersion = *apiserverinternalv1alpha1.StorageVersion

var storageVersions = &Kind[storageVersion]{
	GroupVersionKind: apiserverinternalv1alpha1.SchemeGroupVersion.WithKind("StorageVersion"),
	Plural:           "storageversions",
	Cluster:          true,
	Conditional:      true,
	NameRule:         storageVersionName,

	Prepare: spec(
		func(v storageVersion) { v.Status = apiserverinternalv1alpha1.StorageVersionStatus{} },
		func(v, old storageVersion) { v.Status = old.Status }, nil),
	Columns: []Column[storageVersion]{
		nameColumn[storageVersion](),
		column("CommonEncodingVersion", "string", apiserverinternalv1alpha1.StorageVersionStatus{}.SwaggerDoc()["commonEncodingVersion"], 0,
			func(v storageVersion) any { return deref(v.Status.CommonEncodingVersion, "<unset>") }),
		column("StorageVersions", "string", apiserverinternalv1alpha1.StorageVersionStatus{}.SwaggerDoc()["storageVersions"], 0,
			func(v storageVersion) any {
				var all []string
				for _, e := range v.Status.StorageVersions {
					all = append(all, e.APIServerID+"="+e.EncodingVersion)
				}
				return fewOf(all, 3, "<unset>")
			}),
		ageColumn[storageVersion](),
	},
	Sub: []Subresource[storageVersion]{
		statusOf(func(v, old storageVersion) {
			v.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&v.ObjectMeta, &old.ObjectMeta)
		}, validateStorageVersionStatus),
	},
}
