package storageversionmigrator

import (
	"context"
	"encoding/json"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"knarr/internal/apipath"
)

// fieldManager is upstream's for the status of definitions.
const fieldManager = "migration-runner-controller"

const definitionPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// definition is the CustomResourceDefinition of a resource; nil if it has none.
func (r *reconciler) definition(ctx context.Context, gr schema.GroupResource) (*apiextensionsv1.CustomResourceDefinition, error) {
	if gr.Group == "" {
		return nil, nil
	}
	if err := apipath.Check(gr.String()); err != nil {
		return nil, err
	}
	b, err := r.client.CoreV1().RESTClient().Get().AbsPath(definitionPath, gr.String()).SetHeader("Accept", "application/json").DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the definition of %s: %w", gr, err)
	}
	d := &apiextensionsv1.CustomResourceDefinition{}
	if err := json.Unmarshal(b, d); err != nil {
		return nil, fmt.Errorf("read the definition of %s: %w", gr, err)
	}
	return d, nil
}

// markDefinition notes that objects of the resource are being migrated, and of which
// definition they are.
func (r *reconciler) markDefinition(ctx context.Context, gr schema.GroupResource, name string) error {
	return r.applyStatus(ctx, gr, func(d *apiextensionsv1.CustomResourceDefinition) (metav1.ConditionStatus, string, string, []string) {
		return metav1.ConditionTrue, "MigrationRunning", fmt.Sprintf("Migration %s is running", name), nil
	})
}

// finishDefinition notes that they are no more. Where the definition is still the one
// that the migration began with, the version that is written now is the only stored
// one.
func (r *reconciler) finishDefinition(ctx context.Context, gr schema.GroupResource, success bool) error {
	return r.applyStatus(ctx, gr, func(d *apiextensionsv1.CustomResourceDefinition) (metav1.ConditionStatus, string, string, []string) {
		if !success {
			return metav1.ConditionFalse, "MigrationFailed", "The migration has failed", nil
		}
		const message = "The migration has succeeded"
		for _, c := range d.Status.Conditions {
			if c.Type == apiextensionsv1.StorageMigrating && c.ObservedGeneration == d.Generation {
				return metav1.ConditionFalse, "MigrationSucceeded", message + " and the stored versions have been updated", []string{storedVersion(d)}
			}
		}
		return metav1.ConditionFalse, "MigrationSucceeded", message + " but the stored versions have not been updated due to a generation mismatch", nil
	})
}

func storedVersion(d *apiextensionsv1.CustomResourceDefinition) string {
	for _, v := range d.Spec.Versions {
		if v.Storage {
			return v.Name
		}
	}
	return ""
}

// applyStatus applies a condition, and stored versions if there are some, to the
// definition as it was read.
func (r *reconciler) applyStatus(ctx context.Context, gr schema.GroupResource,
	say func(*apiextensionsv1.CustomResourceDefinition) (status metav1.ConditionStatus, reason, message string, stored []string),
) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		d, err := r.definition(ctx, gr)
		if d == nil {
			return err
		}
		is, reason, message, stored := say(d)
		status := map[string]any{"conditions": []any{map[string]any{
			"type": apiextensionsv1.StorageMigrating, "status": is, "reason": reason, "message": message,
			"lastTransitionTime": metav1.Now(), "observedGeneration": d.Generation,
		}}}
		if len(stored) > 0 {
			status["storedVersions"] = stored
		}
		body, err := json.Marshal(map[string]any{
			"apiVersion": apiextensionsv1.SchemeGroupVersion.String(), "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": d.Name, "resourceVersion": d.ResourceVersion}, "status": status,
		})
		if err != nil {
			return fmt.Errorf("write the status of definition %s: %w", d.Name, err)
		}
		err = r.client.CoreV1().RESTClient().Patch(types.ApplyPatchType).AbsPath(definitionPath, d.Name, "status").
			Param("fieldManager", fieldManager).Param("force", "true").Body(body).Do(ctx).Error()
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err // a conflict is what is tried again
	})
}
