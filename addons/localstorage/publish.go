package localstorage

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/internal/leader"
)

// managedBy marks what is made here.
const managedBy, us = "app.kubernetes.io/managed-by", "knarr"

const defaultClass = "storageclass.kubernetes.io/is-default-class"

// A PublisherConfig is what a Publisher needs.
type PublisherConfig struct {
	// Kube reaches the API server as who may write classes and roles.
	Kube *rest.Config
	// LeaderElect makes those of several servers take turns, Identity is who this is.
	LeaderElect bool
	Identity    string
}

// A Publisher makes what the cluster as a whole has of this: where there is an
// object of that name it is a user's, and stays as it is. It speaks for nodes that are
// gone.
type Publisher struct {
	cfg    PublisherConfig
	client kubernetes.Interface
}

// NewPublisher puts it together; it starts nothing.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	cfg.Kube = leader.Fenced(cfg.Kube)
	client, err := kubernetes.NewForConfig(cfg.Kube)
	if err != nil {
		return nil, fmt.Errorf("local storage: %w", err)
	}
	return &Publisher{cfg, client}, nil
}

// Run makes what is missing, and then looks after what nodes have left behind, until ctx
// ends.
func (p *Publisher) Run(ctx context.Context) error {
	if err := p.publish(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	term := func(ctx context.Context) error { return keepLost(ctx, p.client, lostGrace) }
	if !p.cfg.LeaderElect {
		return term(ctx)
	}
	return leader.Run(ctx, leader.Config{Kube: p.cfg.Kube, Lease: leaseName, Identity: p.cfg.Identity}, term)
}

// leaseName is that of the Lease by which servers take turns.
const leaseName = "local-path"

// create calls a create, for which one that is there is as good.
func create[T any](ctx context.Context, do func(context.Context, T, metav1.CreateOptions) (T, error), object T, what string) error {
	if _, err := do(ctx, object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make the %s of local storage: %w", what, err)
	}
	return nil
}

func (p *Publisher) publish(ctx context.Context) error {
	rbac, admission := p.client.RbacV1(), p.client.AdmissionregistrationV1()
	classes, err := p.client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list storage classes: %w", err)
	}
	for _, err := range []error{
		// What restricts nodes comes before what gives them rights.
		p.restrict(ctx),
		create(ctx, admission.ValidatingAdmissionPolicyBindings().Create, policyBinding(), "admission policy's binding"),
		create(ctx, rbac.ClusterRoles().Create, clusterRole(), "cluster role"),
		create(ctx, rbac.ClusterRoleBindings().Create, clusterRoleBinding(), "cluster role binding"),
		create(ctx, rbac.Roles(Namespace).Create, role(), "role"),
		create(ctx, rbac.RoleBindings(Namespace).Create, roleBinding(), "role binding"),
		create(ctx, p.client.StorageV1().CSIDrivers().Create, csiDriver(), "CSIDriver"),
		create(ctx, p.client.StorageV1().StorageClasses().Create, storageClass(classes.Items), "storage class"),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// restrict makes the admission policy, or brings one that an older release made up to
// date: it keeps nodes from each other's volumes.
func (p *Publisher) restrict(ctx context.Context) error {
	policies := p.client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	want := policy()
	have, err := policies.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return create(ctx, policies.Create, want, "admission policy")
	case err == nil && have.Labels[managedBy] == us && !equality.Semantic.DeepDerivative(want.Spec, have.Spec):
		have.Spec = want.Spec
		_, err = policies.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("bring the admission policy of local storage up to date: %w", err)
	}
	return nil
}

// Withdraw removes the class and the driver, for a cluster that does not run this
// any more: claims of the class would wait for ever. It does nothing to a user's.
// Volumes stay.
func (p *Publisher) Withdraw(ctx context.Context) error {
	class, err := p.client.StorageV1().StorageClasses().Get(ctx, ClassName, metav1.GetOptions{})
	if err == nil && class.Labels[managedBy] == us {
		err = p.client.StorageV1().StorageClasses().Delete(ctx, ClassName, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(class.UID))})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the storage class %s: %w", ClassName, err)
	}
	driver, err := p.client.StorageV1().CSIDrivers().Get(ctx, Provisioner, metav1.GetOptions{})
	if err == nil && driver.Labels[managedBy] == us {
		err = p.client.StorageV1().CSIDrivers().Delete(ctx, Provisioner, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(driver.UID))})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the CSIDriver %s: %w", Provisioner, err)
	}
	return nil
}
