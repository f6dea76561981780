package plugin

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	features "k8s.io/component-helpers/nodedeclaredfeatures"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/watchcache"
)

// nodeDeclaredFeatureValidator refuses changes of a pod that its node does not
// say it can make.
type nodeDeclaredFeatureValidator struct{ cache *watchcache.Cache }

func (*nodeDeclaredFeatureValidator) Name() string { return "NodeDeclaredFeatureValidator" }

// served is the version whose features are inferred.
var served = version.MajorMinor(1, 36)

func (p *nodeDeclaredFeatureValidator) Validate(_ context.Context, a *admission.Attributes) error {
	pod, old := changedOnNode(a)
	if pod == nil || old == nil || a.Subresource != "" && a.Subresource != "resize" {
		return nil
	}
	needs, err := features.DefaultFramework.InferForPodUpdate(
		&features.PodInfo{Spec: &old.Spec, Status: &old.Status}, &features.PodInfo{Spec: &pod.Spec, Status: &pod.Status}, served)
	if err != nil {
		return forbidden(a, fmt.Errorf("failed to infer pod capability requirements: %w", err))
	}
	if needs.IsEmpty() {
		return nil
	}
	node, err := nodeOf(p.cache, a, pod)
	if err != nil {
		return err
	}
	match, err := features.DefaultFramework.MatchNode(needs, node)
	switch {
	case err != nil:
		return forbidden(a, fmt.Errorf("failed to match pod requirements against node %q: %w", node.Name, err))
	case !match.IsMatch:
		return forbidden(a, fmt.Errorf("pod update requires features %s which are not available on node %q",
			strings.Join(match.UnsatisfiedRequirements, ", "), node.Name))
	}
	return nil
}
