package criconfig

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/expansion"
	"knarr/node/kubelet/podtest"
)

func TestEnvironmentOrder(t *testing.T) {
	p := podtest.Pod("p", "c")
	c := &p.Spec.Containers[0]
	c.Env = []corev1.EnvVar{{Name: "B", Value: "$(A)1"}, {Name: "A", Value: "a"}, {Name: "C", Value: "$(A)$(S)"}, {Name: "S", Value: "mine"}}
	left := expansion.Container
	got, err := environment(p, c, []variable{{"S", "svc"}, {"T", "t"}}, nil, &Downward{pod: p}, &left)
	if err != nil {
		t.Fatal(err)
	}
	if want := []variable{{"B", "$(A)1"}, {"A", "a"}, {"C", "asvc"}, {"S", "mine"}, {"T", "t"}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
