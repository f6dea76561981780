package framework

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	features "k8s.io/component-helpers/nodedeclaredfeatures"
)

// served is the version whose features pods are taken to need.
var served = version.MajorMinor(1, 36)

// needs are the features that a node must have declared before it gets such a pod.
func needs(spec *corev1.PodSpec) features.FeatureSet {
	// It fails only without a version.
	set, _ := features.DefaultFramework.InferForPodScheduling(&features.PodInfo{Spec: spec}, served)
	return set
}

// needsKey tells pods apart that need different features.
func needsKey(spec *corev1.PodSpec) string {
	if set := needs(spec); !set.IsEmpty() {
		return set.String()
	}
	return ""
}

// declared are those of a node that anybody may need. Features that are not known here
// are nobody's need.
func declared(n *corev1.Node) features.FeatureSet {
	return features.DefaultFramework.TryMap(n.Status.DeclaredFeatures)
}

// Lacks reports whether the node has not declared all that the pod needs.
func (n *Node) Lacks(p *Pod) bool {
	has, err := p.Needs.IsSubset(n.Features)
	return err != nil || !has
}

// HasDeclared reports whether a node that an event tells of has all that the pod needs.
func (p *Pod) HasDeclared(n *corev1.Node) bool {
	has, err := p.Needs.IsSubset(declared(n))
	return err == nil && has
}
