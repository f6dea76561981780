// Package serviceallocation gives Services their cluster IPs and node ports
// before they are stored, and takes them back. It reads all Services and
// ServiceCIDRs, writes an IPAddress for each cluster IP, and holds a key in the
// store for each node port while a write with it is on its way, so that no two API
// servers give away the same one. What a server that ended left behind is taken
// over: an IPAddress whose Service never came to be, and keys, which end by
// themselves.
package serviceallocation

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// Config is what an Allocator needs. The zero value of a field means its default.
type Config struct {
	// Cache is where node ports are claimed, so that no two API servers give
	// away the same one.
	Cache *watchcache.Cache
	// Services are the stored ones.
	Services *watchcache.Resource
	// Addresses are the stored IPAddresses. Nil where that kind is not served:
	// then the addresses in use are those of all Services.
	Addresses *watchcache.Resource
	// Ranges are the stored ServiceCIDRs: more ranges of cluster IPs. Nil where that
	// kind is not served.
	Ranges *watchcache.Resource
	// CIDRs are the ranges of cluster IPs, the first is the primary family.
	// Default 10.43.0.0/16.
	CIDRs []netip.Prefix
	// NodePorts is the range of node ports. Default 30000-32767.
	NodePorts PortRange
	// WriteTime is the longest time that a write takes: a claim lives for twice
	// that. Default 34 seconds.
	WriteTime time.Duration
}

// A PortRange is First to Last, both within.
type PortRange struct{ First, Last int32 }

// An Allocator gives Services their cluster IPs and node ports, before they are
// stored, and takes them back. It is safe for use by many.
type Allocator struct {
	cfg      Config
	ranges   map[corev1.IPFamily]netip.Prefix
	primary  corev1.IPFamily
	current  atomic.Pointer[subnets]
	mu       sync.Mutex
	reserved map[int32]bool      // node ports of writes in flight
	holding  map[netip.Addr]bool // addresses of writes in flight
}

// New makes an Allocator; it starts nothing.
func New(cfg Config) (*Allocator, error) {
	if len(cfg.CIDRs) == 0 {
		cfg.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")}
	}
	if cfg.NodePorts == (PortRange{}) {
		cfg.NodePorts = PortRange{30000, 32767}
	}
	if cfg.WriteTime == 0 {
		cfg.WriteTime = 34 * time.Second
	}
	a := &Allocator{
		cfg: cfg, ranges: map[corev1.IPFamily]netip.Prefix{},
		reserved: map[int32]bool{}, holding: map[netip.Addr]bool{},
	}
	for i, p := range cfg.CIDRs {
		f := familyOf(p.Addr())
		if _, ok := a.ranges[f]; ok {
			return nil, fmt.Errorf("service CIDRs %v: two of one family", cfg.CIDRs)
		}
		a.ranges[f] = p.Masked()
		if i == 0 {
			a.primary = f
		}
	}
	return a, nil
}

// constant is an error that callers compare.
type constError string

func (e constError) Error() string { return string(e) }

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Unmap().Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

func familyOfText(ip string) corev1.IPFamily {
	a, err := netip.ParseAddr(ip)
	if err != nil {
		return ""
	}
	return familyOf(a)
}

func otherFamily(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// Allocate gives svc, about to be stored in place of old, the addresses and
// ports it needs; old is nil for a new Service. Finish must be called with
// whether svc was stored: it gives back what is not needed, of the old Service or
// of this write. A dry run takes nothing.
func (a *Allocator) Allocate(ctx context.Context, svc, old *corev1.Service, dryRun bool) (finish func(stored bool), err error) {
	registry.NormalizeClusterIPs(svc, old)
	if old != nil {
		registry.KeepAllocated(svc, old)
	}
	if err := a.families(svc, old); err != nil {
		return nil, err
	}
	g := &grant{a: a, dryRun: dryRun, service: svc}
	if err := g.addresses(ctx, old); err != nil {
		g.finish(false)
		return nil, err
	}
	if err := g.ports(ctx, old); err != nil {
		g.finish(false)
		return nil, err
	}
	return g.finish, nil
}

// Release takes back the addresses of a deleted Service. Its ports are free once
// it is not stored.
func (a *Allocator) Release(svc *corev1.Service) {
	for _, ip := range svc.Spec.ClusterIPs {
		a.release(ip)
	}
}

// A grant is what one write was given, until it is known to be stored.
type grant struct {
	a         *Allocator
	dryRun    bool
	service   *corev1.Service
	given     []string // addresses
	giveBack  []string // addresses to release once stored
	portsHeld []int32
	claimed   []int32
}

func (g *grant) finish(stored bool) {
	release := g.giveBack
	if !stored {
		release = g.given
	}
	if !g.dryRun {
		for _, ip := range release {
			g.a.release(ip)
		}
	}
	if len(g.portsHeld) > 0 {
		g.dropPorts()
	}
	g.a.mu.Lock()
	defer g.a.mu.Unlock()
	for _, ip := range g.given {
		if addr, err := netip.ParseAddr(ip); err == nil {
			delete(g.a.holding, addr)
		}
	}
}

func invalidService(svc *corev1.Service, errs ...*field.Error) error {
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), svc.Name, errs)
}

func headless(svc *corev1.Service) bool {
	return svc.Spec.ClusterIP == corev1.ClusterIPNone || len(svc.Spec.ClusterIPs) > 0 && svc.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

func external(svc *corev1.Service) bool { return svc.Spec.Type == corev1.ServiceTypeExternalName }

func takesNodePorts(svc *corev1.Service) bool {
	switch svc.Spec.Type {
	case corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeLoadBalancer:
		return svc.Spec.AllocateLoadBalancerNodePorts == nil || *svc.Spec.AllocateLoadBalancerNodePorts
	}
	return false
}

func checksHealth(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// list is all services, consistently.
func (a *Allocator) list(ctx context.Context) ([]*corev1.Service, error) {
	found, err := a.cfg.Services.List(ctx, watchcache.Query{})
	if err != nil {
		return nil, err
	}
	out := make([]*corev1.Service, 0, len(found.Records))
	for _, rec := range found.Records {
		obj, err := rec.Object()
		if err != nil {
			return nil, err
		}
		if svc, ok := obj.(*corev1.Service); ok {
			out = append(out, svc)
		}
	}
	return out, nil
}
