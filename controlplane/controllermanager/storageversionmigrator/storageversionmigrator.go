// Package storageversionmigrator is the storage-version-migrator-controller. It reads
// StorageVersionMigrations and the metadata of the objects of their resources, and has
// the API server write each of these anew as it is, so that none is stored in an old
// version or under an old key. It writes the status of the migrations, and that of
// CustomResourceDefinitions whose objects are stored in one version alone then.
package storageversionmigrator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	storagemigrationv1beta1 "k8s.io/api/storagemigration/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "storage-version-migrator-controller"

type migration = storagemigrationv1beta1.StorageVersionMigration

const (
	running   = string(storagemigrationv1beta1.MigrationRunning)
	succeeded = string(storagemigrationv1beta1.MigrationSucceeded)
	failed    = string(storagemigrationv1beta1.MigrationFailed)
)

const (
	// discoverTime is how long a resource may take to appear that a migration names.
	discoverTime = time.Minute
	lookAgain    = 5 * time.Second
)

type reconciler struct {
	migrations cache.Indexer
	client     kubernetes.Interface
	metadata   metadata.Interface
}

// New returns the controller. The migrations of one resource are worked on one after
// the other, those of different resources beside each other.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, meta metadata.Interface) *controller.Controller[schema.GroupResource] {
	migrations := f.Storagemigration().V1beta1().StorageVersionMigrations().Informer()
	r := &reconciler{migrations.GetIndexer(), client, meta}
	return &controller.Controller[schema.GroupResource]{
		Name:    Name,
		Workers: 5,
		Sources: []controller.Source[schema.GroupResource]{{Informer: migrations, Keys: func(o metav1.Object) []schema.GroupResource {
			m, ok := o.(*migration)
			if !ok {
				return nil
			}
			return []schema.GroupResource{{Group: m.Spec.Resource.Group, Resource: m.Spec.Resource.Resource}}
		}}},
		Reconcile: r.reconcile,
	}
}

// plan finds the migrations of a resource that have ended and are still called
// running, and the one to work on: that which runs, or the oldest that waits. Pure.
func plan(all []*migration) (ended []*migration, next *migration) {
	slices.SortFunc(all, func(a, b *migration) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	for _, m := range all {
		runs := is(m, running)
		over := is(m, succeeded) || is(m, failed)
		switch {
		case runs && over:
			ended = append(ended, m)
		case over:
		case next == nil, runs && !is(next, running):
			next = m
		}
	}
	return ended, next
}

func is(m *migration, condition string) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, condition)
}

func (r *reconciler) reconcile(ctx context.Context, gr schema.GroupResource) (time.Duration, error) {
	var all []*migration
	for _, o := range r.migrations.List() {
		if m := o.(*migration); m.Spec.Resource.Group == gr.Group && m.Spec.Resource.Resource == gr.Resource {
			all = append(all, m)
		}
	}
	ended, next := plan(all)
	for _, m := range ended {
		if err := r.finishDefinition(ctx, gr, is(m, succeeded)); err != nil {
			return 0, err
		}
		if err := r.mark(ctx, m, metav1.Condition{Type: running, Status: metav1.ConditionFalse, Reason: "MigrationCompleted",
			Message: "Migration completed", ObservedGeneration: m.Generation}); err != nil {
			return 0, err
		}
	}
	if next == nil {
		return 0, nil
	}
	return r.advance(ctx, gr, next)
}

// advance takes one step of a migration. What it writes brings the next one.
func (r *reconciler) advance(ctx context.Context, gr schema.GroupResource, m *migration) (time.Duration, error) {
	if !is(m, running) {
		if err := r.markDefinition(ctx, gr, m.Name); err != nil {
			return 0, err
		}
		return 0, r.mark(ctx, m, metav1.Condition{Type: running, Status: metav1.ConditionTrue, Reason: "MigrationRunning", Message: "The migration is running"})
	}
	gvr, kind, err := r.find(gr)
	var refused *refusal
	switch {
	case errors.Is(err, errNotServed):
		if time.Since(m.CreationTimestamp.Time) < discoverTime {
			return lookAgain, nil
		}
		return 0, r.fail(ctx, m, "resource does not exist in discovery")
	case errors.As(err, &refused):
		return 0, r.fail(ctx, m, refused.Error())
	case err != nil:
		return 0, err
	}
	if m.Status.ResourceVersion == "" {
		list, err := r.metadata.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return 0, fmt.Errorf("error getting latest resourceVersion for %s: %w", gvr, err)
		}
		m = m.DeepCopy()
		m.Status.ResourceVersion = list.ResourceVersion
		return 0, r.update(ctx, m)
	}
	if err := r.rewrite(ctx, gvr, kind, m.Status.ResourceVersion); errors.As(err, &refused) {
		return 0, r.fail(ctx, m, "migration encountered unhandled error: "+refused.Error())
	} else if err != nil {
		return 0, err
	}
	return 0, r.mark(ctx, m, metav1.Condition{Type: succeeded, Status: metav1.ConditionTrue, Reason: "StorageVersionMigrationSucceeded"})
}

func (r *reconciler) fail(ctx context.Context, m *migration, message string) error {
	return r.mark(ctx, m, metav1.Condition{Type: failed, Status: metav1.ConditionTrue, Reason: "StorageVersionMigrationFailed", Message: message})
}

func (r *reconciler) mark(ctx context.Context, m *migration, c metav1.Condition) error {
	m = m.DeepCopy()
	if !meta.SetStatusCondition(&m.Status.Conditions, c) {
		return nil
	}
	return r.update(ctx, m)
}

func (r *reconciler) update(ctx context.Context, m *migration) error {
	_, err := r.client.StoragemigrationV1beta1().StorageVersionMigrations().UpdateStatus(ctx, m, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the status of migration %s: %w", m.Name, err)
	}
	return nil
}
