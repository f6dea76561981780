package endpoints

import (
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestInvalidIsTheLibrarys: many faults are told as few are.
func TestInvalidIsTheLibrarys(t *testing.T) {
	kind := schema.GroupKind{Group: "g", Kind: "K"}
	different := func(n, of int) (errs field.ErrorList) {
		for i := range n {
			errs = append(errs, field.Invalid(field.NewPath("a").Index(i%of), i%of, "is wrong"), field.Required(field.NewPath("b").Index(i%of), ""))
		}
		return errs
	}
	for name, errs := range map[string]field.ErrorList{
		"none": nil, "few": different(3, 3), "many": different(200, 200), "twice": different(200, 10),
		"one": sameFault(150),
	} {
		if got, want := invalid(kind, "n", errs), apierrors.NewInvalid(kind, "n", errs); !reflect.DeepEqual(got, error(want)) {
			t.Errorf("%s: %v\nwant %v", name, got, want)
		}
	}
}

func sameFault(n int) (errs field.ErrorList) {
	for range n {
		errs = append(errs, field.Forbidden(field.NewPath("a"), "no"))
	}
	return errs
}

// TestInvalidIsBounded: an object of nothing but faults is told of the first.
func TestInvalidIsBounded(t *testing.T) {
	err := invalid(schema.GroupKind{Kind: "K"}, "n", append(sameFault(1), required(50_000)...)).(*apierrors.StatusError)
	if n := len(err.ErrStatus.Details.Causes); n != mostFaults {
		t.Errorf("%d causes", n)
	}
	if !strings.HasSuffix(err.ErrStatus.Message, ", and 48001 more]") {
		t.Errorf("message ends with %q", err.ErrStatus.Message[len(err.ErrStatus.Message)-40:])
	}
}

func required(n int) (errs field.ErrorList) {
	for i := range n {
		errs = append(errs, field.Required(field.NewPath("a").Index(i), ""))
	}
	return errs
}
