package instances

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
)

// metadataV1 puts together what the older interfaces say. A provider without
// provider IDs is asked by the node's name.
func (a *Asker) metadataV1(ctx context.Context, node *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	id, err := a.providerID(ctx, node)
	if err != nil && !errors.Is(err, cloudprovider.NotImplemented) {
		return nil, err
	}
	m := &cloudprovider.InstanceMetadata{ProviderID: id}
	if m.NodeAddresses, err = a.addressesV1(ctx, id, node.Name); err != nil {
		return nil, err
	}
	m.InstanceType, err = either(id, node.Name, func(id string) (string, error) { return a.v1.InstanceTypeByProviderID(ctx, id) },
		func(name types.NodeName) (string, error) { return a.v1.InstanceType(ctx, name) })
	if err != nil {
		return nil, fmt.Errorf("get instance type: %w", err)
	}
	zones, ok := a.cloud.Zones()
	if !ok {
		return m, nil
	}
	zone, err := either(id, node.Name, func(id string) (cloudprovider.Zone, error) { return zones.GetZoneByProviderID(ctx, id) },
		func(name types.NodeName) (cloudprovider.Zone, error) { return zones.GetZoneByNodeName(ctx, name) })
	if err != nil {
		return nil, fmt.Errorf("failed to get zone from cloud provider: %w", err)
	}
	m.Zone, m.Region = zone.FailureDomain, zone.Region
	return m, nil
}

func (a *Asker) addressesV1(ctx context.Context, id, name string) ([]corev1.NodeAddress, error) {
	return either(id, name, func(id string) ([]corev1.NodeAddress, error) { return a.v1.NodeAddressesByProviderID(ctx, id) },
		func(name types.NodeName) ([]corev1.NodeAddress, error) { return a.v1.NodeAddresses(ctx, name) })
}

// either asks by provider ID, and by name if that gives no answer.
func either[T any](id, name string, byID func(string) (T, error), byName func(types.NodeName) (T, error)) (T, error) {
	got, err := byID(id)
	if err == nil {
		return got, nil
	}
	got, err2 := byName(types.NodeName(name))
	if err2 != nil {
		return got, fmt.Errorf("error fetching node by provider ID: %w, and error by node name: %w", err, err2)
	}
	return got, nil
}
