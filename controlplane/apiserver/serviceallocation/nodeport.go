package serviceallocation

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/controlplane/apiserver/watchcache"
)

const errPortTaken = constError("provided port is already allocated")

// nodePorts are all node ports of a service.
func nodePorts(svc *corev1.Service) []int32 {
	var out []int32
	for _, p := range svc.Spec.Ports {
		if p.NodePort != 0 {
			out = append(out, p.NodePort)
		}
	}
	if checksHealth(svc) && svc.Spec.HealthCheckNodePort != 0 {
		out = append(out, svc.Spec.HealthCheckNodePort)
	}
	return out
}

// ports gives the service the node ports it needs. Ports in use are those of
// all stored services and of writes in flight, here and in other API servers.
func (g *grant) ports(ctx context.Context, old *corev1.Service) error {
	svc := g.service
	typed := svc.Spec.Type == corev1.ServiceTypeNodePort || svc.Spec.Type == corev1.ServiceTypeLoadBalancer
	if !typed {
		return nil
	}
	var own []int32
	if old != nil {
		own = nodePorts(old)
	}
	if !g.wants(own) {
		return nil
	}
	// What other API servers give away at the same time shows only in what they
	// claim, or in what they stored before they let go of the claim.
	elsewhere := map[int32]bool{}
	asked, check := slices.Clone(svc.Spec.Ports), svc.Spec.HealthCheckNodePort
	for range portTries {
		used, err := g.portsInUse(ctx, old)
		if err != nil {
			return err
		}
		maps.Copy(used, elsewhere)
		if err := g.choosePorts(used, own, old); err != nil || len(g.portsHeld) == 0 {
			return err
		}
		lost, err := g.claimPorts(ctx, old)
		if err != nil || len(lost) == 0 {
			return err
		}
		for _, p := range lost {
			elsewhere[p] = true
		}
		g.dropPorts()
		copy(svc.Spec.Ports, asked)
		svc.Spec.HealthCheckNodePort = check
	}
	return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", errRangeFull))
}

// portTries bounds how often a race with other API servers is run again.
const portTries = 16

// portsInUse are those of all stored services but this one.
func (g *grant) portsInUse(ctx context.Context, old *corev1.Service) (map[int32]bool, error) {
	all, err := g.a.list(ctx)
	if err != nil {
		return nil, err
	}
	svc, used := g.service, map[int32]bool{}
	for _, other := range all {
		if other.UID == svc.UID && svc.UID != "" || old != nil && other.UID == old.UID {
			continue
		}
		for _, p := range nodePorts(other) {
			used[p] = true
		}
	}
	return used, nil
}

// portClaim is the key that an API server holds while it gives a port away.
func portClaim(p int32) string {
	return fmt.Sprintf("%sranges/servicenodeports/%d", watchcache.Root, p)
}

// claimPorts makes the ports chosen this API server's to give. It says which
// were another's.
func (g *grant) claimPorts(ctx context.Context, old *corev1.Service) (lost []int32, err error) {
	for _, p := range g.portsHeld {
		ok, err := g.a.cfg.Cache.Claim(ctx, portClaim(p), 2*g.a.cfg.WriteTime)
		if err != nil {
			return nil, err
		}
		if !ok {
			lost = append(lost, p)
			continue
		}
		g.claimed = append(g.claimed, p)
	}
	used, err := g.portsInUse(ctx, old)
	for _, p := range g.claimed {
		if used[p] {
			lost = append(lost, p)
		}
	}
	return lost, err
}

// dropPorts lets go of the ports chosen, or of the claim to those stored.
func (g *grant) dropPorts() {
	ctx, cancel := context.WithTimeout(context.Background(), g.a.cfg.WriteTime)
	defer cancel()
	for _, p := range g.claimed {
		if err := g.a.cfg.Cache.Unclaim(ctx, portClaim(p)); err != nil {
			slog.Warn("let go of a node port", "port", p, "err", err)
		}
	}
	g.a.mu.Lock()
	defer g.a.mu.Unlock()
	for _, p := range g.portsHeld {
		delete(g.a.reserved, p)
	}
	g.claimed, g.portsHeld = nil, nil
}

// choosePorts takes ports that nobody uses, and reserves them in this server.
func (g *grant) choosePorts(used map[int32]bool, own []int32, old *corev1.Service) error {
	svc := g.service
	g.a.mu.Lock()
	defer g.a.mu.Unlock()
	for p := range g.a.reserved {
		used[p] = true
	}
	if err := g.servicePorts(used, own, old != nil); err != nil {
		return err
	}
	if !checksHealth(svc) || old != nil && checksHealth(old) {
		return nil
	}
	if svc.Spec.HealthCheckNodePort == 0 {
		p, err := g.anyPort(used)
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort %v: %v", 0, err))
		}
		svc.Spec.HealthCheckNodePort = p
		return nil
	}
	if err := g.port(used, svc.Spec.HealthCheckNodePort); err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %v", svc.Spec.HealthCheckNodePort, err))
	}
	return nil
}

// wants says that there is anything to allocate.
func (g *grant) wants(own []int32) bool {
	svc := g.service
	for _, p := range svc.Spec.Ports {
		if p.NodePort == 0 && takesNodePorts(svc) || p.NodePort != 0 && !slices.Contains(own, p.NodePort) {
			return true
		}
	}
	h := svc.Spec.HealthCheckNodePort
	return checksHealth(svc) && (h == 0 || !slices.Contains(own, h))
}

func (g *grant) servicePorts(used map[int32]bool, own []int32, update bool) error {
	svc := g.service
	// A number asked for may serve several protocols of one service; on
	// creation, entries of one port share a node port.
	mine := map[int32]bool{}
	for _, p := range own {
		mine[p] = true
	}
	byPort := map[int32]int32{}
	if !update {
		for _, p := range svc.Spec.Ports {
			if p.NodePort != 0 && byPort[p.Port] == 0 {
				byPort[p.Port] = p.NodePort
			}
		}
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if p.NodePort == 0 && !takesNodePorts(svc) {
			continue
		}
		if p.NodePort == 0 {
			p.NodePort = byPort[p.Port]
		}
		if p.NodePort == 0 {
			n, err := g.anyPort(used)
			if err != nil {
				return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
			}
			p.NodePort = n
			mine[n] = true
			if !update {
				byPort[p.Port] = n
			}
			continue
		}
		if mine[p.NodePort] {
			continue
		}
		if err := g.port(used, p.NodePort); err != nil {
			return invalidService(svc, field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), p.NodePort, err.Error()))
		}
		mine[p.NodePort] = true
	}
	return nil
}

// port reserves p. The lock is held.
func (g *grant) port(used map[int32]bool, p int32) error {
	r := g.a.cfg.NodePorts
	if p < r.First || p > r.Last {
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %d-%d", r.First, r.Last)
	}
	if used[p] {
		return errPortTaken
	}
	used[p] = true
	if !g.dryRun {
		g.a.reserved[p] = true
		g.portsHeld = append(g.portsHeld, p)
	}
	return nil
}

// anyPort reserves some port. The lowest ones are left to those who name
// theirs, as long as there are others.
func (g *grant) anyPort(used map[int32]bool) (int32, error) {
	r := g.a.cfg.NodePorts
	size := r.Last - r.First + 1
	band := min(max(16, size/32), 128)
	if size <= 16 {
		band = 0
	}
	for _, part := range [2][2]int32{{band, size}, {0, band}} {
		span := part[1] - part[0]
		if span <= 0 {
			continue
		}
		start := rand.Int32N(span)
		for i := range span {
			p := r.First + part[0] + (start+i)%span
			if !used[p] {
				return p, g.port(used, p)
			}
		}
	}
	return 0, errRangeFull
}
