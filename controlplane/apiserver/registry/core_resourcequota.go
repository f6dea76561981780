package registry

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

var resourceQuotas = &Kind[*corev1.ResourceQuota]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ResourceQuota"),
	Plural:           "resourcequotas",
	Short:            []string{"quota"},

	Default: func(q *corev1.ResourceQuota) {
		roundUp(q.Spec.Hard)
		roundUp(q.Status.Hard)
		roundUp(q.Status.Used)
	},
	Prepare: spec(
		func(q *corev1.ResourceQuota) { q.Status = corev1.ResourceQuotaStatus{} },
		func(q, old *corev1.ResourceQuota) { q.Status = old.Status }, nil),
	Validate: validateResourceQuota,
	Warn: func(_ context.Context, q, old *corev1.ResourceQuota) (warnings []string) {
		if old != nil {
			return nil
		}
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
			from, to := "requests."+name, "limits."+name
			request, ok := q.Spec.Hard[from]
			if !ok && name != corev1.ResourceEphemeralStorage {
				if request, ok = q.Spec.Hard[name]; ok {
					from = name
				}
			}
			limit, limited := q.Spec.Hard[to]
			if ok && limited && request.Cmp(limit) > 0 {
				warnings = append(warnings, fmt.Sprintf("ResourceQuota %s (%s) should be less than %s (%s)",
					from, request.String(), to, limit.String()))
			}
		}
		return warnings
	},
	Columns: []Column[*corev1.ResourceQuota]{
		nameColumn[*corev1.ResourceQuota](),
		column("Request", "string", "Request represents a minimum amount of cpu/memory that a container may consume.", 0,
			func(q *corev1.ResourceQuota) any { return quotaUse(q, false) }),
		column("Limit", "string", "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node.", 0,
			func(q *corev1.ResourceQuota) any { return quotaUse(q, true) }),
		ageColumn[*corev1.ResourceQuota](),
	},
	Sub: []Subresource[*corev1.ResourceQuota]{
		statusOf(func(q, old *corev1.ResourceQuota) { q.Spec = old.Spec }, validateResourceQuotaStatus),
	},
}

// quotaUse writes used and hard amounts, of the limits or of all else.
func quotaUse(q *corev1.ResourceQuota, limits bool) string {
	var all []string
	for _, name := range sortedResources(q.Status.Hard) {
		if strings.HasPrefix(string(name), "limits.") != limits {
			continue
		}
		used, hard := q.Status.Used[name], q.Status.Hard[name]
		all = append(all, fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String()))
	}
	return strings.Join(all, ", ")
}
