package gateway

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"knarr/addons/gateway/gatewayapi"
)

// A port keeps its number, and no two have the same.
func TestAllocate(t *testing.T) {
	want := map[types.NamespacedName][]gatewayapi.Port{}
	for i := range 400 {
		want[types.NamespacedName{Namespace: "a", Name: fmt.Sprint("g", i)}] = []gatewayapi.Port{{Number: 80}, {Number: 443}, {Number: 53, UDP: true}}
	}
	kept := portKey{types.NamespacedName{Namespace: "a", Name: "g7"}, gatewayapi.Port{Number: 80}}
	foreign := portKey{types.NamespacedName{Namespace: "a", Name: "g8"}, gatewayapi.Port{Number: 80}}
	got := allocate(want, map[portKey]int32{kept: 24321, foreign: 22})
	if got[kept] != 24321 || got[foreign] == 22 {
		t.Errorf("kept %d, foreign %d", got[kept], got[foreign])
	}
	if len(got) != lastPort-firstPort+1 {
		t.Errorf("%d of %d ports are given", len(got), lastPort-firstPort+1)
	}
	seen := map[int32]portKey{}
	for key, n := range got {
		if other, twice := seen[n]; twice || n < firstPort || n > lastPort {
			t.Errorf("%v and %v have %d", key, other, n)
		}
		seen[n] = key
	}
	again := allocate(want, got)
	for key, n := range got {
		if again[key] != n {
			t.Fatalf("%v had %d and has %d", key, n, again[key])
		}
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
