// Package baremetal is the cloud provider knarr: machines that are listed in a file,
// without load balancers and routes. It reads the file, and writes nothing.
package baremetal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"

	"knarr/internal/follow"
)

// Name is the provider's.
const Name = "knarr"

// scheme is what the IDs of machines begin with that have none in the file.
const scheme = Name + "://"

// A Provider answers from its file. As long as that cannot be read, its answer to
// every question is the error: nothing is initialised, changed or deleted by it.
type Provider struct {
	file string

	mu     sync.Mutex
	err    error
	now    *list
	byName map[string]*instance
	byID   map[string]*instance
}

// Open reads the file.
func Open(file string) (*Provider, error) {
	if file == "" {
		return nil, errors.New("--cloud-config: the cloud provider knarr needs the file that lists the machines")
	}
	p := &Provider{file: file}
	p.load()
	if p.err != nil {
		return nil, fmt.Errorf("--cloud-config: %w", p.err)
	}
	return p, nil
}

// load reads the file anew and reports whether answers may be others than before.
func (p *Provider) load() (changed bool) {
	l, err := read(p.file)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		changed, p.err = p.err == nil || p.err.Error() != err.Error(), err
		return changed
	}
	changed = p.err != nil || p.now == nil || !reflect.DeepEqual(p.now, l)
	p.err, p.now, p.byName, p.byID = nil, l, map[string]*instance{}, map[string]*instance{}
	for i := range l.Instances {
		in := &l.Instances[i]
		p.byName[in.Name], p.byID[in.ProviderID] = in, in
	}
	return changed
}

// Follow reads the file again whenever it may have changed, until ctx ends.
func (p *Provider) Follow(ctx context.Context, changed func()) error {
	return follow.File(ctx, p.file, func() time.Duration {
		if !p.load() {
			return 0
		}
		p.mu.Lock()
		err, n := p.err, len(p.now.Instances)
		p.mu.Unlock()
		if err != nil {
			slog.WarnContext(ctx, "the file of machines cannot be used; nothing is done by it until it can", "err", err)
			return 0
		}
		slog.InfoContext(ctx, "read the file of machines", "file", p.file, "instances", n)
		changed()
		return 0
	})
}

// instance is the machine of a node: that of its provider ID, which the list must give
// to that name, and that of its name only if it has none yet. One that is not listed is unknown, which says nothing of its being.
func (p *Provider) instance(node *corev1.Node) (*instance, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return nil, fmt.Errorf("--cloud-config: %w", p.err)
	}
	in, ok := p.byName[node.Name]
	if id := node.Spec.ProviderID; id != "" {
		in, ok = p.byID[id]
	}
	if ok && in.Name != node.Name { // a kubelet may say any ID of its own node
		return nil, fmt.Errorf("node %s has the provider ID %q, which %s gives to %s; correct the list, or the node's --provider-id", node.Name, node.Spec.ProviderID, p.file, in.Name)
	}
	if !ok {
		return nil, fmt.Errorf("node %s with provider ID %q is not listed in %s; list it there, with exists: false if the machine is gone", node.Name, node.Spec.ProviderID, p.file)
	}
	return in, nil
}

// InstanceExists is false only for a machine that is listed as gone.
func (p *Provider) InstanceExists(_ context.Context, node *corev1.Node) (bool, error) {
	in, err := p.instance(node)
	return err == nil && (in.Exists == nil || *in.Exists), err
}

// InstanceShutdown is what the file says.
func (p *Provider) InstanceShutdown(_ context.Context, node *corev1.Node) (bool, error) {
	in, err := p.instance(node)
	return err == nil && in.Shutdown, err
}

// InstanceMetadata is what the file says of a machine that is there.
func (p *Provider) InstanceMetadata(_ context.Context, node *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	in, err := p.instance(node)
	if err != nil {
		return nil, err
	}
	if in.Exists != nil && !*in.Exists {
		return nil, fmt.Errorf("%w: %s lists the machine of node %s as gone", cloudprovider.InstanceNotFound, p.file, node.Name)
	}
	return &cloudprovider.InstanceMetadata{
		ProviderID: in.ProviderID, InstanceType: in.InstanceType, NodeAddresses: in.Addresses,
		Zone: in.Zone, Region: in.Region, AdditionalLabels: in.Labels,
	}, nil
}
