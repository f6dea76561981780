package kubeproxy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Whoever comes in whatever order, the outcome is that of all Services at once,
// each front has one owner, and those whose owner may change are listed.
func TestClaims(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	type member struct {
		created int64
		rules   Rules
	}
	make := func(i int) member {
		svc := service(fmt.Sprint("s", i), fmt.Sprintf("10.43.0.%d", 1+i), corev1.ServicePort{Port: 80, NodePort: int32(30000 + random.IntN(3)), Protocol: corev1.ProtocolTCP})
		for range random.IntN(3) {
			svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, fmt.Sprintf("10.43.0.%d", 1+random.IntN(12)))
		}
		return member{int64(random.IntN(3)), plan(svc, nil, host{name: "n1"})}
	}
	name := func(i int) cache.ObjectName { return cache.NewObjectName(fmt.Sprint("ns", i%2), fmt.Sprint("s", i)) }
	grown, members, applied := newClaims(), map[int]member{}, map[cache.ObjectName]Rules{}
	for range 2000 {
		i := random.IntN(8)
		affected := map[cache.ObjectName]Rules{}
		if random.IntN(3) == 0 {
			delete(members, i)
		} else {
			members[i] = make(i)
		}
		grown.set(name(i), members[i].created, members[i].rules, affected)
		for n := range affected {
			applied[n], _ = grown.rules(n)
		}
		whole := newClaims()
		for j, m := range members {
			whole.set(name(j), m.created, m.rules, map[cache.ObjectName]Rules{})
		}
		owners := map[Front]cache.ObjectName{}
		for j := range members {
			want, _ := whole.rules(name(j))
			if got := applied[name(j)]; !reflect.DeepEqual(got, want) {
				t.Fatalf("%s has\n%v, and would have\n%v", name(j), text(got), text(want))
			}
			for f := range want.Fronts {
				if other, taken := owners[f]; taken {
					t.Fatalf("%v is both %s's and %s's", f, other, name(j))
				}
				owners[f] = name(j)
			}
		}
		for j, m := range members {
			own := Front{netip.MustParseAddr(fmt.Sprintf("10.43.0.%d", 1+j)), Port{corev1.ProtocolTCP, 80}}
			if m.rules.ClusterIPs[own.Addr] && owners[own] != name(j) {
				t.Fatalf("%s has lost its own address to %s", name(j), owners[own])
			}
		}
	}
}
