package apiserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/storage"
	"knarr/internal/features"
	"knarr/internal/storageversion"
)

func recordingVersions(c *Config) { c.Features = features.Set{features.StorageVersions: true} }

// answer is the object that a server answers with; nil: there is none.
func answer[T any](t *testing.T, s *Server, path string) *T {
	t.Helper()
	w := ask(s.Handler(), "GET", path, "root")
	if w.Code == http.StatusNotFound {
		return nil
	}
	o := new(T)
	if err := json.Unmarshal(w.Body.Bytes(), o); err != nil || w.Code != http.StatusOK {
		t.Fatal(path, w.Code, err)
	}
	return o
}

const (
	storageVersionsPath = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions"
	leasesPath          = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
)

// TestStorageVersions: a server says how it stores each resource, says it again where
// somebody has changed it, and has a Lease for as long as it runs.
func TestStorageVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storage.NewMemory()
		defer store.Close()
		s, stop := newServer(t, recordingVersions, func(c *Config) { c.Store = shared{store} })
		me := s.versions.server
		all := answer[apiserverinternalv1alpha1.StorageVersionList](t, s, storageVersionsPath)
		names := map[string]apiserverinternalv1alpha1.StorageVersion{}
		for _, v := range all.Items {
			names[v.Name] = v
			if got := v.Status.StorageVersions; len(got) != 1 || got[0].APIServerID != me || v.Status.CommonEncodingVersion == nil {
				t.Errorf("%s: %+v", v.Name, v.Status)
			}
		}
		for name, want := range map[string]string{
			"core.pods": "v1 [v1] [v1]", "apps.deployments": "apps/v1 [apps/v1] [apps/v1]",
			"core.events": "v1 [v1 events.k8s.io/v1] [v1]",
			"apiextensions.k8s.io.customresourcedefinitions": "apiextensions.k8s.io/v1beta1 [apiextensions.k8s.io/v1beta1 apiextensions.k8s.io/v1] [apiextensions.k8s.io/v1]",
			"internal.apiserver.k8s.io.storageversions":      "internal.apiserver.k8s.io/v1alpha1 [internal.apiserver.k8s.io/v1alpha1] [internal.apiserver.k8s.io/v1alpha1]",
		} {
			if got := entries(names[name]); got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
		for _, name := range []string{"events.k8s.io.events", "authorization.k8s.io.subjectaccessreviews", "core.componentstatuses"} {
			if _, there := names[name]; there {
				t.Errorf("%s has a storage of its own", name)
			}
		}
		l := answer[coordinationv1.Lease](t, s, leasesPath+"/"+me)
		if l == nil || l.Labels[storageversion.IdentityLabel] != storageversion.IdentityValue || *l.Spec.LeaseDurationSeconds != 3600 || !strings.HasPrefix(*l.Spec.HolderIdentity, me+"_") {
			t.Fatalf("Lease %+v", l)
		}
		renewed := l.Spec.RenewTime.Time

		// Somebody deletes one and a server that is gone has an entry in another; a Lease has
		// expired.
		if w := ask(s.Handler(), "DELETE", storageVersionsPath+"/core.pods", "root"); w.Code != http.StatusOK {
			t.Fatal(w.Code, w.Body)
		}
		if w := ask(s.Handler(), "DELETE", leasesPath+"/"+me, "root"); w.Code != http.StatusOK {
			t.Fatal(w.Code, w.Body)
		}
		stale := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "apiserver-gone", Labels: map[string]string{storageversion.IdentityLabel: storageversion.IdentityValue}}}
		if err := s.ensure(t.Context(), stale); err != nil {
			t.Fatal(err)
		}
		other := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-scheduler"}}
		if err := s.ensure(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Minute)
		v := answer[apiserverinternalv1alpha1.StorageVersion](t, s, storageVersionsPath+"/core.pods")
		if v == nil || entries(*v) != "v1 [v1] [v1]" {
			t.Errorf("deleted: %+v", v)
		}
		l = answer[coordinationv1.Lease](t, s, leasesPath+"/"+me)
		if l == nil || time.Since(l.Spec.RenewTime.Time) > identityRenewal || l.Spec.RenewTime.Time.Equal(renewed) {
			t.Errorf("Lease %+v", l)
		}
		was := answer[apiserverinternalv1alpha1.StorageVersion](t, s, storageVersionsPath+"/apps.deployments").ResourceVersion
		if was != names["apps.deployments"].ResourceVersion {
			t.Error("what had not changed was written")
		}
		time.Sleep(time.Hour)
		if answer[coordinationv1.Lease](t, s, leasesPath+"/apiserver-gone") != nil || answer[coordinationv1.Lease](t, s, leasesPath+"/kube-scheduler") == nil {
			t.Error("the Lease of a server that is gone is there, or one that is nobody's is not")
		}
		// Another server of this host has the same Lease, and the first one ends.
		_, stopOther := newServer(t, recordingVersions, func(c *Config) { c.Store = shared{store} })
		synctest.Wait()
		stop()
		if kv, _, err := store.Get(t.Context(), "/registry/leases/kube-system/"+me); kv == nil || err != nil {
			t.Errorf("after the end of another: %v, %v", kv, err)
		}
		stopOther()
		if kv, _, err := store.Get(t.Context(), "/registry/leases/kube-system/"+me); kv != nil || err != nil {
			t.Errorf("after the end: %v, %v", kv, err)
		}
	})
}

// entries are how the only server stores a resource.
func entries(v apiserverinternalv1alpha1.StorageVersion) string {
	if len(v.Status.StorageVersions) != 1 {
		return "none"
	}
	e := v.Status.StorageVersions[0]
	return e.EncodingVersion + " [" + strings.Join(e.DecodableVersions, " ") + "] [" + strings.Join(e.ServedVersions, " ") + "]"
}

// TestStorageVersionsOff: where the feature is off there is no kind, and nobody has a
// Lease.
func TestStorageVersionsOff(t *testing.T) {
	s, stop := newServer(t)
	defer stop()
	if w := ask(s.Handler(), "GET", storageVersionsPath, "root"); w.Code != http.StatusNotFound {
		t.Error(w.Code)
	}
	if l := answer[coordinationv1.LeaseList](t, s, leasesPath); len(l.Items) > 0 {
		t.Errorf("%+v", l.Items)
	}
	if slices.ContainsFunc(s.checks(), func(c check) bool { return strings.Contains(c.Name, "storage-version") }) {
		t.Error("its health waits for storage versions")
	}
}

// TestStorageVersionBarrier: nothing is written whose storage version is not recorded, but
// for what the record depends on.
func TestStorageVersionBarrier(t *testing.T) {
	v := newVersions(registry.Served(nil, features.Set{features.StorageVersions: true}))
	api := v.barrier(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }))
	try := func(i *request.Info) *httptest.ResponseRecorder {
		w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/", nil)
		api.ServeHTTP(w, r.WithContext(request.WithInfo(r.Context(), i)))
		return w
	}
	of := func(verb, group, resource, namespace string) *request.Info {
		return &request.Info{IsResource: true, Verb: verb, Group: group, Version: "v1", Resource: resource, Namespace: namespace}
	}
	refused := map[*request.Info]bool{
		of("create", "", "pods", "default"):                              true,
		of("patch", "apps", "deployments", "default"):                    true,
		of("create", "events.k8s.io", "events", "default"):               true,
		of("update", "coordination.k8s.io", "leases", "default"):         true,
		of("update", "coordination.k8s.io", "leases", "kube-system"):     false,
		of("update", "internal.apiserver.k8s.io", "storageversions", ""): false,
		of("create", "authorization.k8s.io", "subjectaccessreviews", ""): false,
		of("create", "example.com", "foos", "default"):                   false,
		of("list", "", "pods", "default"):                                false,
		{Verb: "post", Path: "/version"}:                                 false,
	}
	for i, want := range refused {
		if w := try(i); (w.Code == http.StatusServiceUnavailable) != want {
			t.Errorf("%s %s: %d", i.Verb, i.Resource, w.Code)
		}
	}
	v.lastErr.Store(new("no store"))
	const says = "wait for storage version registration to complete for resource: deployments.apps, last seen error: no store"
	if w := try(of("patch", "apps", "deployments", "default")); !strings.Contains(w.Body.String(), says) {
		t.Errorf("%s", w.Body)
	}
	v.done()
	for i := range refused {
		if w := try(i); w.Code != http.StatusAccepted {
			t.Errorf("recorded: %s %s: %d", i.Verb, i.Resource, w.Code)
		}
	}
}
