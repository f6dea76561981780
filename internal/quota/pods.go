package quota

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	resourcehelper "k8s.io/component-helpers/resource"
)

const (
	countPods corev1.ResourceName = "count/pods"
	// deviceClass begins the extended resources that stand for device classes.
	deviceClass = "deviceclass.resource.kubernetes.io/"
)

var pods = Measure{Counts: countsPods, Use: podUse, Selects: podScope, Demand: podDemand}

// amounts are the names under which a request and a limit are accounted for.
var amounts = map[corev1.ResourceName]struct{ requests, limits []corev1.ResourceName }{
	corev1.ResourceCPU: {[]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceRequestsCPU},
		[]corev1.ResourceName{corev1.ResourceLimitsCPU}},
	corev1.ResourceMemory: {[]corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceRequestsMemory},
		[]corev1.ResourceName{corev1.ResourceLimitsMemory}},
	corev1.ResourceEphemeralStorage: {[]corev1.ResourceName{corev1.ResourceEphemeralStorage, corev1.ResourceRequestsEphemeralStorage},
		[]corev1.ResourceName{corev1.ResourceLimitsEphemeralStorage}},
}

// demanded are the names that each container must speak of when a quota has
// them. There will never be more: it was a mistake.
var demanded = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory,
}

func countsPods(n corev1.ResourceName) bool {
	if n == countPods || n == corev1.ResourcePods {
		return true
	}
	for _, a := range amounts {
		if slices.Contains(a.requests, n) || slices.Contains(a.limits, n) {
			return true
		}
	}
	if strings.HasPrefix(string(n), corev1.ResourceHugePagesPrefix) {
		return true
	}
	of, ok := strings.CutPrefix(string(n), corev1.DefaultResourceRequestsPrefix)
	return ok && (strings.HasPrefix(of, corev1.ResourceHugePagesPrefix) || !native(n) || strings.HasPrefix(of, deviceClass))
}

// native reports whether Kubernetes itself names the resource.
func native(n corev1.ResourceName) bool {
	return !strings.Contains(string(n), "/") || strings.Contains(string(n), corev1.ResourceDefaultNamespacePrefix)
}

func extended(n corev1.ResourceName) bool {
	return !native(n) && !strings.HasPrefix(string(n), corev1.DefaultResourceRequestsPrefix) || strings.HasPrefix(string(n), deviceClass)
}

// podUse counts a pod always, and what it computes with until it has ended.
func podUse(obj runtime.Object, now time.Time) corev1.ResourceList {
	pod := obj.(*corev1.Pod)
	use := corev1.ResourceList{countPods: count(1)}
	if PodEnded(pod, now) {
		return use
	}
	use[corev1.ResourcePods] = count(1)
	account(use, resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true}),
		resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true}))
	return use
}

// account writes requests and limits into use under a quota's names.
func account(use, requests, limits corev1.ResourceList) {
	for n, q := range requests {
		for _, as := range amounts[n].requests {
			use[as] = q
		}
		huge := strings.HasPrefix(string(n), corev1.ResourceHugePagesPrefix)
		if huge {
			use[n] = q
		}
		if huge || extended(n) {
			use[corev1.DefaultResourceRequestsPrefix+n] = q
		}
	}
	for n, q := range limits {
		for _, as := range amounts[n].limits {
			use[as] = q
		}
	}
}

// PodEnded says that a pod uses nothing any more: it is over, or its time to
// end is.
func PodEnded(pod *corev1.Pod, now time.Time) bool {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	if pod.DeletionTimestamp == nil || pod.DeletionGracePeriodSeconds == nil {
		return false
	}
	return now.After(pod.DeletionTimestamp.Add(time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second))
}

// PodTerminating says that the pod's time is limited.
func PodTerminating(pod *corev1.Pod) bool {
	d := pod.Spec.ActiveDeadlineSeconds
	return d != nil && *d >= 0
}

func podScope(s corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error) {
	pod := obj.(*corev1.Pod)
	withoutRequest := pod.Status.QOSClass == corev1.PodQOSBestEffort
	switch s.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return PodTerminating(pod), nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return !PodTerminating(pod), nil
	case corev1.ResourceQuotaScopeBestEffort:
		return withoutRequest, nil
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !withoutRequest, nil
	case corev1.ResourceQuotaScopePriorityClass:
		if class := pod.Spec.PriorityClassName; class != "" {
			return selects(s, class)
		}
		return selects(s)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return looksElsewhere(pod.Spec.Affinity), nil
	}
	return false, nil
}

// looksElsewhere says that an affinity is about pods of other namespaces.
func looksElsewhere(a *corev1.Affinity) bool {
	if a == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	var weighted []corev1.WeightedPodAffinityTerm
	if p := a.PodAffinity; p != nil {
		terms = append(terms, p.RequiredDuringSchedulingIgnoredDuringExecution...)
		weighted = append(weighted, p.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if p := a.PodAntiAffinity; p != nil {
		terms = append(terms, p.RequiredDuringSchedulingIgnoredDuringExecution...)
		weighted = append(weighted, p.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	for _, w := range weighted {
		terms = append(terms, w.PodAffinityTerm)
	}
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool {
		return len(t.Namespaces) > 0 || t.NamespaceSelector != nil
	})
}

// podDemand wants every container to speak of the cpu and memory required.
func podDemand(required []corev1.ResourceName, obj runtime.Object) error {
	pod := obj.(*corev1.Pod)
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		return nil
	}
	silent := map[corev1.ResourceName][]string{}
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		specified := corev1.ResourceList{}
		account(specified, c.Resources.Requests, c.Resources.Limits)
		for _, n := range required {
			if _, ok := specified[n]; !ok && slices.Contains(demanded, n) {
				silent[n] = append(silent[n], c.Name)
			}
		}
	}
	if len(silent) == 0 {
		return nil
	}
	var parts []string
	for _, n := range slices.Sorted(maps.Keys(silent)) {
		slices.Sort(silent[n])
		parts = append(parts, fmt.Sprintf("%s for: %s", n, strings.Join(silent[n], ",")))
	}
	return fmt.Errorf("must specify %s", strings.Join(parts, "; "))
}
