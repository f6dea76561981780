package registry

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var namespaces = &Kind[*corev1.Namespace]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Namespace"),
	Plural:           "namespaces",
	RecheckName:      true,
	Short:            []string{"ns"},
	Cluster:          true,
	Verbs:            []string{"create", "delete", "get", "list", "patch", "update", "watch"},
	NameRule:         NameIsDNSLabel,

	Default: func(ns *corev1.Namespace) {
		labelNamespace(ns)
		if ns.Status.Phase == "" {
			ns.Status.Phase = corev1.NamespaceActive
		}
	},
	Prepare: func(_ context.Context, ns, old *corev1.Namespace) {
		labelNamespace(ns) // a generated name is known only now
		if old != nil {
			ns.Spec.Finalizers, ns.Status = old.Spec.Finalizers, old.Status
			return
		}
		ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
		if !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
			ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
		}
	},
	Validate: func(_ context.Context, ns, _ *corev1.Namespace) (errs field.ErrorList) {
		for _, f := range ns.Spec.Finalizers {
			errs = append(errs, validateFinalizer(string(f), field.NewPath("spec", "finalizers"))...)
		}
		return errs
	},
	Fields: func(ns *corev1.Namespace) fields.Set {
		return fields.Set{"status.phase": string(ns.Status.Phase)}
	},
	Columns: []Column[*corev1.Namespace]{
		nameColumn[*corev1.Namespace](),
		column("Status", "string", "The status of the namespace", 0,
			func(ns *corev1.Namespace) any { return string(ns.Status.Phase) }),
		ageColumn[*corev1.Namespace](),
	},
	Sub: []Subresource[*corev1.Namespace]{
		{
			Name:    "finalize",
			Verbs:   []string{"update"},
			Prepare: func(_ context.Context, ns, old *corev1.Namespace) { ns.Status = old.Status },
			Validate: func(_ context.Context, ns, _ *corev1.Namespace) (errs field.ErrorList) {
				for _, f := range ns.Spec.Finalizers {
					errs = append(errs, validateFinalizer(string(f), field.NewPath("spec", "finalizers"))...)
				}
				return errs
			},
		},
		statusOf(func(ns, old *corev1.Namespace) { ns.Spec = old.Spec }, validateNamespaceStatus),
	},
}

func labelNamespace(ns *corev1.Namespace) {
	if ns.Name == "" {
		return
	}
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
}

func validateNamespaceStatus(_ context.Context, ns, _ *corev1.Namespace) (errs field.ErrorList) {
	phase := field.NewPath("status", "Phase")
	switch {
	case ns.DeletionTimestamp.IsZero() && ns.Status.Phase != corev1.NamespaceActive:
		errs = append(errs, field.Invalid(phase, ns.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty"))
	case !ns.DeletionTimestamp.IsZero() && ns.Status.Phase != corev1.NamespaceTerminating:
		errs = append(errs, field.Invalid(phase, ns.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty"))
	}
	return errs
}

// validateFinalizer checks the name of a namespace's own finalizer.
func validateFinalizer(name string, at *field.Path) (errs field.ErrorList) {
	for _, msg := range utilvalidation.IsQualifiedName(name) {
		errs = append(errs, field.Invalid(at, name, msg))
	}
	return append(errs, standardFinalizer(name, at)...)
}
