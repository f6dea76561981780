package endpoints

import (
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/controlplane/apiserver/registry"
)

// mostFaults are reported for one object: a body of nothing but faults
// has more of them than fit an answer: 3 MB would be 100 MB of them.
const mostFaults = 2000

// invalid is the 422 of an object with faults. The library's maker takes time
// with the square of their text, minutes for an object full of them.
func invalid(kind schema.GroupKind, name string, errs field.ErrorList) error {
	errs = registry.Unversioned(errs)
	if len(errs) <= 100 {
		return apierrors.NewInvalid(kind, name, errs)
	}
	more := max(0, len(errs)-mostFaults)
	errs = errs[:len(errs)-more]
	seen := make(map[string]bool, len(errs))
	causes := make([]metav1.StatusCause, 0, len(errs))
	var all strings.Builder
	for _, e := range errs {
		body := e.ErrorBody()
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseType(e.Type), Message: body, Field: e.Field})
		text := e.Field + ": " + body
		if seen[text] {
			continue
		}
		if len(seen) > 0 {
			all.WriteString(", ")
		}
		seen[text] = true
		all.WriteString(text)
	}
	if more > 0 {
		fmt.Fprintf(&all, ", and %d more", more)
	}
	text := all.String()
	if len(seen) > 1 {
		text = "[" + text + "]"
	}
	refusal := apierrors.NewInvalid(kind, name, nil)
	refusal.ErrStatus.Message += ": " + text
	refusal.ErrStatus.Details.Causes = causes
	return refusal
}
