package endpoints

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/request"
)

// auditRequest notes the object that a request carries.
func (c *call) auditRequest(obj registry.Object, gvk schema.GroupVersionKind) {
	a := request.AuditFrom(c.ctx)
	if a == nil {
		return
	}
	a.SetObject(request.ObjectRef{Name: obj.GetName(), UID: string(obj.GetUID()), ResourceVersion: obj.GetResourceVersion()})
	if a.KeepRequest {
		kept := obj.DeepCopyObject()
		setKind(kept, gvk)
		a.SetRequest(kept)
	}
}

// auditPatch notes the patch that a request carries.
func (c *call) auditPatch() {
	a := request.AuditFrom(c.ctx)
	if a == nil || !a.KeepRequest {
		return
	}
	patch, err := yaml.YAMLToJSON(c.body) // JSON is YAML
	if err == nil {
		a.SetRequest(json.RawMessage(patch))
	}
}

// auditOptions notes the options that a deletion carries.
func (c *call) auditOptions(opts *metav1.DeleteOptions) {
	a := request.AuditFrom(c.ctx)
	if a == nil || !a.KeepRequest {
		return
	}
	kept := opts.DeepCopy()
	kept.Kind, kept.APIVersion = "DeleteOptions", "meta.k8s.io/__internal"
	a.SetRequest(kept)
}
