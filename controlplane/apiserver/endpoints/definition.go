package endpoints

import (
	"slices"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver/registry"
)

// planDeleteDefinition marks a definition whose objects are to go first.
func planDeleteDefinition(old *apiextensionsv1.CustomResourceDefinition, now time.Time) registry.Object {
	crd := old.DeepCopy()
	crd.DeletionTimestamp = &metav1.Time{Time: now.Truncate(time.Second)}
	if !slices.Contains(crd.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer) {
		crd.Finalizers = append(crd.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer)
	}
	apihelpers.SetCRDCondition(crd, apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue, Reason: "InstanceDeletionPending",
		Message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
	})
	return crd
}
