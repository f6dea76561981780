package gateway

import (
	"fmt"
	"testing"
	"time"

	"knarr/internal/references"
)

// A namespace that names more than its share takes nothing from the others, and what is read
// is the same whatever order the wishes come in.
func TestShareNamed(t *testing.T) {
	secret := func(namespace string, i int) references.Object {
		return references.Object{Resource: "secrets", Namespace: namespace, Name: fmt.Sprint("s", i)}
	}
	var all []wish
	for i := range 100 {
		all = append(all, wish{secret("greedy", i), "greedy", time.Unix(int64(i), 0)})
	}
	all = append(all, wish{secret("small", 0), "small", time.Unix(1000, 0)}, wish{secret("greedy", 99), "small", time.Unix(1000, 0)}, wish{secret("late", 0), "late", time.Unix(2000, 0)})
	given, left := shareNamed(all, 12, 10)
	if len(given) != 12 {
		t.Fatalf("%d are read", len(given))
	}
	for i, o := range given[:10] {
		if o != secret("greedy", i) {
			t.Errorf("%v is read in place %d", o, i)
		}
	}
	if given[10] != secret("greedy", 99) || given[11] != secret("small", 0) {
		t.Errorf("%v and %v are read", given[10], given[11])
	}
	if len(left) != 90 || left[secret("greedy", 99)] != "" {
		t.Errorf("%d are left", len(left))
	}
	if got, want := left[secret("greedy", 10)], "older Ingresses and Gateways of namespace greedy name 10 Secrets and ConfigMaps, which is all that are read for one"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := left[secret("late", 0)], "older Ingresses and Gateways name 12 Secrets and ConfigMaps, which is all that are read"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
