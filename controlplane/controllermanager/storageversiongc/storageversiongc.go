// Package storageversiongc is the storageversion-garbage-collector-controller. It reads
// StorageVersions and the Leases of API servers, removes from StorageVersions what API
// servers have said that are gone, and deletes those of which nothing is left.
package storageversiongc

import (
	"context"
	"fmt"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
	"knarr/internal/informer"
	"knarr/internal/storageversion"
)

// Name is the controller's.
const Name = "storageversion-garbage-collector-controller"

const (
	// byServer indexes StorageVersions by the API servers that they have entries of.
	byServer = "storageversiongc: server"
	// lookAgain is when a server's Lease is looked for again that the cache did not have:
	// it may come and go without the cache having had it.
	lookAgain = time.Minute
)

type version = apiserverinternalv1alpha1.StorageVersion

type reconciler struct {
	versions, leases cache.Indexer
	client           kubernetes.Interface
}

// New returns the controller.
func New(f informers.SharedInformerFactory, client kubernetes.Interface) (*controller.Controller[cache.ObjectName], error) {
	versions, leases := f.Internal().V1alpha1().StorageVersions().Informer(), f.Coordination().V1().Leases().Informer()
	if err := informer.Index(versions, cache.Indexers{byServer: serversOf}); err != nil {
		return nil, fmt.Errorf("index StorageVersions: %w", err)
	}
	r := &reconciler{versions.GetIndexer(), leases.GetIndexer(), client}
	return &controller.Controller[cache.ObjectName]{
		Name: Name,
		Sources: []controller.Source[cache.ObjectName]{
			controller.Self(versions),
			{Informer: leases, Keys: r.ofServer},
		},
		Reconcile: controller.Existing(versions.GetIndexer(), r.reconcile),
	}, nil
}

func serversOf(o any) (ids []string, err error) {
	if v, ok := o.(*version); ok {
		for _, e := range v.Status.StorageVersions {
			ids = append(ids, e.APIServerID)
		}
	}
	return ids, nil
}

// ofServer are the StorageVersions with entries of a server that has no Lease. Those that
// are renewed, every few seconds, ask for nothing.
func (r *reconciler) ofServer(o metav1.Object) (keys []cache.ObjectName) {
	if o.GetNamespace() != metav1.NamespaceSystem || r.cached(o.GetName()) {
		return nil
	}
	all, err := r.versions.ByIndex(byServer, o.GetName())
	if err != nil {
		return nil
	}
	for _, o := range all {
		keys = append(keys, cache.MetaObjectToName(o.(*version)))
	}
	return keys
}

// cached says whether the cache has the Lease of an API server.
func (r *reconciler) cached(server string) bool {
	o, ok, err := r.leases.GetByKey(metav1.NamespaceSystem + "/" + server)
	return err == nil && ok && storageversion.IsIdentity(o.(*coordinationv1.Lease))
}

func (r *reconciler) reconcile(ctx context.Context, v *version) (again time.Duration, err error) {
	var left []apiserverinternalv1alpha1.ServerStorageVersion
	for _, e := range v.Status.StorageVersions {
		if !r.cached(e.APIServerID) {
			// That it is gone is concluded from the server's own answer.
			l, err := r.client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, e.APIServerID, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err), err == nil && !storageversion.IsIdentity(l):
				continue
			case err != nil:
				return 0, fmt.Errorf("look for API server %s of StorageVersion %s: %w", e.APIServerID, v.Name, err)
			}
			again = lookAgain
		}
		left = append(left, e)
	}
	if len(left) == len(v.Status.StorageVersions) {
		return again, nil
	}
	switch err = r.keep(ctx, v, left); {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return again, nil // its event follows
	case err != nil:
		return 0, fmt.Errorf("remove what API servers that are gone have said from StorageVersion %s: %w", v.Name, err)
	}
	return again, nil
}

// keep leaves these entries.
func (r *reconciler) keep(ctx context.Context, v *version, left []apiserverinternalv1alpha1.ServerStorageVersion) error {
	versions := r.client.InternalV1alpha1().StorageVersions()
	if len(left) == 0 {
		return versions.Delete(ctx, v.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &v.UID, ResourceVersion: &v.ResourceVersion}})
	}
	v = v.DeepCopy()
	v.Status.StorageVersions = left
	storageversion.Conclude(v)
	_, err := versions.UpdateStatus(ctx, v, metav1.UpdateOptions{})
	return err
}
