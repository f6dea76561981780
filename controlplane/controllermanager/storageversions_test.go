package controllermanager

import (
	"testing"
	"testing/synctest"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/controllermanager/storageversiongc"
	"knarr/internal/apitest"
	"knarr/internal/features"
	"knarr/internal/storageversion"
)

var storageVersionFeature = features.Set{features.StorageVersions: true}

// storageVersion makes a StorageVersion with entries of these servers.
func (c *cluster) storageVersion(name, version string, servers ...string) {
	c.Helper()
	all := c.client.InternalV1alpha1().StorageVersions()
	v, err := all.Get(c.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		v, err = all.Create(c.ctx, &apiserverinternalv1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	}
	c.no(err)
	for _, s := range servers {
		storageversion.Record(v, apiserverinternalv1alpha1.ServerStorageVersion{APIServerID: s, EncodingVersion: version, DecodableVersions: []string{version}})
	}
	_, err = all.UpdateStatus(c.ctx, v, metav1.UpdateOptions{})
	c.no(err)
}

// identity makes the Lease of an API server.
func (c *cluster) identity(name string) {
	c.Helper()
	_, err := c.client.CoordinationV1().Leases("kube-system").Create(c.ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{storageversion.IdentityLabel: storageversion.IdentityValue}}}, metav1.CreateOptions{})
	c.no(err)
}

// TestStorageVersionCollection: what an API server has said goes with its Lease, and what
// those who have none have said at once; what this one says stays.
func TestStorageVersionCollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := apitest.New(t, func(c *apiserver.Config) { c.Features = storageVersionFeature })
		defer stop()
		inClusterOn(t, s, func(s *apitest.Server) Config {
			cfg := config(s, storageversiongc.Name)
			cfg.Features = storageVersionFeature
			return cfg
		}, func(c *cluster) {
			all := c.client.InternalV1alpha1().StorageVersions()
			list, err := all.List(c.ctx, metav1.ListOptions{})
			c.no(err)
			own := len(list.Items)
			c.identity("apiserver-b")
			_, err = c.client.CoordinationV1().Leases("kube-system").Create(c.ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "somebody"}}, metav1.CreateOptions{})
			c.no(err)
			c.storageVersion("apps.deployments", "apps/v2", "apiserver-b")
			c.storageVersion("example.com.bars", "v1", "apiserver-b")
			c.storageVersion("example.com.foos", "v1", "nobody", "somebody")
			time.Sleep(time.Minute)
			if _, err := all.Get(c.ctx, "example.com.foos", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("of nobody: %v", err)
			}
			v, err := all.Get(c.ctx, "apps.deployments", metav1.GetOptions{})
			if c.no(err); len(v.Status.StorageVersions) != 2 || v.Status.CommonEncodingVersion != nil {
				t.Errorf("two servers: %+v", v.Status)
			}
			c.no(c.client.CoordinationV1().Leases("kube-system").Delete(c.ctx, "apiserver-b", metav1.DeleteOptions{}))
			time.Sleep(time.Minute)
			v, err = all.Get(c.ctx, "apps.deployments", metav1.GetOptions{})
			if c.no(err); len(v.Status.StorageVersions) != 1 || v.Status.CommonEncodingVersion == nil || v.Status.Conditions[0].Status != apiserverinternalv1alpha1.ConditionTrue {
				t.Errorf("one server: %+v", v.Status)
			}
			list, err = all.List(c.ctx, metav1.ListOptions{})
			if c.no(err); len(list.Items) != own {
				t.Errorf("%d StorageVersions, were %d", len(list.Items), own)
			}
		})
	})
}
