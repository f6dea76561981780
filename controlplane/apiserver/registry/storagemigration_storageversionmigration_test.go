package registry

import (
	"context"
	"slices"
	"strings"
	"testing"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	storagemigrationv1beta1 "k8s.io/api/storagemigration/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/internal/features"
)

func TestMigrationValidation(t *testing.T) {
	of := func(group, resource string) migration {
		return &storagemigrationv1beta1.StorageVersionMigration{Spec: storagemigrationv1beta1.StorageVersionMigrationSpec{
			Resource: metav1.GroupResource{Group: group, Resource: resource}}}
	}
	for name, c := range map[string]struct {
		now, old migration
		want     string
	}{
		"core":             {of("", "pods"), nil, ""},
		"of a group":       {of("example.com", "foos"), nil, ""},
		"none":             {of("", ""), nil, "spec.resource.resource: Required value: resource is required to be set"},
		"no name":          {of("", "Pods"), nil, `spec.resource.resource: Invalid value: "Pods": a DNS-1035 label`},
		"no group":         {of("a b", "pods"), nil, `spec.resource.group: Invalid value: "a b": a lowercase RFC 1123 subdomain`},
		"another resource": {of("", "pods"), of("", "nodes"), "spec: Invalid value: "},
	} {
		errs := validateMigration(context.Background(), c.now, c.old)
		if got := errs.ToAggregate(); c.want == "" && got != nil || c.want != "" && (got == nil || !strings.HasPrefix(got.Error(), c.want)) {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

func TestMigrationStatusValidation(t *testing.T) {
	with := func(version string, conditions ...string) migration {
		m := &storagemigrationv1beta1.StorageVersionMigration{}
		m.Status.ResourceVersion = version
		for _, c := range conditions {
			m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: c, Status: metav1.ConditionTrue, Reason: "R", LastTransitionTime: metav1.Unix(1, 0)})
		}
		return m
	}
	for name, c := range map[string]struct {
		now, old migration
		state    string
		want     string
	}{
		"begins":            {with("", "Running"), with(""), "Running", ""},
		"knows a version":   {with("7", "Running"), with("", "Running"), "Running", ""},
		"no version":        {with("x"), with(""), "Unknown", "status.resourceVersion: Invalid value: \"x\": resource version is not well formed"},
		"another version":   {with("8"), with("7"), "Unknown", `status.resourceVersion: Invalid value: "8": field is immutable`},
		"both":              {with("7", "Succeeded", "Failed"), with("7"), "Failed", "Both success and failed conditions cannot be true at the same time"},
		"no more a success": {with("7"), with("7", "Succeeded"), "Unknown", "Success condition cannot be set to false once it is true"},
		"no more a failure": {with("7"), with("7", "Failed"), "Unknown", "Failed condition cannot be set to false once it is true"},
	} {
		errs := validateMigrationStatus(context.Background(), c.now, c.old)
		if got := errs.ToAggregate(); c.want == "" && got != nil || c.want != "" && (got == nil || !strings.Contains(got.Error(), c.want)) {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
		if got := migrationState(c.now); got != c.state {
			t.Errorf("%s: shown as %s, want %s", name, got, c.state)
		}
	}
}

// TestServed: what is optional is served where its version is asked for and its feature
// is on, after the rest.
func TestServed(t *testing.T) {
	migration, certificates := storagemigrationv1beta1.SchemeGroupVersion, certificatesv1beta1.SchemeGroupVersion
	for _, c := range []struct {
		also []schema.GroupVersion
		on   features.Set
		want []Resource
	}{
		{},
		{also: []schema.GroupVersion{migration, {Group: "apps", Version: "v1"}}, want: []Resource{storageVersionMigrations}},
		{also: []schema.GroupVersion{certificates}},
		{on: features.Set{features.TrustBundles: true}},
		{also: []schema.GroupVersion{certificates}, on: features.Set{features.TrustBundles: true}, want: []Resource{clusterTrustBundles}},
		{also: []schema.GroupVersion{storageVersions.GroupVersion()}, want: []Resource{storageVersions}},
		{on: features.Set{features.StorageVersions: true}, want: []Resource{storageVersions}},
	} {
		got := Served(c.also, c.on)
		if !slices.Equal(got[len(Resources):], c.want) {
			t.Errorf("%v %v: %v besides, want %v", c.also, c.on, got[len(Resources):], c.want)
		}
	}
}
