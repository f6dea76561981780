package controllermanager

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagemigrationv1beta1 "k8s.io/api/storagemigration/v1beta1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/controllermanager/storageversionmigrator"
	"knarr/internal/apitest"
	"knarr/internal/features"
)

// migrating runs f beside the migrator, where its API is served.
func migrating(t *testing.T, f func(c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		on := features.Set{features.StorageVersionMigrator: true}
		s, stop := apitest.New(t, func(c *apiserver.Config) {
			c.APIs, c.Features = []schema.GroupVersion{storagemigrationv1beta1.SchemeGroupVersion}, on
		})
		defer stop()
		inClusterOn(t, s, func(s *apitest.Server) Config {
			cfg := config(s, storageversionmigrator.Name)
			cfg.Features = on
			return cfg
		}, f)
	})
}

// migrate asks for a migration, and waits for its conditions that hold.
func (c *cluster) migrate(name, group, resource string, want ...string) *storagemigrationv1beta1.StorageVersionMigration {
	c.Helper()
	migrations := c.client.StoragemigrationV1beta1().StorageVersionMigrations()
	_, err := migrations.Create(c.ctx, &storagemigrationv1beta1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagemigrationv1beta1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Group: group, Resource: resource}}}, metav1.CreateOptions{})
	c.no(err)
	time.Sleep(2 * time.Minute)
	m, err := migrations.Get(c.ctx, name, metav1.GetOptions{})
	c.no(err)
	var got []string
	for _, cond := range m.Status.Conditions {
		if cond.Status == metav1.ConditionTrue {
			got = append(got, fmt.Sprintf("%s %s %s", cond.Type, cond.Reason, cond.Message))
		}
	}
	if !slices.Equal(got, want) {
		c.Errorf("%s: %q, want %q", name, got, want)
	}
	return m
}

func TestStorageVersionMigration(t *testing.T) {
	migrating(t, func(c *cluster) {
		const done = "Succeeded StorageVersionMigrationSucceeded "
		maps := c.client.CoreV1().ConfigMaps("default")
		was := map[string]string{}
		for i := range 3 {
			m, err := maps.Create(c.ctx, &corev1.ConfigMap{ObjectMeta: meta(fmt.Sprint("m", i))}, metav1.CreateOptions{})
			c.no(err)
			was[m.Name] = m.ResourceVersion
		}
		m := c.migrate("maps", "", "configmaps", done)
		if r := apimeta.FindStatusCondition(m.Status.Conditions, "Running"); r == nil || r.Reason != "MigrationCompleted" || m.Status.ResourceVersion == "" {
			t.Errorf("%+v", m.Status)
		}
		// They are stored as they are to be: nothing was written, nor noted as managed.
		for name, version := range was {
			m, err := maps.Get(c.ctx, name, metav1.GetOptions{})
			if c.no(err); m.ResourceVersion != version || len(m.ManagedFields) > 0 && m.ManagedFields[0].Manager == storageversionmigrator.Name {
				t.Errorf("%s was written: %+v", name, m)
			}
		}
		c.migrate("again", "", "configmaps", done)
		c.migrate("none", "example.com", "nonesuch", "Failed StorageVersionMigrationFailed resource does not exist in discovery")
		c.migrate("review", "authorization.k8s.io", "subjectaccessreviews", `Failed StorageVersionMigrationFailed resource "authorization.k8s.io/v1, Resource=subjectaccessreviews" does not support discovery operations: [update patch list]`)
	})
}

// What is stored in an old version of a definition is not, after a migration, and the
// definition says so.
func TestStorageVersionMigrationOfDefinition(t *testing.T) {
	migrating(t, func(c *cluster) {
		const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
		version := func(name string, storage bool) apiextensionsv1.CustomResourceDefinitionVersion {
			return apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: true, Storage: storage,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}}
		}
		d := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "foos.example.com"},
			TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
				Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "foos", Singular: "foo", Kind: "Foo", ListKind: "FooList"},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1", true), version("v2", false)}}}
		c.no(c.post(path, d))
		time.Sleep(10 * time.Second)
		c.no(c.post("/apis/example.com/v1/namespaces/default/foos", map[string]any{"apiVersion": "example.com/v1", "kind": "Foo", "metadata": map[string]any{"name": "a"}}))
		patch := `{"spec":{"versions":[{"name":"v1","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}},{"name":"v2","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`
		c.no(c.client.CoreV1().RESTClient().Patch("application/merge-patch+json").AbsPath(path, d.Name).Body([]byte(patch)).Do(c.ctx).Error())
		time.Sleep(10 * time.Second)
		revision := func() string {
			t.Helper()
			var o metav1.PartialObjectMetadata
			b, err := c.client.CoreV1().RESTClient().Get().AbsPath("/apis/example.com/v2/namespaces/default/foos/a").SetHeader("Accept", "application/json").DoRaw(c.ctx)
			c.no(err)
			c.no(json.Unmarshal(b, &o))
			return o.ResourceVersion
		}
		before := revision()
		c.migrate("foos", "example.com", "foos", "Succeeded StorageVersionMigrationSucceeded ")
		if revision() == before {
			t.Error("what was stored in the old version was not written anew")
		}
		b, err := c.client.CoreV1().RESTClient().Get().AbsPath(path, d.Name).SetHeader("Accept", "application/json").DoRaw(c.ctx)
		c.no(err)
		var now apiextensionsv1.CustomResourceDefinition
		c.no(json.Unmarshal(b, &now))
		if !slices.Equal(now.Status.StoredVersions, []string{"v2"}) {
			t.Errorf("stored versions are %v, want v2 alone", now.Status.StoredVersions)
		}
		found := ""
		for _, cond := range now.Status.Conditions {
			if cond.Type == apiextensionsv1.StorageMigrating {
				found = fmt.Sprintf("%s %s %s", cond.Status, cond.Reason, cond.Message)
			}
		}
		if found != "False MigrationSucceeded The migration has succeeded and the stored versions have been updated" {
			t.Error(found)
		}
	})
}
