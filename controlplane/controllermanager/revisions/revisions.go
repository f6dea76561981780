// Package revisions keeps the history of a workload's pod template as
// ControllerRevisions. It reads ControllerRevisions from an informer and
// creates, renumbers and deletes them.
package revisions

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/controlplane/controllermanager/ownership"
)

// ErrCollision says that another template bears the name: the caller counts
// the collision and names anew.
var ErrCollision = errors.New("another revision bears the name")

// A History is the revisions of one workload.
type History struct {
	Client  appsclient.ControllerRevisionsGetter
	Indexer cache.Indexer
	Owner   metav1.Object
	Kind    schema.GroupVersionKind
	// Selector finds revisions to adopt.
	Selector labels.Selector
	// Fresh reads the owner from the server.
	Fresh func(ctx context.Context) (metav1.Object, error)
	// Wrote is called with each object that was stored.
	Wrote func(*appsv1.ControllerRevision)
}

// Data is what a revision holds of a template: the patch that brings it back.
func Data(t *corev1.PodTemplateSpec) ([]byte, error) {
	raw, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	template := map[string]any{}
	if err := json.Unmarshal(raw, &template); err != nil {
		return nil, err
	}
	template["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
}

// Template is the template that a revision holds.
func Template(r *appsv1.ControllerRevision) (*corev1.PodTemplateSpec, error) {
	var held struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(r.Data.Raw, &held); err != nil {
		return nil, fmt.Errorf("template of revision %s: %w", r.Name, err)
	}
	return &held.Spec.Template, nil
}

// List gives the workload's revisions, the oldest first.
func (h History) List(ctx context.Context) ([]*appsv1.ControllerRevision, error) {
	all, err := ownership.Of[*appsv1.ControllerRevision](h.Indexer, h.Owner, true)
	if err != nil {
		return nil, err
	}
	claim := ownership.Claim[*appsv1.ControllerRevision]{
		Owner: h.Owner, Kind: h.Kind, Selector: h.Selector, Fresh: h.Fresh,
		Patch: func(ctx context.Context, r *appsv1.ControllerRevision, kind types.PatchType, patch []byte) (*appsv1.ControllerRevision, error) {
			return h.Client.ControllerRevisions(r.Namespace).Patch(ctx, r.Name, kind, patch, metav1.PatchOptions{})
		},
	}
	mine, err := claim.Objects(ctx, all)
	slices.SortFunc(mine, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return mine, err
}

// Ensure gives the revision that holds data, as the newest of list, making it
// with the name and hash label given where there is none.
func (h History) Ensure(ctx context.Context, list []*appsv1.ControllerRevision, data []byte, name string, labels map[string]string) (*appsv1.ControllerRevision, error) {
	var last int64
	var have *appsv1.ControllerRevision
	for _, r := range list {
		last = max(last, r.Revision)
		if same(r.Data.Raw, data) {
			have = r
		}
	}
	api := h.Client.ControllerRevisions(h.Owner.GetNamespace())
	if have != nil {
		if have.Revision == last {
			return have, nil
		}
		next := have.DeepCopy()
		next.Revision = last + 1
		made, err := api.Update(ctx, next, metav1.UpdateOptions{})
		if err != nil {
			return nil, err
		}
		h.Wrote(made)
		return made, nil
	}
	made, err := api.Create(ctx, &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: h.Owner.GetNamespace(), Labels: labels, Annotations: maps.Clone(h.Owner.GetAnnotations()),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(h.Owner, h.Kind)},
		},
		Data: runtime.RawExtension{Raw: data}, Revision: last + 1,
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		there, gerr := api.Get(ctx, name, metav1.GetOptions{})
		switch {
		case gerr != nil:
			return nil, gerr
		case metav1.IsControlledBy(there, h.Owner) && same(there.Data.Raw, data):
			return there, nil
		}
		return nil, ErrCollision
	}
	if err != nil {
		return nil, err
	}
	h.Wrote(made)
	return made, nil
}

// Trim deletes the oldest revisions that are not in use beyond limit.
func (h History) Trim(ctx context.Context, list []*appsv1.ControllerRevision, limit *int32, used func(*appsv1.ControllerRevision) bool) error {
	if limit == nil {
		return nil
	}
	idle := slices.DeleteFunc(slices.Clone(list), used)
	for len(idle) > int(*limit) {
		err := h.Client.ControllerRevisions(h.Owner.GetNamespace()).Delete(ctx, idle[0].Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		idle = idle[1:]
	}
	return nil
}

func same(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
