package serviceallocation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/controlplane/apiserver/endpoints/ownership"
	"knarr/controlplane/apiserver/watchcache"
)

const (
	errIPTaken    = constError("provided IP is already allocated")
	errIPRange    = constError("the provided network does not match the current range")
	errRangeFull  = constError("range is full")
	ipParentGrace = time.Minute
)

// addresses gives the service the cluster IPs of its families that it has not.
func (g *grant) addresses(ctx context.Context, old *corev1.Service) error {
	spec := &g.service.Spec
	if old != nil {
		switch {
		case external(g.service):
			if !headless(old) && !external(old) {
				g.giveBack = append(g.giveBack, old.Spec.ClusterIPs...)
			}
			return nil
		case external(old): // as if created
		case headless(old):
			return nil
		case len(old.Spec.IPFamilies) == 2 && len(spec.IPFamilies) == 1:
			if len(old.Spec.ClusterIPs) == 2 {
				g.giveBack = append(g.giveBack, old.Spec.ClusterIPs[1])
			}
			return nil
		case len(old.Spec.IPFamilies) == 1 && len(spec.IPFamilies) == 2:
			if len(spec.ClusterIPs) < 2 {
				spec.ClusterIPs = append(spec.ClusterIPs[:len(spec.ClusterIPs):len(spec.ClusterIPs)], "")
			}
			return g.address(ctx, 1)
		default:
			return nil
		}
	}
	if external(g.service) || headless(g.service) {
		return nil
	}
	for i := range spec.IPFamilies {
		if i >= len(spec.ClusterIPs) {
			spec.ClusterIPs = append(spec.ClusterIPs, "")
		}
		if err := g.address(ctx, i); err != nil {
			return err
		}
	}
	if len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	return nil
}

// address allocates clusterIPs[i]: the one asked for, or any.
func (g *grant) address(ctx context.Context, i int) error {
	spec := &g.service.Spec
	path := field.NewPath("spec", "clusterIPs")
	ranges := g.a.subnets(spec.IPFamilies[i])
	if want := spec.ClusterIPs[i]; want != "" {
		addr, err := netip.ParseAddr(want)
		if err != nil {
			return nil // validation says what is wrong
		}
		if !slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return usable(p, addr) }) {
			err = errIPRange
		} else {
			err = g.take(ctx, addr)
		}
		if err != nil {
			return invalidService(g.service, field.Invalid(path, spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %v: %v", want, err)))
		}
		return nil
	}
	addr, err := netip.Addr{}, error(errRangeFull)
	for _, subnet := range ranges {
		if addr, err = g.any(ctx, subnet); !errors.Is(err, errRangeFull) {
			break
		}
	}
	if errors.Is(err, errRangeFull) {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w", g.service.Name, err))
	}
	if err != nil {
		return err
	}
	spec.ClusterIPs[i] = addr.String()
	return nil
}

// usable leaves out a network's own address, and IPv4's broadcast.
func usable(subnet netip.Prefix, addr netip.Addr) bool {
	if !subnet.IsValid() || !subnet.Contains(addr) || addr == subnet.Addr() {
		return false
	}
	return !addr.Is4() || addr != nth(subnet, 1<<(32-subnet.Bits())-1)
}

// nth is the n-th address of subnet.
func nth(subnet netip.Prefix, n uint64) netip.Addr {
	b := subnet.Addr().As16()
	for i := 15; i >= 0 && n > 0; i-- {
		n += uint64(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	out := netip.AddrFrom16(b)
	if subnet.Addr().Is4() {
		out = out.Unmap()
	}
	return out
}

// size is how many addresses are allocated from a subnet, and how many at its
// start are left to those who name theirs.
func rangeSize(subnet netip.Prefix) (size, band uint64) {
	bits := subnet.Addr().BitLen() - subnet.Bits()
	size = uint64(1) << min(bits, 62)
	if size > 2 {
		size-- // the last one is broadcast, or simply not used
	}
	band = min(max(16, size/16), 256)
	if size <= 16 {
		band = 0
	}
	return size, band
}

// maxProbes bounds the search in a range that is nearly full.
const maxProbes = 1 << 17

// any allocates some address, from the upper band first.
func (g *grant) any(ctx context.Context, subnet netip.Prefix) (netip.Addr, error) {
	size, band := rangeSize(subnet)
	try := func(from, to uint64) (netip.Addr, error) {
		if to <= from {
			return netip.Addr{}, errRangeFull
		}
		span := to - from
		start := rand.Uint64N(span)
		for i := range min(span, maxProbes) {
			addr := nth(subnet, from+(start+i)%span)
			switch err := g.take(ctx, addr); {
			case err == nil:
				return addr, nil
			case !errors.Is(err, errIPTaken):
				return netip.Addr{}, err
			}
		}
		return netip.Addr{}, errRangeFull
	}
	addr, err := try(max(band, 1), size)
	if errors.Is(err, errRangeFull) {
		addr, err = try(1, band)
	}
	return addr, err
}

// take makes addr the service's, or says that somebody has it.
func (g *grant) take(ctx context.Context, addr netip.Addr) error {
	a := g.a
	a.mu.Lock()
	if a.holding[addr] {
		a.mu.Unlock()
		return errIPTaken
	}
	a.holding[addr] = true
	a.mu.Unlock()
	err := g.claim(ctx, addr)
	if err != nil {
		a.mu.Lock()
		delete(a.holding, addr)
		a.mu.Unlock()
		return err
	}
	g.given = append(g.given, addr.String())
	return nil
}

// claim stores an IPAddress, whose name is the address: so no two API servers
// can give it away.
func (g *grant) claim(ctx context.Context, addr netip.Addr) error {
	addresses := g.a.cfg.Addresses
	if addresses == nil {
		return g.unused(ctx, addr)
	}
	name := addr.String()
	if addresses.Peek(name) != nil { // the cache may not know yet that it was given back
		rec, err := addresses.Fetch(ctx, name)
		if err == nil && !g.a.orphaned(ctx, rec) {
			return errIPTaken
		}
		if err != nil && !errors.Is(err, watchcache.ErrNotFound) {
			return err
		}
	}
	if g.dryRun {
		return nil
	}
	obj := &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(uuid.NewUUID()), CreationTimestamp: metav1.Time{Time: time.Now().Truncate(time.Second)},
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: string(familyOf(addr)),
				networkingv1.LabelManagedBy:       "ipallocator.k8s.io",
			},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: g.service.Namespace, Name: g.service.Name}},
	}
	for range 2 {
		_, err := addresses.Create(ctx, name, owned(obj.DeepCopy()))
		if !errors.Is(err, watchcache.ErrExists) {
			return err
		}
		rec, err := addresses.Fetch(ctx, name)
		if err == nil {
			if !g.a.orphaned(ctx, rec) {
				return errIPTaken
			}
			_, err = addresses.Delete(ctx, name, rec)
		}
		if err != nil && !errors.Is(err, watchcache.ErrNotFound) {
			return err
		}
	}
	return errIPTaken
}

// orphaned says that the service an address was given to never came to be, or
// is gone.
func (a *Allocator) orphaned(ctx context.Context, rec *watchcache.Record) bool {
	obj, err := rec.Object()
	if err != nil {
		return false
	}
	ip, ok := obj.(*networkingv1.IPAddress)
	if !ok || ip.Spec.ParentRef == nil || ip.Spec.ParentRef.Resource != "services" || time.Since(ip.CreationTimestamp.Time) < ipParentGrace {
		return false
	}
	_, err = a.cfg.Services.Get(ctx, ip.Spec.ParentRef.Namespace+"/"+ip.Spec.ParentRef.Name, "")
	return errors.Is(err, watchcache.ErrNotFound)
}

// unused looks through all services, where there is no kind to claim with.
func (g *grant) unused(ctx context.Context, addr netip.Addr) error {
	all, err := g.a.list(ctx)
	if err != nil {
		return err
	}
	for _, svc := range all {
		for _, ip := range svc.Spec.ClusterIPs {
			if ip == addr.String() {
				return errIPTaken
			}
		}
	}
	return nil
}

// owned is obj with this server as the owner of what it sets.
func owned(obj *networkingv1.IPAddress) *networkingv1.IPAddress {
	obj.SetManagedFields(ownership.Update(ownership.Request{
		Old: &networkingv1.IPAddress{}, Obj: obj, Creating: true,
		Manager: "kube-apiserver", APIVersion: networkingv1.SchemeGroupVersion.String(), Now: time.Now(),
	}))
	return obj
}

// release gives an address back.
func (a *Allocator) release(ip string) {
	addresses := a.cfg.Addresses
	if addresses == nil || ip == "" || ip == corev1.ClusterIPNone {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.cfg.WriteTime)
	defer cancel()
	for range 3 {
		rec, err := addresses.Fetch(ctx, ip)
		if err == nil {
			_, err = addresses.Delete(ctx, ip, rec)
		}
		switch {
		case err == nil, errors.Is(err, watchcache.ErrNotFound):
			return
		case !errors.Is(err, watchcache.ErrConflict):
			slog.Warn("release cluster IP", "ip", ip, "err", err)
			return
		}
	}
}
