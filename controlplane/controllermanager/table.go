package controllermanager

import (
	"context"

	"knarr/controlplane/controllermanager/deployment"
	"knarr/controlplane/controllermanager/endpoint"
	"knarr/controlplane/controllermanager/endpointslice"
	"knarr/controlplane/controllermanager/namespace"
	"knarr/controlplane/controllermanager/nodeipam"
	"knarr/controlplane/controllermanager/replicaset"
	"knarr/controlplane/controllermanager/rootca"
	"knarr/controlplane/controllermanager/serviceaccount"
)

// A runner runs until its context ends.
type runner interface {
	Run(ctx context.Context) error
}

// An entry is one controller.
type entry struct {
	// name is upstream's, account the service account it acts as.
	name, account string
	// build makes the controller for one term; nil means it has nothing to do.
	build func(t *term) (runner, error)
}

// table are the controllers.
var table = []entry{
	{namespace.Name, "namespace-controller", buildNamespace},
	{serviceaccount.Name, "service-account-controller", buildServiceAccount},
	{rootca.Name, "root-ca-cert-publisher", buildRootCA},
	{replicaset.Name, "replicaset-controller", buildReplicaSet},
	{deployment.Name, "deployment-controller", buildDeployment},
	{replicaset.NameRC, "replication-controller", buildReplicationController},
	{endpoint.Name, "endpoint-controller", buildEndpoints},
	{endpointslice.Name, "endpointslice-controller", buildEndpointSlices},
	{nodeipam.Name, "node-controller", buildNodeIPAM},
}

func buildNamespace(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	meta, err := t.metadata()
	if err != nil {
		return nil, err
	}
	return namespace.New(t.informers, client, meta), nil
}

func buildServiceAccount(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return serviceaccount.New(t.informers, client), nil
}

func buildRootCA(t *term) (runner, error) {
	if len(t.RootCA) == 0 {
		return nil, nil
	}
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return rootca.New(t.informers, client, t.RootCA), nil
}

func buildReplicaSet(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return replicaset.New(t.informers, client, t.events("replicaset-controller"))
}

func buildDeployment(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return deployment.New(t.informers, client, t.events("deployment-controller"))
}

func buildReplicationController(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return replicaset.NewRC(t.informers, client, t.events("replication-controller"))
}

func buildEndpoints(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return endpoint.New(t.informers, client, t.events("endpoint-controller")), nil
}

func buildEndpointSlices(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return endpointslice.New(t.informers, client, t.events("endpoint-slice-controller"))
}

func buildNodeIPAM(t *term) (runner, error) {
	if len(t.ClusterCIDRs) == 0 {
		return nil, nil
	}
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return nodeipam.New(t.informers, client, t.events("cidrAllocator"), nodeipam.Config{
		ClusterCIDRs: t.ClusterCIDRs, Taken: t.ServiceCIDRs,
		MaskIPv4: t.NodeCIDRMaskSizeIPv4, MaskIPv6: t.NodeCIDRMaskSizeIPv6,
	})
}

// absent are upstream's controllers that are not here yet: naming them in a
// selection is no mistake.
var absent = map[string]bool{}
