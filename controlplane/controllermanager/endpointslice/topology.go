package endpointslice

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// overload is how much more than its share of the traffic an endpoint may get.
const overload = 0.2

// A notice is an event for the Service.
type notice struct{ kind, reason, message string }

// auto says that the Service wants each zone to have its share of the endpoints.
func auto(svc *corev1.Service) bool {
	mode, ok := svc.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	if !ok {
		mode = svc.Annotations[corev1.AnnotationTopologyMode]
	}
	return mode == "Auto" || mode == "auto"
}

// topology gives the endpoints of one address type their zones' hints, if the
// Service wants them by its annotation; ratios are the zones' shares of the CPUs.
func (c *changes) topology(svc *corev1.Service, family discoveryv1.AddressType, want map[string]*group, have []*discoveryv1.EndpointSlice, ratios map[string]float64) {
	now := map[types.UID]string{}
	for _, s := range have {
		for _, ep := range s.Endpoints {
			if ep.Hints != nil && len(ep.Hints.ForZones) == 1 {
				now[uidOf(ep)] = ep.Hints.ForZones[0].Name
			}
		}
	}
	tell := func(kind, reason, message string) {
		c.notices = append(c.notices, notice{kind, reason, fmt.Sprintf("%s, addressType: %s", message, family)})
	}
	if !auto(svc) {
		if len(now) > 0 && svc.Spec.TrafficDistribution == nil {
			tell(corev1.EventTypeWarning, "TopologyAwareHintsDisabled", "Topology Aware Hints has been disabled")
		}
		return
	}
	zones, why := spread(ready(want), now, ratios)
	if why != "" {
		tell(corev1.EventTypeWarning, "TopologyAwareHintsDisabled", why)
		return
	}
	for _, g := range want {
		for uid, zone := range zones {
			if ep, ok := g.endpoints[uid]; ok {
				ep.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
				g.endpoints[uid] = ep
			}
		}
	}
	if len(now) == 0 {
		tell(corev1.EventTypeNormal, "TopologyAwareHintsEnabled", "Topology Aware Hints has been enabled")
	}
}

// ready are the endpoints that get traffic, by their pods' names.
func ready(want map[string]*group) (out []discoveryv1.Endpoint) {
	for _, g := range want {
		for _, ep := range g.endpoints {
			if *ep.Conditions.Ready {
				out = append(out, ep)
			}
		}
	}
	slices.SortFunc(out, func(a, b discoveryv1.Endpoint) int {
		return cmp.Or(cmp.Compare(a.TargetRef.Name, b.TargetRef.Name), cmp.Compare(a.TargetRef.UID, b.TargetRef.UID))
	})
	return out
}

// An allotment is how many endpoints a zone gets.
type allotment struct {
	minimum, maximum int
	desired          float64
}

// spread decides which zone each endpoint serves: the ones that they serve now if
// each zone has enough, else their own, of which zones with many give to those
// with few. Why says that it cannot be done.
func spread(endpoints []discoveryv1.Endpoint, now map[types.UID]string, ratios map[string]float64) (zones map[types.UID]string, why string) {
	allotments, why := allot(len(endpoints), ratios)
	if why != "" {
		return nil, why
	}
	zones = map[types.UID]string{}
	kept, count := map[types.UID]string{}, map[string]int{}
	for _, ep := range endpoints {
		if ep.Zone == nil || *ep.Zone == "" {
			return nil, "One or more endpoints do not have a zone specified"
		}
		uid := uidOf(ep)
		zones[uid], kept[uid] = *ep.Zone, *ep.Zone
		if _, ok := allotments[now[uid]]; ok {
			kept[uid] = now[uid]
		}
		count[kept[uid]]++
	}
	enough := true
	for zone, a := range allotments {
		enough = enough && count[zone] >= a.minimum && count[zone] <= a.maximum
	}
	if enough {
		return kept, ""
	}
	give, receive := moves(endpoints, allotments)
	for _, ep := range endpoints {
		if give[*ep.Zone] == 0 || len(receive) == 0 {
			continue
		}
		give[*ep.Zone]--
		zones[uidOf(ep)], receive = receive[0], receive[1:]
	}
	return zones, ""
}

// allot is what each zone gets of n endpoints.
func allot(n int, ratios map[string]float64) (map[string]allotment, string) {
	if len(ratios) < 2 {
		return nil, "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"
	}
	if len(ratios) > n {
		return nil, fmt.Sprintf("Insufficient number of endpoints (%d endpoints, %d zones)", n, len(ratios))
	}
	out, total := map[string]allotment{}, 0
	for zone, ratio := range ratios {
		desired := ratio * float64(n)
		minimum := int(math.Ceil(desired / (1 + overload)))
		out[zone] = allotment{minimum: minimum, desired: max(desired, float64(minimum))}
		total += minimum
	}
	if total > n {
		return nil, fmt.Sprintf("Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (%d endpoints, %d zones)", n, len(ratios))
	}
	for zone, a := range out {
		a.maximum = a.minimum + n - total
		out[zone] = a
	}
	return out, ""
}

// moves are how many endpoints zones give away, and the zones that receive them
// one by one.
func moves(endpoints []discoveryv1.Endpoint, allotments map[string]allotment) (give map[string]int, receive []string) {
	over, under := map[string]float64{}, map[string]float64{}
	count := map[string]int{}
	for _, ep := range endpoints {
		count[*ep.Zone]++
	}
	for zone, a := range allotments {
		if diff := float64(count[zone]) - a.desired; diff > 0 {
			over[zone] = diff
		} else {
			under[zone] = -diff
		}
	}
	give = map[string]int{}
	for {
		from, to := most(over), most(under)
		if from == "" || to == "" || over[from] < 1 && under[to] < 1 || over[from] < 0.5 || under[to] < 0.5 {
			return give, receive
		}
		give[from]++
		over[from]--
		receive = append(receive, to)
		under[to]--
	}
}

// most is the name of the highest number, the first by name of several, "" if none
// is above zero.
func most(of map[string]float64) (name string) {
	for _, n := range slices.Sorted(maps.Keys(of)) {
		if of[n] > 0 && (name == "" || of[n] > of[name]) {
			name = n
		}
	}
	return name
}
