package ingress

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// An Ingress at which a compilation fails is left out, alone, and an event says so.
func TestOneFails(t *testing.T) {
	cl := newCluster(t)
	cl.ingress("before", "", "a.example/ Prefix web:80")
	cl.ingress("bad", "", "b.example/ Prefix web:80", "b.example/x Prefix broken:80")
	cl.ingress("after", "", "c.example/ Prefix web:80")
	in := cl.input()
	find := in.Service
	in.Service = func(name types.NamespacedName) *corev1.Service {
		if name.Name == "broken" {
			panic("nobody has thought of this")
		}
		return find(name)
	}
	out := Compile(in)
	if got := len(out.Listeners[0].Routes); got != 2 {
		t.Errorf("%d routes are served", got)
	}
	contains(t, out.faults("bad"), "it is not served: reading it failed: gateway: compile Ingress default/bad: panic: nobody has thought of this")
	if got := out.faults("before") + out.faults("after"); got != "" {
		t.Errorf("the others: %s", got)
	}
}

// An expression that ends a bracket that is not its own is none.
func TestPatternEndsOthersBracket(t *testing.T) {
	cl := newCluster(t)
	cl.ingress("i", "use-regex=true", "a.example/x)|(?:.* Exact web:80", "a.example/good.* Exact web:80")
	out := cl.compile()
	if got := len(out.Listeners[0].Routes[0].Rules); got != 1 {
		t.Errorf("%d rules are served", got)
	}
	contains(t, out.faults("i"), "unexpected )")
}
