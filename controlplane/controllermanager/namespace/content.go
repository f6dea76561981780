package namespace

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// content is what was found of each resource after deleting it.
type content map[schema.GroupVersionResource]one

// one is what stays of one resource.
type one struct {
	remaining  int
	finalizers map[string]int
	grace      int64 // seconds the slowest object may take
	err        error
}

func (c content) remain() bool {
	for _, o := range c {
		if o.remaining > 0 {
			return true
		}
	}
	return false
}

func (c content) err() error {
	errs := make([]error, 0, len(c))
	for _, o := range c {
		errs = append(errs, o.err)
	}
	return errors.Join(errs...)
}

// wait is how long to wait before looking again: half the grace of pods, and
// for finalizers, whose removal brings no event, the longer the longer it takes.
func (c content) wait(deleted, now time.Time) time.Duration {
	var grace time.Duration
	for _, o := range c {
		if len(o.finalizers) > 0 {
			return min(max(now.Sub(deleted)/8, 100*time.Millisecond), 15*time.Second)
		}
		grace = max(grace, time.Duration(o.grace)*time.Second)
	}
	return grace/2 + time.Second
}

// okay is what each condition says when nothing is wrong, in order.
var okay = []corev1.NamespaceCondition{
	{Type: corev1.NamespaceDeletionDiscoveryFailure, Reason: "ResourcesDiscovered", Message: "All resources successfully discovered"},
	{Type: corev1.NamespaceDeletionGVParsingFailure, Reason: "ParsedGroupVersions", Message: "All legacy kube types successfully parsed"},
	{Type: corev1.NamespaceDeletionContentFailure, Reason: "ContentDeleted", Message: "All content successfully deleted, may be waiting on finalization"},
	{Type: corev1.NamespaceContentRemaining, Reason: "ContentRemoved", Message: "All content successfully removed"},
	{Type: corev1.NamespaceFinalizersRemaining, Reason: "ContentHasNoFinalizers", Message: "All content-preserving finalizers finished"},
}

// conditions are those the namespace should have.
func (c content) conditions(discoverErr error, now time.Time) []corev1.NamespaceCondition {
	out := slices.Clone(okay)
	at := metav1.NewTime(now)
	for i := range out {
		out[i].Status, out[i].LastTransitionTime = corev1.ConditionFalse, at
	}
	set := func(i int, reason, message string) {
		out[i].Status, out[i].Reason, out[i].Message = corev1.ConditionTrue, reason, message
	}
	if discoverErr != nil {
		message := discoverErr.Error()
		var groups *discovery.ErrGroupDiscoveryFailed
		if errors.As(discoverErr, &groups) {
			message = fmt.Sprintf("Discovery failed for some groups, %d failing: %v", len(groups.Groups), discoverErr)
		}
		set(0, "DiscoveryFailed", message)
	}
	var failed, remaining, waiting []string
	finalizers := map[string]int{}
	for res, o := range c {
		if o.err != nil {
			failed = append(failed, o.err.Error())
		}
		if o.remaining > 0 {
			remaining = append(remaining, fmt.Sprintf("%s.%s has %d resource instances", res.Resource, res.Group, o.remaining))
		}
		for f, n := range o.finalizers {
			finalizers[f] += n
		}
	}
	for f, n := range finalizers {
		waiting = append(waiting, fmt.Sprintf("%s in %d resource instances", f, n))
	}
	for _, list := range [][]string{failed, remaining, waiting} {
		slices.Sort(list)
	}
	if len(failed) > 0 {
		set(2, "ContentDeletionFailed", fmt.Sprintf("Failed to delete all resource types, %d remaining: %v", len(failed), strings.Join(failed, ", ")))
	}
	if len(remaining) > 0 {
		set(3, "SomeResourcesRemain", "Some resources are remaining: "+strings.Join(remaining, ", "))
	}
	if len(waiting) > 0 {
		set(4, "SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: "+strings.Join(waiting, ", "))
	}
	return out
}

// withConditions is ns with the conditions wanted, and whether that differs.
func withConditions(ns *corev1.Namespace, want []corev1.NamespaceCondition) (*corev1.Namespace, bool) {
	next, changed := ns.DeepCopy(), false
	for _, w := range want {
		i := slices.IndexFunc(next.Status.Conditions, func(c corev1.NamespaceCondition) bool { return c.Type == w.Type })
		if i < 0 {
			next.Status.Conditions, changed = append(next.Status.Conditions, w), true
			continue
		}
		have := &next.Status.Conditions[i]
		if have.Status == w.Status {
			w.LastTransitionTime = have.LastTransitionTime
		}
		if have.Status != w.Status || have.Reason != w.Reason || have.Message != w.Message {
			*have, changed = w, true
		}
	}
	return next, changed
}
