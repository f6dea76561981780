package gateway

import (
	"fmt"
	"slices"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/ingress"
	"knarr/addons/gateway/route"
)

// A host is the namespace's whose object asked for its certificate first; challenges of
// nobody else's are answered.
func TestJudgeOrders(t *testing.T) {
	at := func(namespace string, age int) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: "o", CreationTimestamp: metav1.NewTime(time.Unix(int64(age), 0))}
	}
	order := func(o ingress.Owner, hosts ...string) ingress.Order {
		return ingress.Order{Secret: types.NamespacedName{Namespace: o.GetNamespace(), Name: "tls"}, Owner: o, Hosts: hosts}
	}
	young, old := &gw.Gateway{ObjectMeta: at("a", 3)}, &gw.Gateway{ObjectMeta: at("b", 1)}
	ing := &networkingv1.Ingress{ObjectMeta: at("c", 2)}
	shared := []string{"of-ingress", "of-old"}
	listeners := []route.Listener{{Name: "ingress", ChallengeHosts: shared}, {Name: "young", ChallengeHosts: []string{"of-ingress", "of-old", "of-young"}}, {Name: "old", ChallengeHosts: []string{"of-old"}}}
	orders := judgeOrders([]ingress.Order{order(young, "of-ingress", "of-old", "of-young"), order(ing, shared...), order(old, "of-old")}, listeners, map[string]*gw.Gateway{"young": young, "old": old})
	var got []string
	for _, o := range orders {
		got = append(got, fmt.Sprintf("%s %s %d", o.Secret.Namespace, o.Hosts, len(o.Faults)))
	}
	if want := []string{"b [of-old] 0", "c [of-ingress] 1", "a [of-young] 2"}; !slices.Equal(got, want) {
		t.Errorf("orders %q, want %q", got, want)
	}
	for i, want := range [][]string{{"of-ingress"}, {"of-young"}, {"of-old"}} {
		if got := listeners[i].ChallengeHosts; !slices.Equal(got, want) {
			t.Errorf("listener %s answers challenges for %q, want %q", listeners[i].Name, got, want)
		}
	}
	if shared[1] != "of-old" {
		t.Error("what another compilation has made was changed")
	}
}
