package registry

import "k8s.io/apimachinery/pkg/runtime/schema"

// AnswersDeleted says that deleting one of a kind answers with the object even
// when it is gone.
func AnswersDeleted(gr schema.GroupResource) bool { return answersDeleted[gr.String()] }

var answersDeleted = map[string]bool{
	"pods": true, "services": true, "namespaces": true, "persistentvolumes": true,
	"persistentvolumeclaims": true, "podtemplates": true, "serviceaccounts": true, "resourcequotas": true,
	"storageclasses.storage.k8s.io": true, "csidrivers.storage.k8s.io": true, "csinodes.storage.k8s.io": true,
	"volumeattachments.storage.k8s.io": true, "volumeattributesclasses.storage.k8s.io": true,
	"deviceclasses.resource.k8s.io": true, "resourceclaims.resource.k8s.io": true,
	"resourceclaimtemplates.resource.k8s.io": true, "resourceslices.resource.k8s.io": true,
	"devicetaintrules.resource.k8s.io": true,
}
