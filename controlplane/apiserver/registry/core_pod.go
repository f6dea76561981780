package registry

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

var pods = &Kind[*corev1.Pod]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod"),
	Plural:           "pods",
	Short:            []string{"po"},
	Categories:       []string{"all"},

	Default:  defaultPod,
	Prepare:  preparePod,
	Pods:     func(o *corev1.Pod) *corev1.PodSpec { return &o.Spec },
	Validate: validatePod,
	Warn: func(_ context.Context, p, old *corev1.Pod) (warnings []string) {
		if old != nil {
			return nil
		}
		if msgs := NameIsDNSLabel(p.Name, false); len(msgs) != 0 {
			warnings = append(warnings, fmt.Sprintf("metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: %v", msgs))
		}
		warnings = append(warnings, warnAppArmor(p)...)
		return append(warnings, warnPodSpec(&p.Spec, &p.ObjectMeta, nil)...)
	},
	Grace: podGrace,

	Fields: func(p *corev1.Pod) fields.Set {
		ip := p.Status.PodIP
		if len(p.Status.PodIPs) > 0 {
			ip = p.Status.PodIPs[0].IP
		}
		return fields.Set{
			"spec.nodeName":            p.Spec.NodeName,
			"spec.restartPolicy":       string(p.Spec.RestartPolicy),
			"spec.schedulerName":       p.Spec.SchedulerName,
			"spec.serviceAccountName":  p.Spec.ServiceAccountName,
			"spec.hostNetwork":         strconv.FormatBool(p.Spec.HostNetwork),
			"status.phase":             string(p.Status.Phase),
			"status.podIP":             ip,
			"status.nominatedNodeName": p.Status.NominatedNodeName,
		}
	},
	Columns: podColumns,
	Sub: []Subresource[*corev1.Pod]{
		{Name: "attach", Kind: corev1.SchemeGroupVersion.WithKind("PodAttachOptions"), Verbs: []string{"create", "get"}},
		{Name: "binding", Kind: corev1.SchemeGroupVersion.WithKind("Binding"), Verbs: []string{"create"}},
		{Name: "ephemeralcontainers", Verbs: partVerbs,
			Prepare: prepareEphemeral, Validate: validateEphemeralUpdate},
		{Name: "eviction", Kind: policyv1.SchemeGroupVersion.WithKind("Eviction"), Verbs: []string{"create"}},
		{Name: "exec", Kind: corev1.SchemeGroupVersion.WithKind("PodExecOptions"), Verbs: []string{"create", "get"}},
		action[*corev1.Pod]("log", "get"),
		{Name: "portforward", Kind: corev1.SchemeGroupVersion.WithKind("PodPortForwardOptions"), Verbs: []string{"create", "get"}},
		{Name: "proxy", Kind: corev1.SchemeGroupVersion.WithKind("PodProxyOptions"),
			Verbs: []string{"create", "delete", "get", "patch", "update"}},
		{Name: "resize", Verbs: partVerbs, Prepare: prepareResize, Validate: validateResize},
		statusOf(keepForPodStatus, validatePodStatusUpdate),
	},
}

// podGrace is how long a pod may take to end: no time when no kubelet has it
// or it has ended already. Negative means at once, but not forced.
func podGrace(p *corev1.Pod, opts *metav1.DeleteOptions) int64 {
	period := deref(p.Spec.TerminationGracePeriodSeconds, 0)
	if opts != nil && opts.GracePeriodSeconds != nil {
		period = *opts.GracePeriodSeconds
	}
	switch {
	case p.Spec.NodeName == "", p.Status.Phase == corev1.PodFailed, p.Status.Phase == corev1.PodSucceeded:
		return 0
	case period < 0:
		return 1
	}
	return period
}
