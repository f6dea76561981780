// Package addresspool is the kind AddressPool: addresses that Services of type
// LoadBalancer get in place of the nodes'. It reads and writes the kind's
// CustomResourceDefinition, and reads its objects.
package addresspool

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Resource is the kind's, which is not namespaced.
var Resource = schema.GroupVersionResource{Group: "knarr.io", Version: "v1alpha1", Resource: "addresspools"}

// An AddressPool is addresses for Services of type LoadBalancer.
type AddressPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              Spec   `json:"spec"`
	Status            Status `json:"status,omitempty"`
}

// A Spec is what a pool is to be.
type Spec struct {
	// Addresses are ranges: "192.0.2.0/28", "192.0.2.10-192.0.2.20", or one address.
	Addresses []string `json:"addresses"`
	// AutoAssign gives addresses to Services that ask for none. Default true.
	AutoAssign *bool `json:"autoAssign,omitempty"`
	// Namespaces are those whose Services get addresses; none means all.
	Namespaces []string `json:"namespaces,omitempty"`
	// Interfaces of the nodes are where addresses are announced. Default: those whose
	// network an address is of, or else that of the default route.
	Interfaces []string `json:"interfaces,omitempty"`
	// NodeSelector are labels of the nodes that announce. Default: all.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Announce is ARP, for ARP and NDP, or None where the network leads the addresses to
	// the nodes by itself. Default ARP.
	Announce string `json:"announce,omitempty"`
}

// A Status is what has become of a pool.
type Status struct {
	// Assigned is how many of its addresses Services have.
	Assigned int `json:"assigned"`
	// Problems are what is wrong with its spec; those of its addresses that are right
	// serve all the same.
	Problems []string `json:"problems,omitempty"`
}

// DeepCopyObject makes it an object of the API.
func (p *AddressPool) DeepCopyObject() runtime.Object {
	out := *p
	out.ObjectMeta = *p.ObjectMeta.DeepCopy()
	out.Spec.Addresses, out.Spec.Namespaces, out.Spec.Interfaces = slices.Clone(p.Spec.Addresses), slices.Clone(p.Spec.Namespaces), slices.Clone(p.Spec.Interfaces)
	if p.Spec.AutoAssign != nil {
		out.Spec.AutoAssign = new(*p.Spec.AutoAssign)
	}
	if p.Spec.NodeSelector != nil {
		out.Spec.NodeSelector = map[string]string{}
		for k, v := range p.Spec.NodeSelector {
			out.Spec.NodeSelector[k] = v
		}
	}
	out.Status.Problems = slices.Clone(p.Status.Problems)
	return &out
}

// A list of pools.
type list struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []AddressPool `json:"items"`
}

// DeepCopyObject makes it an object of the API.
func (l *list) DeepCopyObject() runtime.Object {
	out := &list{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*AddressPool))
	}
	return out
}

// A Client reads and writes pools.
type Client struct{ rest rest.Interface }

// NewClient reaches the API server as kube says.
func NewClient(kube *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	gv := Resource.GroupVersion()
	scheme.AddKnownTypeWithName(gv.WithKind("AddressPool"), &AddressPool{})
	scheme.AddKnownTypeWithName(gv.WithKind("AddressPoolList"), &list{})
	metav1.AddToGroupVersion(scheme, gv)
	cfg := rest.CopyConfig(kube)
	cfg.GroupVersion, cfg.APIPath = &gv, "/apis"
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("address pools: %w", err)
	}
	return &Client{client}, nil
}

// The times between two looks whether the kind is served: a new cluster defines it at
// its start, and whoever follows it need not complain before.
const minLook, maxLook = 5 * time.Millisecond, 5 * time.Second

// WaitServed returns once the kind is served, or ctx ended.
func (c *Client) WaitServed(ctx context.Context) {
	for wait := minLook; ctx.Err() == nil; wait = min(2*wait, maxLook) {
		if err := c.rest.Get().Resource(Resource.Resource).Param("limit", "1").Do(ctx).Error(); err == nil {
			return
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// Informer follows all pools.
func (c *Client) Informer() cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			var all list
			return &all, c.rest.Get().Resource(Resource.Resource).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Into(&all)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			return c.rest.Get().Resource(Resource.Resource).VersionedParams(&o, metav1.ParameterCodec).Watch(ctx)
		},
	}, &AddressPool{}, 0, nil)
}

// WriteStatus writes a pool's status.
func (c *Client) WriteStatus(ctx context.Context, p *AddressPool) error {
	p.TypeMeta = metav1.TypeMeta{APIVersion: Resource.GroupVersion().String(), Kind: "AddressPool"}
	err := c.rest.Put().Resource(Resource.Resource).Name(p.Name).SubResource("status").Body(p).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("write the status of address pool %s: %w", p.Name, err)
	}
	return nil
}
