package ownership

import (
	"reflect"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// TestPointerThatIsNil: a pointer that is nil is compared as what it is. What lies
// beside it in memory is no struct of the type it would point to, and comparing it
// as one reads whatever is there, past the object's end too, which the race
// detector's build notices. JSON has this field even when it is nil.
func TestPointerThatIsNil(t *testing.T) {
	at := func(ref *authenticationv1.BoundObjectReference) reflect.Value {
		two := new([2]authenticationv1.TokenRequest) // all zero behind the first
		two[0].Spec.BoundObjectRef = ref
		return reflect.ValueOf(&two[0]).Elem()
	}
	some := &authenticationv1.BoundObjectReference{}
	for name, one := range map[string]struct {
		old, now *authenticationv1.BoundObjectReference
		differ   bool
	}{
		"set":     {nil, some, true},
		"unset":   {some, nil, true},
		"neither": {nil, nil, false},
	} {
		c := compare(at(one.old), at(one.now))
		if differ := !c.changed.Empty() || !c.removed.Empty(); differ != one.differ {
			t.Errorf("%s: a difference: %t, want %t", name, differ, one.differ)
		}
		c.free()
	}
}
