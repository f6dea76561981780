// Package instances asks a cloud provider about the instance of a Node: by the
// interface InstancesV2 where the provider has it, else by Instances and Zones. It
// reads what it is given and the provider, and writes nothing.
package instances

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
)

// Timeout is how long a provider may take for one answer.
const Timeout = time.Minute

// An Asker puts questions to a provider.
type Asker struct {
	cloud cloudprovider.Interface
	v2    cloudprovider.InstancesV2
	v1    cloudprovider.Instances
}

// New fails for a provider that knows no instances.
func New(cloud cloudprovider.Interface) (*Asker, error) {
	a := &Asker{cloud: cloud}
	if v2, ok := cloud.InstancesV2(); ok && v2 != nil {
		a.v2 = v2
		return a, nil
	}
	if v1, ok := cloud.Instances(); ok && v1 != nil {
		a.v1 = v1
		return a, nil
	}
	return nil, errors.New("cloud provider does not support instances")
}

// Exists reports whether the node's instance is there. Only a false without an
// error says that it is not.
func (a *Asker) Exists(ctx context.Context, node *corev1.Node) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	if a.v2 != nil {
		return a.v2.InstanceExists(ctx, node.DeepCopy())
	}
	id, err := a.providerID(ctx, node)
	if errors.Is(err, cloudprovider.InstanceNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return a.v1.InstanceExistsByProviderID(ctx, id)
}

// Shutdown reports whether the node's instance is there and switched off. A
// provider that cannot say has none that are.
func (a *Asker) Shutdown(ctx context.Context, node *corev1.Node) (off bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	if a.v2 != nil {
		off, err = a.v2.InstanceShutdown(ctx, node.DeepCopy())
	} else {
		var id string
		if id, err = a.providerID(ctx, node); err == nil {
			off, err = a.v1.InstanceShutdownByProviderID(ctx, id)
		}
	}
	if errors.Is(err, cloudprovider.NotImplemented) || a.v2 == nil && errors.Is(err, cloudprovider.InstanceNotFound) {
		return false, nil
	}
	return off && err == nil, err
}

// Metadata is all that a Node takes over from its instance; nil from a provider
// that has nothing to say of it.
func (a *Asker) Metadata(ctx context.Context, node *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	if a.v2 == nil {
		return a.metadataV1(ctx, node)
	}
	got, err := a.v2.InstanceMetadata(ctx, node.DeepCopy())
	if err != nil || got == nil {
		return nil, err
	}
	m := *got // which stays the provider's
	if m.ProviderID == "" {
		if m.ProviderID = node.Spec.ProviderID; m.ProviderID == "" {
			return nil, fmt.Errorf("cloud provider does not set node provider ID for node %s", node.Name)
		}
	}
	return &m, nil
}

// Addresses are those of the node's instance.
func (a *Asker) Addresses(ctx context.Context, node *corev1.Node) ([]corev1.NodeAddress, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	if a.v2 == nil {
		return a.addressesV1(ctx, node.Spec.ProviderID, node.Name)
	}
	m, err := a.v2.InstanceMetadata(ctx, node.DeepCopy())
	if err != nil || m == nil {
		return nil, err
	}
	return m.NodeAddresses, nil
}

func (a *Asker) providerID(ctx context.Context, node *corev1.Node) (string, error) {
	if node.Spec.ProviderID != "" {
		return node.Spec.ProviderID, nil
	}
	return cloudprovider.GetInstanceProviderID(ctx, a.cloud, types.NodeName(node.Name))
}
