package apiserver

import (
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// fieldSelector is a review's selector in its raw form, as far as it is
// understood: without a part of it the question is only wider.
func fieldSelector(f *authorizationv1.FieldSelectorAttributes) (raw string, err error) {
	if f == nil {
		return "", nil
	}
	if len(f.Requirements) == 0 {
		if _, err := fields.ParseSelector(f.RawSelector); err != nil {
			return "", err
		}
		return f.RawSelector, nil
	}
	var parts []fields.Selector
	var errs []error
	for _, r := range f.Requirements {
		// What no selector can say cannot be asked of others, either.
		switch _, err := fields.ParseSelector(r.Key + "="); {
		case err != nil:
			errs = append(errs, err)
		case len(r.Values) != 1 || r.Operator != metav1.FieldSelectorOpIn && r.Operator != metav1.FieldSelectorOpNotIn:
			errs = append(errs, fmt.Errorf("field selectors know one value that is, or is not; not %s of %d", r.Operator, len(r.Values)))
		case r.Operator == metav1.FieldSelectorOpIn:
			parts = append(parts, fields.OneTermEqualSelector(r.Key, r.Values[0]))
		default:
			parts = append(parts, fields.OneTermNotEqualSelector(r.Key, r.Values[0]))
		}
	}
	return fields.AndSelectors(parts...).String(), utilerrors.NewAggregate(errs)
}

// operators of labels as selectors have them.
var operators = map[metav1.LabelSelectorOperator]selection.Operator{
	metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
	metav1.LabelSelectorOpExists: selection.Exists, metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
}

// labelSelector is like fieldSelector.
func labelSelector(l *authorizationv1.LabelSelectorAttributes) (raw string, err error) {
	if l == nil {
		return "", nil
	}
	if len(l.Requirements) == 0 {
		if _, err := labels.Parse(l.RawSelector); err != nil {
			return "", err
		}
		return l.RawSelector, nil
	}
	selector := labels.NewSelector()
	var errs []error
	for _, r := range l.Requirements {
		op, ok := operators[r.Operator]
		if !ok {
			errs = append(errs, fmt.Errorf("%q is not a valid label selector operator", r.Operator))
			continue
		}
		req, err := labels.NewRequirement(r.Key, op, r.Values)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		selector = selector.Add(*req)
	}
	return selector.String(), utilerrors.NewAggregate(errs)
}
