package plugin

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/watchcache"
)

// podTopologyLabels copies the zone and region of its node to a pod, once it has
// one. A binding's labels become the pod's.
type podTopologyLabels struct{ cache *watchcache.Cache }

func (*podTopologyLabels) Name() string { return "PodTopologyLabels" }

func (p *podTopologyLabels) Admit(_ context.Context, a *admission.Attributes) error {
	if a.Operation != admission.Create {
		return nil
	}
	switch o := a.Object.(type) {
	case *corev1.Pod:
		if o.Spec.NodeName != "" && is(a, "pods", "") {
			p.tell(&o.ObjectMeta, o.Spec.NodeName)
		}
	case *corev1.Binding:
		if o.Target.Kind == "Node" && is(a, "pods", "binding") {
			p.tell(&o.ObjectMeta, o.Target.Name)
		}
	}
	return nil
}

func (p *podTopologyLabels) tell(meta *metav1.ObjectMeta, name string) {
	node, ok := watchcache.Read[*corev1.Node](p.cache.Resource(corev1.SchemeGroupVersion.WithResource("nodes")), name)
	if !ok { // upstream lets it pass, too
		return
	}
	for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		if value, ok := node.Labels[key]; ok {
			metav1.SetMetaDataLabel(meta, key, value)
		}
	}
}
