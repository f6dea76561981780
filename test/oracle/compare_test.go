package oracle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// statements are what an answer says, one line each, in an order of their own.
func (a answer) statements() (out []string) {
	out = append(out, fmt.Sprintf("code %d", a.Code))
	for _, w := range a.Warnings {
		out = append(out, "warning "+w)
	}
	var status metav1.Status
	if a.Code >= 300 && json.Unmarshal(a.Body, &status) == nil && status.Kind == "Status" {
		out = append(out, faults(status)...)
	} else {
		var v any
		if json.Unmarshal(a.Body, &v) == nil {
			sortRules(v)
			out = flatten(out, "", v)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// sortRules gives a review of rules an order: upstream lists bindings in the order
// of a map.
func sortRules(v any) {
	review, _ := v.(map[string]any)
	if review["kind"] != "SelfSubjectRulesReview" {
		return
	}
	status, _ := review["status"].(map[string]any)
	for _, key := range []string{"resourceRules", "nonResourceRules"} {
		rules, _ := status[key].([]any)
		slices.SortFunc(rules, func(a, b any) int { return bytes.Compare(encode(a), encode(b)) })
	}
}

func faults(s metav1.Status) (out []string) {
	out = append(out, "reason "+string(s.Reason))
	message := s.Message
	if s.Details != nil {
		out = append(out, fmt.Sprintf("about %q %q %q", s.Details.Group, s.Details.Kind, s.Details.Name))
		for _, c := range s.Details.Causes {
			out = append(out, fmt.Sprintf("cause %s: %s: %s", c.Field, c.Type, c.Message))
		}
		if s.Reason == metav1.StatusReasonInvalid {
			message, _, _ = strings.Cut(message, " is invalid: ")
		}
	}
	return append(out, "message "+message)
}

func flatten(out []string, at string, v any) []string {
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 {
			return append(out, at+" = {}")
		}
		for k, x := range v {
			out = flatten(out, at+"."+k, x)
		}
	case []any:
		if len(v) == 0 {
			return append(out, at+" = []")
		}
		for i, x := range v {
			out = flatten(out, fmt.Sprintf("%s[%d]", at, i), x)
		}
	default:
		out = append(out, at+" = "+string(encode(v)))
	}
	return out
}

// differences are the statements of one answer alone: upstream's with -, ours with +.
func differences(want, got answer) (out []string) {
	w, g := want.statements(), got.statements()
	for _, s := range w {
		if _, same := slices.BinarySearch(g, s); !same {
			out = append(out, "- "+s)
		}
	}
	for _, s := range g {
		if _, same := slices.BinarySearch(w, s); !same {
			out = append(out, "+ "+s)
		}
	}
	return out
}
