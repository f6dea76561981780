package gateway

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"knarr/addons/gateway/gatewayapi"
)

// A port keeps its number, and no two have the same. What a namespace asks for beyond its
// share, and what the youngest Gateway asks for when there is nothing left, gets none.
func TestAllocate(t *testing.T) {
	want, since := map[types.NamespacedName][]gatewayapi.Port{}, map[types.NamespacedName]time.Time{}
	add := func(namespace string, gateways int) {
		for i := range gateways {
			name := types.NamespacedName{Namespace: namespace, Name: fmt.Sprint("g", i)}
			want[name] = []gatewayapi.Port{{Number: 80}, {Number: 443}, {Number: 53, UDP: true}}
			since[name] = time.Unix(int64(i), 0)
		}
	}
	of := func(namespace, name string) gatewayapi.GatewayPort {
		return gatewayapi.GatewayPort{Gateway: types.NamespacedName{Namespace: namespace, Name: name}, Port: gatewayapi.Port{Number: 80}}
	}
	age := func(g types.NamespacedName) time.Time { return since[g] }
	add("a", 400)
	kept, foreign := of("a", "g7"), of("a", "g8")
	got, left := allocate(want, map[gatewayapi.GatewayPort]int32{kept: 24321, foreign: 22}, age)
	if got[kept] != 24321 || got[foreign] == 22 {
		t.Errorf("kept %d, foreign %d", got[kept], got[foreign])
	}
	if len(got) != portsEach || len(left) != 3*400-portsEach {
		t.Errorf("%d ports are given to a namespace, %d are left", len(got), len(left))
	}
	if _, ok := got[of("a", "g0")]; !ok || left[of("a", "g399")] != "the Gateways of namespace a have 250 ports, which is all that one may have" {
		t.Errorf("the oldest one has a port: %v; the youngest one: %q", ok, left[of("a", "g399")])
	}
	for _, namespace := range []string{"b", "c", "d"} {
		add(namespace, 83)
	}
	add("e", 2)
	got, left = allocate(want, got, age)
	if len(got) != lastPort-firstPort+1 {
		t.Errorf("%d of %d ports are given", len(got), lastPort-firstPort+1)
	}
	if why := left[of("d", "g82")]; why != "the Gateways of the cluster have 1000 ports, which is all that there are" {
		t.Errorf("the youngest one: %q", why)
	}
	seen := map[int32]gatewayapi.GatewayPort{}
	for key, n := range got {
		if other, twice := seen[n]; twice || n < firstPort || n > lastPort {
			t.Errorf("%v and %v have %d", key, other, n)
		}
		seen[n] = key
	}
	again, _ := allocate(want, got, age)
	if !maps.Equal(again, got) {
		t.Error("ports have not kept their numbers")
	}
}

func TestOutdated(t *testing.T) {
	of := func(v, channel string) map[string]string {
		return map[string]string{bundleVersion: v, bundleChannel: channel}
	}
	want := of("v1.6.3", standardChannel)
	for _, c := range []struct {
		have map[string]string
		is   bool
	}{
		{of("v1.6.2", standardChannel), true}, {of("v1.0.0", standardChannel), true}, {of("v1.6.3", standardChannel), false}, {of("v1.7.0", standardChannel), false},
		{of("v1.0.0", "experimental"), false}, {of("what", standardChannel), false}, {nil, false},
	} {
		if got := outdated(c.have, want); got != c.is {
			t.Errorf("%v: %v", c.have, got)
		}
	}
}
