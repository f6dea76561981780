// Package clusterrole is the clusterrole-aggregation-controller. It reads
// ClusterRoles and writes the rules of those that gather others' by label.
package clusterrole

import (
	"cmp"
	"context"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	rbacapply "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "clusterrole-aggregation-controller"

type reconciler struct {
	roles  cache.Indexer
	client kubernetes.Interface
}

// New returns the controller.
func New(f informers.SharedInformerFactory, client kubernetes.Interface) *controller.Controller[string] {
	roles := f.Rbac().V1().ClusterRoles().Informer()
	r := &reconciler{roles.GetIndexer(), client}
	return &controller.Controller[string]{
		Name:      Name,
		Workers:   2,
		Sources:   []controller.Source[string]{{Informer: roles, Keys: r.aggregating}},
		Reconcile: r.reconcile,
	}
}

// aggregating names the roles that gather o's rules, and o if it gathers itself.
func (r *reconciler) aggregating(o metav1.Object) (names []string) {
	for _, obj := range r.roles.List() {
		role := obj.(*rbacv1.ClusterRole)
		if role.AggregationRule != nil && (role.Name == o.GetName() || aggregates(role, o)) {
			names = append(names, role.Name)
		}
	}
	return names
}

func aggregates(role *rbacv1.ClusterRole, o metav1.Object) bool {
	return slices.ContainsFunc(role.AggregationRule.ClusterRoleSelectors, func(s metav1.LabelSelector) bool {
		selector, err := metav1.LabelSelectorAsSelector(&s)
		return err == nil && selector.Matches(labels.Set(o.GetLabels()))
	})
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Duration, error) {
	obj, ok, err := r.roles.GetByKey(name)
	if err != nil || !ok {
		return 0, err
	}
	role := obj.(*rbacv1.ClusterRole)
	if role.AggregationRule == nil {
		return 0, nil
	}
	rules := aggregate(role, r.roles.List())
	if apiequality.Semantic.DeepEqual(rules, role.Rules) {
		return 0, nil
	}
	apply := rbacapply.ClusterRole(name)
	apply.Rules = []rbacapply.PolicyRuleApplyConfiguration{}
	for _, rule := range rules {
		apply.Rules = append(apply.Rules, rbacapply.PolicyRuleApplyConfiguration{
			Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources,
			ResourceNames: rule.ResourceNames, NonResourceURLs: rule.NonResourceURLs,
		})
	}
	_, err = r.client.RbacV1().ClusterRoles().Apply(ctx, apply, metav1.ApplyOptions{FieldManager: Name, Force: true})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	return 0, err
}

// aggregate collects the rules of all roles that role selects, each once, in the
// order of the selectors and the roles' names.
func aggregate(role *rbacv1.ClusterRole, all []any) (rules []rbacv1.PolicyRule) {
	var roles []*rbacv1.ClusterRole
	for _, o := range all {
		roles = append(roles, o.(*rbacv1.ClusterRole))
	}
	slices.SortFunc(roles, func(a, b *rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&s)
		if err != nil {
			continue
		}
		for _, o := range roles {
			if o.Name == role.Name || !selector.Matches(labels.Set(o.Labels)) {
				continue
			}
			for _, rule := range o.Rules {
				if !slices.ContainsFunc(rules, func(have rbacv1.PolicyRule) bool { return apiequality.Semantic.DeepEqual(have, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules
}
