package metrics

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"knarr/internal/controller"
	"knarr/internal/run"
)

const (
	apiServices = "apiservices"
	// apiServiceName is the one that a user may put another in place of; laterName's is there
	// with ours.
	apiServiceName, laterName = v1beta1 + "." + group, v1 + "." + group
	// managedBy marks the APIService that is made here.
	managedBy, us = "app.kubernetes.io/managed-by", "knarr"
)

// apiService is one that leads here, with metrics-server's priorities. Clients that take
// what the group prefers know v1beta1.
func apiService(version string) *apiregistrationv1.APIService {
	priority := int32(100)
	if version != v1beta1 {
		priority = 90
	}
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: version + "." + group, Labels: map[string]string{managedBy: us}},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: group, Version: version, GroupPriorityMinimum: 100, VersionPriority: priority,
			Service: &apiregistrationv1.ServiceReference{Namespace: Namespace, Name: serviceName},
		},
	}
}

// leadsHere reports whether an APIService is ours: what a user has put in its place
// names another server.
func leadsHere(a *apiregistrationv1.APIService) bool {
	return a.Spec.Service != nil && a.Spec.Service.Namespace == Namespace && a.Spec.Service.Name == serviceName
}

// A registrar keeps the APIServices there, unless a user's has v1beta1's name.
type registrar struct {
	client  kubernetes.Interface
	rest    *rest.RESTClient // for APIServices
	ours    atomic.Bool      // the API is served from here
	changed func()           // is told when that changes
}

func newRegistrar(kube *rest.Config, changed func()) (*registrar, error) {
	client, err := kubernetes.NewForConfig(kube)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := apiregistrationv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	cfg := rest.CopyConfig(kube)
	cfg.GroupVersion, cfg.APIPath = &apiregistrationv1.SchemeGroupVersion, "/apis"
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return &registrar{client: client, rest: c, changed: changed}, nil
}

// run keeps it there until ctx ends.
func (r *registrar) run(ctx context.Context) error {
	informer := func(name string) cache.SharedIndexInformer {
		lw := cache.NewListWatchFromClient(r.rest, apiServices, "", fields.OneTermEqualSelector("metadata.name", name))
		return cache.NewSharedIndexInformer(lw, &apiregistrationv1.APIService{}, 0, cache.Indexers{})
	}
	found, later := informer(apiServiceName), informer(laterName)
	both := func(metav1.Object) []string { return []string{apiServiceName} }
	c := &controller.Controller[string]{
		Name:    "metrics-registrar",
		Sources: []controller.Source[string]{{Informer: found, Keys: both}, {Informer: later, Keys: both}},
		// Without one there is no event, so the first look is not an event's.
		Feeds: []func(context.Context, func(), func(string)) error{func(ctx context.Context, ready func(), add func(string)) error {
			add(apiServiceName)
			ready()
			<-ctx.Done()
			return nil
		}},
		Reconcile: func(ctx context.Context, name string) (time.Duration, error) {
			o, there, err := found.GetStore().GetByKey(name)
			if err != nil {
				return 0, err
			}
			if !there {
				return 0, r.create(ctx, v1beta1)
			}
			here := leadsHere(o.(*apiregistrationv1.APIService))
			if r.ours.Swap(here) != here {
				r.changed()
			}
			o, there, err = later.GetStore().GetByKey(laterName)
			switch {
			case err != nil:
				return 0, err
			case here && !there:
				return 0, r.create(ctx, v1)
			case !here && there:
				return 0, r.remove(ctx, o.(*apiregistrationv1.APIService))
			}
			return 0, nil
		},
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg run.Group
	defer wg.Wait()
	defer cancel()
	wg.Go("metrics: watch the APIService", func() { found.RunWithContext(ctx) })
	wg.Go("metrics: watch the APIService", func() { later.RunWithContext(ctx) })
	return c.Run(ctx)
}

func (r *registrar) create(ctx context.Context, version string) error {
	err := r.rest.Post().Resource(apiServices).Body(apiService(version)).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		return nil // its event follows
	}
	return err
}

// remove removes an APIService if it leads here.
func (r *registrar) remove(ctx context.Context, have *apiregistrationv1.APIService) error {
	if !leadsHere(have) {
		return nil
	}
	err := r.rest.Delete().Resource(apiServices).Name(have.Name).
		Body(&metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(have.UID))}).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove APIService %s: %w", have.Name, err)
	}
	return nil
}

// roles makes what there is not of metrics-server's roles: its own, and the one
// by which viewers of a namespace may read the metrics of its pods.
func (r *registrar) roles(ctx context.Context) error {
	rbac := r.client.RbacV1()
	for _, role := range []*rbacv1.ClusterRole{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "system:aggregated-metrics-reader", Labels: map[string]string{
				"k8s-app": ServiceAccount, "rbac.authorization.k8s.io/aggregate-to-admin": "true",
				"rbac.authorization.k8s.io/aggregate-to-edit": "true", "rbac.authorization.k8s.io/aggregate-to-view": "true",
			}},
			Rules: []rbacv1.PolicyRule{{APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"pods", "nodes"}, Verbs: []string{"get", "list", "watch"}}},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: roleName, Labels: map[string]string{"k8s-app": ServiceAccount}},
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"nodes/metrics"}, Verbs: []string{"get"}},
				{APIGroups: []string{""}, Resources: []string{"pods", "nodes"}, Verbs: []string{"get", "list", "watch"}},
			},
		},
	} {
		if _, err := rbac.ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
			return fmt.Errorf("make the role %s: %w", role.Name, err)
		}
	}
	_, err := rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: roleName, Labels: map[string]string{"k8s-app": ServiceAccount}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: roleName},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: Namespace, Name: ServiceAccount}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
		return fmt.Errorf("bind the role %s: %w", roleName, err)
	}
	return nil
}

const roleName = "system:metrics-server"

// Withdraw removes our APIServices, for a cluster that does not run this any
// more: one that leads nowhere would hold up whoever reads discovery. It does
// nothing to a user's.
func Withdraw(ctx context.Context, kube *rest.Config) error {
	r, err := newRegistrar(kube, func() {})
	if err != nil {
		return err
	}
	for _, name := range []string{apiServiceName, laterName} {
		have := &apiregistrationv1.APIService{}
		err := r.rest.Get().Resource(apiServices).Name(name).Do(ctx).Into(have)
		if err == nil {
			err = r.remove(ctx, have)
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("remove APIService %s: %w", name, err)
		}
	}
	return nil
}
