package baremetal

import cloudprovider "k8s.io/cloud-provider"

var (
	_ cloudprovider.Interface   = (*Provider)(nil)
	_ cloudprovider.InstancesV2 = (*Provider)(nil)
)

// Initialize has nothing to do: Follow is what runs.
func (p *Provider) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}

// ProviderName is what --cloud-provider calls it.
func (p *Provider) ProviderName() string { return Name }

// HasClusterID is true: the file is one cluster's.
func (p *Provider) HasClusterID() bool { return true }

// InstancesV2 are the machines of the file.
func (p *Provider) InstancesV2() (cloudprovider.InstancesV2, bool) { return p, true }

// Instances is what InstancesV2 replaces.
func (p *Provider) Instances() (cloudprovider.Instances, bool) { return nil, false }

// Zones is what InstancesV2 replaces.
func (p *Provider) Zones() (cloudprovider.Zones, bool) { return nil, false }

// LoadBalancer says that there are none.
func (p *Provider) LoadBalancer() (cloudprovider.LoadBalancer, bool) { return nil, false }

// Routes says that there are none.
func (p *Provider) Routes() (cloudprovider.Routes, bool) { return nil, false }

// Clusters says that there are none.
func (p *Provider) Clusters() (cloudprovider.Clusters, bool) { return nil, false }
