package gateway

import (
	"context"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/internal/references"
)

const (
	managedBy, us = "app.kubernetes.io/managed-by", "knarr"
	// ClassName is the name of the IngressClass.
	ClassName = "knarr"
	mainRole  = "knarr:gateway"
)

func madeHere(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{managedBy: us}}
}

// create calls a create, for which one that is there is as good: it may be a user's.
func create[T any](ctx context.Context, do func(context.Context, T, metav1.CreateOptions) (T, error), object T, what string) error {
	if _, err := do(ctx, object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make the %s of the gateway: %w", what, err)
	}
	return nil
}

// keepRole makes a role, or gives one that an older release has made what it lacks.
func keepRole(ctx context.Context, client kubernetes.Interface, want *rbacv1.ClusterRole) error {
	roles := client.RbacV1().ClusterRoles()
	have, err := roles.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return create(ctx, roles.Create, want, "cluster role")
	case err == nil && have.Labels[managedBy] == us && !equality.Semantic.DeepEqual(have.Rules, want.Rules):
		have.Rules = want.Rules
		_, err = roles.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("bring the cluster role %s up to date: %w", want.Name, err)
	}
	return nil
}

// publish makes the class and the roles.
func publish(ctx context.Context, kube *rest.Config) error {
	client, err := kubernetes.NewForConfig(kube)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	classes, err := client.NetworkingV1().IngressClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list ingress classes: %w", err)
	}
	bindings := client.RbacV1().ClusterRoleBindings()
	server := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: Namespace, Name: ServiceAccount}
	for _, err := range []error{
		keepRole(ctx, client, &rbacv1.ClusterRole{ObjectMeta: madeHere(mainRole), Rules: mainRules()}),
		create(ctx, bindings.Create, binding(mainRole, server), "cluster role binding"),
		create(ctx, client.NetworkingV1().IngressClasses().Create, ingressClass(classes.Items), "ingress class"),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// withdraw removes the class, for a cluster that does not serve Ingresses any more.
func withdraw(ctx context.Context, kube *rest.Config) error {
	client, err := kubernetes.NewForConfig(kube)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	classes := client.NetworkingV1().IngressClasses()
	class, err := classes.Get(ctx, ClassName, metav1.GetOptions{})
	if err == nil && class.Labels[managedBy] == us {
		err = classes.Delete(ctx, ClassName, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(class.UID))})
	}
	if err == nil || apierrors.IsNotFound(err) {
		services := client.CoreV1().Services(Namespace)
		svc, serr := services.Get(ctx, serviceName, metav1.GetOptions{})
		if err = serr; err == nil && svc.Labels[managedBy] == us {
			err = services.Delete(ctx, serviceName, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(svc.UID))})
		}
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove what Ingresses were served by: %w", err)
	}
	return nil
}

// ingressClass is the class of Ingresses that are served here: the default one, unless
// there is another.
func ingressClass(others []networkingv1.IngressClass) *networkingv1.IngressClass {
	class := &networkingv1.IngressClass{ObjectMeta: madeHere(ClassName), Spec: networkingv1.IngressClassSpec{Controller: references.Controller}}
	for i := range others {
		if others[i].Annotations[references.DefaultClass] == "true" {
			return class
		}
	}
	class.Annotations = map[string]string{references.DefaultClass: "true"}
	return class
}

func binding(role string, to ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{ObjectMeta: madeHere(role), Subjects: to,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}}
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

func plurals() (all []string) {
	for _, k := range apiKinds {
		all = append(all, k.plural)
	}
	return all
}

func statuses() (all []string) {
	for _, p := range append(plurals(), "gateways") {
		all = append(all, p+"/status")
	}
	return all
}

// mainRules are what the server's part may do besides what every node's part may: that
// role is one of those that a cluster starts with.
func mainRules() []rbacv1.PolicyRule {
	lease := rule("coordination.k8s.io", "leases", "get", "update")
	lease.ResourceNames = []string{Name}
	return []rbacv1.PolicyRule{
		rule("", "nodes", "list", "watch"),
		rule("", "services", "create", "update", "delete"),
		rule("discovery.k8s.io", "endpointslices", "create", "update", "delete"),
		rule("networking.k8s.io", "ingresses/status", "update"),
		{APIGroups: []string{gw.GroupName}, Resources: statuses(), Verbs: []string{"update"}},
		rule("coordination.k8s.io", "leases", "create"),
		lease,
	}
}
