package loadbalancer

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/addons/loadbalancer/addresspool"
	"knarr/addons/loadbalancer/announcer"
)

// The names of the roles and their bindings.
const roleName, poolRole, announcerRole = "knarr:service-lb", "knarr:service-lb-pools", "knarr:address-announcer"

func madeHere(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/managed-by": "knarr"}}
}

// create calls a create, for which one that is there is as good: it is a user's, and stays.
func create[T any](ctx context.Context, do func(context.Context, T, metav1.CreateOptions) (T, error), object T) error {
	if _, err := do(ctx, object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("give the service load balancer its rights: %w", err)
	}
	return nil
}

// publish gives ServiceAccount and the announcers of the nodes their rights. The Leases of
// addresses have a namespace of their own, since every node may write them.
func publish(ctx context.Context, kube *rest.Config) error {
	client, err := kubernetes.NewForConfig(kube)
	if err != nil {
		return fmt.Errorf("service load balancer: %w", err)
	}
	server := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: Namespace, Name: ServiceAccount}
	nodes := rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: announcer.Group}
	rbac := client.RbacV1()
	roles, bindings := rbac.ClusterRoles(), rbac.ClusterRoleBindings()
	local, localBindings := rbac.Roles(announcer.Namespace), rbac.RoleBindings(announcer.Namespace)
	for _, do := range []func() error{
		func() error {
			return create(ctx, roles.Create, &rbacv1.ClusterRole{ObjectMeta: madeHere(roleName), Rules: mainRules()})
		},
		func() error { return create(ctx, bindings.Create, clusterBinding(roleName, server)) },
		func() error {
			return create(ctx, roles.Create, &rbacv1.ClusterRole{ObjectMeta: madeHere(poolRole), Rules: poolRules()})
		},
		func() error { return create(ctx, bindings.Create, clusterBinding(poolRole, server)) },
		func() error {
			return create(ctx, roles.Create, &rbacv1.ClusterRole{ObjectMeta: madeHere(announcerRole), Rules: announcerRules()})
		},
		func() error { return create(ctx, bindings.Create, clusterBinding(announcerRole, nodes)) },
		func() error {
			return create(ctx, client.CoreV1().Namespaces().Create, &corev1.Namespace{ObjectMeta: madeHere(announcer.Namespace)})
		},
		func() error {
			return create(ctx, local.Create, &rbacv1.Role{ObjectMeta: madeHere(announcerRole), Rules: []rbacv1.PolicyRule{
				rule("coordination.k8s.io", "leases", "get", "list", "watch", "create", "update", "delete")}})
		},
		func() error {
			return create(ctx, localBindings.Create, &rbacv1.RoleBinding{ObjectMeta: madeHere(announcerRole), Subjects: []rbacv1.Subject{server, nodes},
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: announcerRole}})
		},
	} {
		if err := do(); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	return nil
}

func clusterBinding(role string, to ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{ObjectMeta: madeHere(role), Subjects: to, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}}
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

func mainRules() []rbacv1.PolicyRule {
	lease := rule("coordination.k8s.io", "leases", "get", "update")
	lease.ResourceNames = []string{Name}
	return []rbacv1.PolicyRule{
		rule("", "services", "get", "list", "watch"),
		rule("", "nodes", "get", "list", "watch"),
		rule("discovery.k8s.io", "endpointslices", "get", "list", "watch"),
		rule("", "services/status", "update"),
		rule("", "events", "create", "patch"),
		lease,
		rule("coordination.k8s.io", "leases", "create"),
	}
}

func poolRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule(addresspool.Resource.Group, addresspool.Resource.Resource, "get", "list", "watch"),
		rule(addresspool.Resource.Group, addresspool.Resource.Resource+"/status", "update"),
	}
}

func announcerRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("", "services", "list", "watch"),
		rule("", "nodes", "list", "watch"),
		rule("discovery.k8s.io", "endpointslices", "list", "watch"),
		rule(addresspool.Resource.Group, addresspool.Resource.Resource, "list", "watch"),
	}
}
