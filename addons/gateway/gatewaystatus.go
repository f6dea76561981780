package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/gatewayapi"
	"knarr/internal/controller"
)

// gateways keeps the Services of Gateways, and writes what the objects of the Gateway API
// are told.
func (t *statusTerm) gateways(ctx context.Context, out *compiled) error {
	var errs []error
	for _, o := range t.world.api.allClasses() {
		if o.Spec.ControllerName == gatewayapi.Controller {
			want, _ := gatewayapi.ClassStatus(o)
			keepTimes(want.Conditions, o.Status.Conditions)
			errs = append(errs, put(ctx, t, "gatewayclasses", o, o.Status, want, func(c *gw.GatewayClass) { c.Status = want }))
		}
	}
	if t.world.api.kinds == nil {
		return errors.Join(errs...)
	}
	in := t.world.api.input()
	s := &out.statuses
	errs = append(errs, t.keepServices(ctx, out.ports))
	for _, o := range in.Gateways {
		want, ok := s.Gateways[key(o)]
		if !ok {
			continue
		}
		keepTimes(want.Conditions, o.Status.Conditions)
		for i := range want.Listeners {
			if at := slices.IndexFunc(o.Status.Listeners, func(l gw.ListenerStatus) bool { return l.Name == want.Listeners[i].Name }); at >= 0 {
				keepTimes(want.Listeners[i].Conditions, o.Status.Listeners[at].Conditions)
			} else {
				keepTimes(want.Listeners[i].Conditions, nil)
			}
		}
		errs = append(errs, put(ctx, t, "gateways", o, o.Status, want, func(c *gw.Gateway) { c.Status = want }))
	}
	for _, o := range in.ListenerSets {
		want, ok := s.ListenerSets[key(o)]
		if !ok {
			continue
		}
		keepTimes(want.Conditions, o.Status.Conditions)
		for i := range want.Listeners {
			if at := slices.IndexFunc(o.Status.Listeners, func(l gw.ListenerEntryStatus) bool { return l.Name == want.Listeners[i].Name }); at >= 0 {
				keepTimes(want.Listeners[i].Conditions, o.Status.Listeners[at].Conditions)
			} else {
				keepTimes(want.Listeners[i].Conditions, nil)
			}
		}
		errs = append(errs, put(ctx, t, "listenersets", o, o.Status, want, func(c *gw.ListenerSet) { c.Status = want }))
	}
	errs = append(errs, t.routes(ctx, &in, s), t.policies(ctx, &in, s))
	return errors.Join(errs...)
}

// A written is a route whose status is as it should be, and what it should be.
type written struct {
	route metav1.Object
	ours  *gw.RouteParentStatus
	n     int
}

func writtenOf(o metav1.Object, ours []gw.RouteParentStatus) written {
	if len(ours) == 0 {
		return written{o, nil, 0}
	}
	return written{o, &ours[0], len(ours)}
}

// routes writes the status of routes. One that has not changed, of which the compilation says
// what it did, is not looked at.
func (t *statusTerm) routes(ctx context.Context, in *gatewayapi.Input, s *gatewayapi.Statuses) error {
	now := make(map[metav1.Object]written, len(t.written))
	errs := []error{
		routesOf(ctx, t, now, "httproutes", in.HTTPRoutes, s.Routes["HTTPRoute"], func(r *gw.HTTPRoute) *gw.RouteStatus { return &r.Status.RouteStatus }),
		routesOf(ctx, t, now, "grpcroutes", in.GRPCRoutes, s.Routes["GRPCRoute"], func(r *gw.GRPCRoute) *gw.RouteStatus { return &r.Status.RouteStatus }),
		routesOf(ctx, t, now, "tlsroutes", in.TLSRoutes, s.Routes["TLSRoute"], func(r *gw.TLSRoute) *gw.RouteStatus { return &r.Status.RouteStatus }),
		routesOf(ctx, t, now, "tcproutes", in.TCPRoutes, s.Routes["TCPRoute"], func(r *gw.TCPRoute) *gw.RouteStatus { return &r.Status.RouteStatus }),
		routesOf(ctx, t, now, "udproutes", in.UDPRoutes, s.Routes["UDPRoute"], func(r *gw.UDPRoute) *gw.RouteStatus { return &r.Status.RouteStatus }),
	}
	t.written = now
	return errors.Join(errs...)
}

func routesOf[T interface {
	metav1.Object
	runtime.Object
}](ctx context.Context, t *statusTerm, now map[metav1.Object]written, plural string, all []T, ours map[types.NamespacedName][]gw.RouteParentStatus, status func(T) *gw.RouteStatus) error {
	var errs []error
	for _, o := range all {
		mine := ours[key(o)]
		is := writtenOf(o, mine)
		if t.written[o] != is {
			want := parents(mine, status(o).Parents)
			if err := put(ctx, t, plural, o, *status(o), want, func(c T) { *status(c) = want }); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		now[o] = is
	}
	return errors.Join(errs...)
}

func (t *statusTerm) policies(ctx context.Context, in *gatewayapi.Input, s *gatewayapi.Statuses) error {
	var errs []error
	for _, o := range in.Policies {
		var want gw.PolicyStatus
		for _, a := range o.Status.Ancestors {
			if a.ControllerName != gatewayapi.Controller {
				want.Ancestors = append(want.Ancestors, a)
			}
		}
		for _, a := range s.Policies[key(o)] {
			a.Conditions = slices.Clone(a.Conditions)
			var before []metav1.Condition
			for _, b := range o.Status.Ancestors {
				if b.ControllerName == a.ControllerName && equality.Semantic.DeepEqual(a.AncestorRef, b.AncestorRef) {
					before = b.Conditions
				}
			}
			keepTimes(a.Conditions, before)
			want.Ancestors = append(want.Ancestors, a)
		}
		if len(want.Ancestors) == 0 && len(o.Status.Ancestors) == 0 {
			continue
		}
		if want.Ancestors == nil {
			want.Ancestors = []gw.PolicyAncestorStatus{}
		}
		errs = append(errs, put(ctx, t, "backendtlspolicies", o, o.Status, want, func(c *gw.BackendTLSPolicy) { c.Status = want }))
	}
	return errors.Join(errs...)
}

func key(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// parents are those of a route's status: ours, beside other controllers'.
func parents(ours, have []gw.RouteParentStatus) (status gw.RouteStatus) {
	for _, p := range have {
		if p.ControllerName != gatewayapi.Controller {
			status.Parents = append(status.Parents, p)
		}
	}
	for _, p := range ours {
		var before []metav1.Condition
		for _, h := range have {
			if h.ControllerName == p.ControllerName && equality.Semantic.DeepEqual(h.ParentRef, p.ParentRef) {
				before = h.Conditions
			}
		}
		p.Conditions = slices.Clone(p.Conditions)
		keepTimes(p.Conditions, before)
		status.Parents = append(status.Parents, p)
	}
	if status.Parents == nil && have != nil {
		status.Parents = []gw.RouteParentStatus{} // it had some
	}
	return status
}

// keepTimes gives conditions the time of those before that say the same.
func keepTimes(now, before []metav1.Condition) {
	for i := range now {
		now[i].LastTransitionTime = metav1.NewTime(time.Now().Truncate(time.Second))
		for _, b := range before {
			if b.Type == now[i].Type && b.Status == now[i].Status {
				now[i].LastTransitionTime = b.LastTransitionTime
			}
		}
	}
}

// put writes an object's status, if it is not what it should be.
func put[T interface {
	metav1.Object
	runtime.Object
}, S any](ctx context.Context, t *statusTerm, plural string, object T, have, want S, set func(T)) error {
	if equality.Semantic.DeepEqual(have, want) {
		return nil
	}
	changed := object.DeepCopyObject().(T)
	set(changed)
	r := t.world.api.client.rest.Put().Resource(plural).Name(object.GetName()).SubResource("status").Body(changed)
	if ns := object.GetNamespace(); ns != "" {
		r = r.Namespace(ns)
	}
	if err := r.Do(ctx).Error(); controller.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status of %s %s: %w", plural, key(object), err)
	}
	return nil
}
