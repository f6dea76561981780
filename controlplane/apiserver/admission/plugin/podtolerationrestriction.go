package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// podTolerationRestriction gives pods their namespace's tolerations, and
// refuses those that the namespace may not have.
type podTolerationRestriction struct {
	cache *watchcache.Cache
	podTolerations
}

const (
	defaultTolerations   = "scheduler.alpha.kubernetes.io/defaultTolerations"
	tolerationsWhitelist = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
)

func (*podTolerationRestriction) Name() string { return "PodTolerationRestriction" }

func (p *podTolerationRestriction) Admit(ctx context.Context, a *admission.Attributes) error {
	pod := podWritten(a)
	if pod == nil {
		return nil
	}
	var more []corev1.Toleration
	if a.Operation == admission.Create {
		own, err := p.of(ctx, a, defaultTolerations)
		if err != nil {
			return err
		}
		if own == nil {
			own = p.defaults
		}
		more = slices.Clone(own)
	}
	if qosOf(pod) != corev1.PodQOSBestEffort {
		more = append(more, corev1.Toleration{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	if len(more) > 0 {
		pod.Spec.Tolerations = mergeTolerations(pod.Spec.Tolerations, more)
	}
	return p.Validate(ctx, a)
}

func (p *podTolerationRestriction) Validate(ctx context.Context, a *admission.Attributes) error {
	pod := podWritten(a)
	if pod == nil || len(pod.Spec.Tolerations) == 0 {
		return nil
	}
	list, err := p.of(ctx, a, tolerationsWhitelist)
	if err != nil {
		return err
	}
	scope := "namespace"
	if list == nil {
		list, scope = p.whitelist, "cluster"
	}
	if len(list) == 0 {
		return nil
	}
	for _, t := range pod.Spec.Tolerations {
		if !slices.ContainsFunc(list, func(w corev1.Toleration) bool { return covers(w, t) }) {
			return fmt.Errorf("pod tolerations (possibly merged with namespace default tolerations) conflict with its %s whitelist", scope)
		}
	}
	return nil
}

// of is what an annotation of the namespace says: nil when it is not there, and
// none when it is empty.
func (p *podTolerationRestriction) of(ctx context.Context, a *admission.Attributes, annotation string) ([]corev1.Toleration, error) {
	ns, err := lookup[*corev1.Namespace](ctx, p.cache, corev1.SchemeGroupVersion.WithResource("namespaces"), a.Namespace, a.Namespace)
	if err != nil {
		return nil, err
	}
	text, ok := ns.Annotations[annotation]
	if !ok {
		return nil, nil
	}
	list := []corev1.Toleration{}
	if text == "" {
		return list, nil
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, err
	}
	if list == nil {
		list = []corev1.Toleration{}
	}
	return list, nil
}

func qosOf(pod *corev1.Pod) corev1.PodQOSClass {
	if q := pod.Status.QOSClass; q != "" {
		return q
	}
	return registry.PodQOS(pod)
}

var podTolerationsKind = schema.GroupVersionKind{Group: "podtolerationrestriction.admission.k8s.io", Version: "v1alpha1", Kind: "Configuration"}

func readPodTolerations(s *Settings, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	var config struct {
		metav1.TypeMeta `json:",inline"`
		Default         []corev1.Toleration `json:"default"`
		Whitelist       []corev1.Toleration `json:"whitelist"`
	}
	if err := decode(data, &config, podTolerationsKind); err != nil {
		return err
	}
	root := field.NewPath("podtolerationrestriction")
	errs := append(registry.ValidateTolerations(config.Default, root.Child("default")),
		registry.ValidateTolerations(config.Whitelist, root.Child("whitelist"))...)
	if len(errs) > 0 {
		return fmt.Errorf("invalid config: %v", errs)
	}
	s.podTolerations = podTolerations{config.Default, config.Whitelist}
	return nil
}
