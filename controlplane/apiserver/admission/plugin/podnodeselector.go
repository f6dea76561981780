package plugin

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/watchcache"
)

// podNodeSelector holds the pods of a namespace to the nodes that the namespace
// is for.
type podNodeSelector struct {
	cache *watchcache.Cache
	// selectors are by namespace which labels its pods may select nodes by, and
	// what namespaces have that do not say.
	selectors map[string]string
}

const (
	selectorAnnotation = "scheduler.alpha.kubernetes.io/node-selector"
	defaultSelector    = "clusterDefaultNodeSelector"
)

func (*podNodeSelector) Name() string { return "PodNodeSelector" }

func (p *podNodeSelector) Admit(ctx context.Context, a *admission.Attributes) error {
	pod := podWritten(a)
	if pod == nil || a.Operation != admission.Create {
		return nil
	}
	selector, err := p.of(ctx, a, pod)
	if err != nil {
		return err
	}
	pod.Spec.NodeSelector = labels.Merge(selector, pod.Spec.NodeSelector)
	return p.allowed(a, pod)
}

func (p *podNodeSelector) Validate(ctx context.Context, a *admission.Attributes) error {
	pod := podWritten(a)
	if pod == nil || a.Operation != admission.Create {
		return nil
	}
	if _, err := p.of(ctx, a, pod); err != nil {
		return err
	}
	return p.allowed(a, pod)
}

// of is the namespace's selector, which the pod's may not contradict.
func (p *podNodeSelector) of(ctx context.Context, a *admission.Attributes, pod *corev1.Pod) (labels.Set, error) {
	ns, err := lookup[*corev1.Namespace](ctx, p.cache, corev1.SchemeGroupVersion.WithResource("namespaces"), a.Namespace, a.Namespace)
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewInternalError(fmt.Errorf("namespace %s does not exist", a.Namespace))
	}
	if err != nil {
		return nil, err
	}
	text, ok := ns.Annotations[selectorAnnotation]
	if !ok {
		text = p.selectors[defaultSelector]
	}
	selector, err := labels.ConvertSelectorToLabelsMap(text)
	if err != nil {
		return nil, err
	}
	if labels.Conflicts(selector, pod.Spec.NodeSelector) {
		return nil, apierrors.NewForbidden(a.Resource.GroupResource(), pod.Name, errors.New("pod node label selector conflicts with its namespace node label selector"))
	}
	return selector, nil
}

// allowed refuses selectors outside the namespace's list, if it has one.
func (p *podNodeSelector) allowed(a *admission.Attributes, pod *corev1.Pod) error {
	list, err := labels.ConvertSelectorToLabelsMap(p.selectors[a.Namespace])
	if err != nil || len(list) == 0 {
		return err
	}
	for key, value := range pod.Spec.NodeSelector {
		if have, ok := list[key]; !ok || have != value {
			return apierrors.NewForbidden(a.Resource.GroupResource(), pod.Name, errors.New("pod node label selector labels conflict with its namespace whitelist"))
		}
	}
	return nil
}

func readPodNodeSelectors(s *Settings, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	data, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return err
	}
	const name = "podNodeSelectorPluginConfig"
	var config struct {
		Selectors map[string]string `json:"podNodeSelectorPluginConfig"`
	}
	if err := decodeStrict(data, &config); err != nil {
		return fmt.Errorf("write %s: and under it NAMESPACE: key=value: %w", name, err)
	}
	for key, text := range config.Selectors {
		if _, err := labels.ConvertSelectorToLabelsMap(text); err != nil {
			return field.Invalid(field.NewPath(name).Key(key), text, err.Error())
		}
	}
	s.podNodeSelectors = config.Selectors
	return nil
}
