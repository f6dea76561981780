package endpoints

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
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
// all stored services and of writes in flight.
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
	all, err := g.a.list(ctx, g.w)
	if err != nil {
		return err
	}
	g.a.mu.Lock()
	defer g.a.mu.Unlock()
	used := map[int32]bool{}
	for _, other := range all {
		if other.UID == svc.UID && svc.UID != "" || old != nil && other.UID == old.UID {
			continue
		}
		for _, p := range nodePorts(other) {
			used[p] = true
		}
	}
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
	if !g.w.dryRun {
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
