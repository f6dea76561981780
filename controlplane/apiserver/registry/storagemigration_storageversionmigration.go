package registry

import (
	"context"
	"strings"

	storagemigrationv1beta1 "k8s.io/api/storagemigration/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

type migration = *storagemigrationv1beta1.StorageVersionMigration

var storageVersionMigrations = &Kind[migration]{
	GroupVersionKind: storagemigrationv1beta1.SchemeGroupVersion.WithKind("StorageVersionMigration"),
	Plural:           "storageversionmigrations",
	Cluster:          true,
	Conditional:      true,

	Prepare: spec(
		func(m migration) { m.Status = storagemigrationv1beta1.StorageVersionMigrationStatus{} },
		func(m, old migration) { m.Status = old.Status }, nil),
	Validate: validateMigration,
	Columns: []Column[migration]{
		nameColumn[migration](),
		column("Resource", "string", "GroupResource to migrate", 0, func(m migration) any { return m.Spec.Resource.String() }),
		column("Status", "string", "Status of the migration", 0, func(m migration) any { return migrationState(m) }),
	},
	Sub: []Subresource[migration]{
		statusOf(func(m, old migration) {
			m.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&m.ObjectMeta, &old.ObjectMeta)
		}, validateMigrationStatus),
	},
}

// migrationState is the last of the conditions of a migration that holds.
func migrationState(m migration) string {
	state := "Unknown"
	for _, c := range m.Status.Conditions {
		if c.Status != metav1.ConditionTrue {
			continue
		}
		switch storagemigrationv1beta1.MigrationConditionType(c.Type) {
		case storagemigrationv1beta1.MigrationRunning, storagemigrationv1beta1.MigrationFailed, storagemigrationv1beta1.MigrationSucceeded:
			state = c.Type
		}
	}
	return state
}

func validateMigration(_ context.Context, m, old migration) field.ErrorList {
	var f faults
	of := m.Spec.Resource
	at := field.NewPath("spec", "resource")
	if of.Resource == "" {
		f.required(at.Child("resource"), "resource is required to be set")
	} else if errs := utilvalidation.IsDNS1035Label(of.Resource); len(errs) > 0 {
		f.invalid(at.Child("resource"), of.Resource, strings.Join(errs, ","))
	}
	if of.Group != "" {
		if errs := utilvalidation.IsDNS1123Subdomain(of.Group); len(errs) > 0 {
			f.invalid(at.Child("group"), of.Group, strings.Join(errs, ","))
		}
	}
	if old != nil {
		f.add(unchanged(m.Spec, old.Spec, field.NewPath("spec")))
	}
	return f.list
}

// validateMigrationStatus keeps what a migration has come to: it ends once, and begins
// at one version of the resource.
func validateMigrationStatus(_ context.Context, m, old migration) field.ErrorList {
	var f faults
	at := field.NewPath("status")
	version, conditions := m.Status.ResourceVersion, m.Status.Conditions
	if version != "" {
		if _, err := resourceversion.CompareResourceVersion(version, version); err != nil {
			f.invalid(at.Child("resourceVersion"), version, err.Error())
		}
	}
	f.add(metavalidation.ValidateConditions(conditions, at.Child("conditions")))
	if was := old.Status.ResourceVersion; was != "" && was != version {
		f.invalid(at.Child("resourceVersion"), version, "field is immutable")
	}
	is := func(m migration, t storagemigrationv1beta1.MigrationConditionType) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, string(t))
	}
	const succeeded, failed = storagemigrationv1beta1.MigrationSucceeded, storagemigrationv1beta1.MigrationFailed
	if is(m, succeeded) && is(m, failed) {
		f.invalid(at.Child("conditions"), conditions, "Both success and failed conditions cannot be true at the same time")
	}
	if is(old, succeeded) && !is(m, succeeded) {
		f.invalid(at.Child("conditions"), conditions, "Success condition cannot be set to false once it is true")
	}
	if is(old, failed) && !is(m, failed) {
		f.invalid(at.Child("conditions"), conditions, "Failed condition cannot be set to false once it is true")
	}
	return f.list
}
