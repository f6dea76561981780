package deviceplugin

import (
	"errors"
	"strings"
	"testing"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func of(ids string) set {
	out := set{}
	for _, id := range strings.Fields(ids) {
		out[id] = true
	}
	return out
}

func TestChoose(t *testing.T) {
	// a and b are of NUMA node 0, c and d of 1, e of none.
	devices := map[string]*pluginapi.Device{"e": {ID: "e"}}
	for id, n := range map[string]int64{"a": 0, "b": 0, "c": 1, "d": 1} {
		devices[id] = &pluginapi.Device{ID: id, Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: n}}}}
	}
	likes := func(ids string) func(set, set, int) ([]string, error) {
		return func(set, set, int) ([]string, error) { return strings.Fields(ids), nil }
	}
	for _, c := range []struct {
		name, reuse, free string
		need              int
		near              map[int64]bool
		prefer            func(set, set, int) ([]string, error)
		want, wrong       string
	}{
		{name: "any", free: "a b c", need: 2, want: "a b"},
		{name: "again", reuse: "c", free: "a b", need: 2, want: "a c"},
		{name: "only again", reuse: "c d", need: 1, want: "c"},
		{name: "too few", free: "a", need: 2, wrong: "requested number of devices unavailable for r. Requested: 2, Available: 1"},
		{name: "near", free: "a b c d e", need: 2, near: map[int64]bool{1: true}, want: "c d"},
		{name: "near first", free: "a c e", need: 2, near: map[int64]bool{1: true}, want: "a c"},
		{name: "of none last", free: "a c e", need: 3, near: map[int64]bool{1: true}, want: "a c e"},
		{name: "preferred", free: "a b c d", need: 2, prefer: likes("d b"), want: "b d"},
		{name: "preferred among the near", free: "a b c d", need: 1, near: map[int64]bool{1: true}, prefer: likes("a d"), want: "d"},
		{name: "preferred ones that are not free", free: "a b", need: 1, prefer: likes("x y"), want: "a"},
		{name: "preferred too few", free: "a b c", need: 2, prefer: likes("c"), want: "a c"},
		{name: "a plugin that fails", free: "a b", need: 1, prefer: func(set, set, int) ([]string, error) { return nil, errors.New("no") }, wrong: "device plugin GetPreferredAllocation rpc failed with err: no"},
	} {
		got, err := question{resource: "r", need: c.need, reuse: of(c.reuse), free: of(c.free), devices: devices, near: c.near, prefer: c.prefer}.choose()
		if c.wrong != "" {
			if err == nil || err.Error() != c.wrong {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil || strings.Join(got.ids(), " ") != c.want {
			t.Errorf("%s: %v, %v", c.name, got.ids(), err)
		}
	}
}

func TestExtended(t *testing.T) {
	for name, want := range map[string]bool{
		"example.com/gpu": true, "nvidia.com/gpu": true, "cpu": false, "hugepages-2Mi": false, "kubernetes.io/x": false,
		"x.kubernetes.io/y": false, "requests.example.com/gpu": false, "example.com/": false, "exa mple/x": false,
	} {
		if Extended(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}
