package deviceplugin

import (
	"fmt"
	"maps"
	"slices"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// A set is one of devices, by their IDs.
type set map[string]bool

func (s set) ids() []string { return slices.Sorted(maps.Keys(s)) }

func (s set) without(o set) set {
	out := set{}
	for id := range s {
		if !o[id] {
			out[id] = true
		}
	}
	return out
}

func (s set) and(o set) set {
	out := set{}
	for id := range s {
		if o[id] {
			out[id] = true
		}
	}
	return out
}

// A question is what devices are chosen by.
type question struct {
	resource string
	need     int
	// reuse are those of init containers that have ended by then, free those that nobody
	// has; both are healthy.
	reuse, free set
	devices     map[string]*pluginapi.Device
	// near says which NUMA nodes the container is to use; nil: any.
	near map[int64]bool
	// prefer asks the plugin; nil where it has no preference.
	prefer func(available, must set, size int) ([]string, error)
}

// choose picks devices: those to be used again first, then those of the right NUMA nodes,
// then any, and among them as the plugin likes best.
func (q question) choose() (set, error) {
	got := set{}
	take := func(from ...string) bool {
		for _, id := range from {
			if len(got) == q.need {
				break
			}
			got[id] = true
		}
		return len(got) == q.need
	}
	if take(q.reuse.ids()...) {
		return got, nil
	}
	free := q.free.without(got)
	if missing := q.need - len(got); len(free) < missing {
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", q.resource, missing, len(free))
	}
	aligned, others := q.split(free)
	among, first := free, aligned
	if q.need-len(got) < len(aligned) {
		among, first = aligned, nil // the plugin may choose among those that are near
	} else if take(aligned.ids()...) {
		return got, nil
	}
	if q.prefer != nil {
		may := maps.Clone(among)
		maps.Copy(may, got)
		liked, err := q.prefer(may, maps.Clone(got), q.need)
		if err != nil {
			return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
		}
		for _, id := range liked {
			if among[id] && take(id) {
				return got, nil
			}
		}
	}
	if first == nil && take(aligned.ids()...) {
		return got, nil
	}
	if take(others...) {
		return got, nil
	}
	return nil, fmt.Errorf("unexpectedly allocated less resources than required. Requested: %d, Got: %d", q.need, len(got))
}

// split parts devices into those that are near and the rest, those of other NUMA nodes
// before those of none. Without a wish all are of the rest.
func (q question) split(free set) (near set, rest []string) {
	near = set{}
	var far, none []string
	for _, id := range free.ids() {
		nodes := q.devices[id].GetTopology().GetNodes()
		switch {
		case q.near == nil || len(nodes) == 0:
			none = append(none, id)
		case slices.ContainsFunc(nodes, func(n *pluginapi.NUMANode) bool { return q.near[n.ID] }):
			near[id] = true
		default:
			far = append(far, id)
		}
	}
	return near, append(far, none...)
}
