package plugins

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/scheduler/framework"
)

// VolumeZone keeps pods to the zones and regions that their volumes' labels
// name.
type VolumeZone struct {
	Volumes

	want []zoneLabel
}

type zoneLabel struct {
	key    string
	values []string
}

var (
	_ framework.PreFilter = (*VolumeZone)(nil)
	_ framework.Filter    = (*VolumeZone)(nil)
)

var otherZone = framework.Refuse(framework.Unresolvable, "VolumeZone", "node(s) had no available volume zone")

// stableZoneLabel gives, for every label that tells a place, its present name.
var stableZoneLabel = map[string]string{
	corev1.LabelTopologyZone: corev1.LabelTopologyZone, corev1.LabelTopologyRegion: corev1.LabelTopologyRegion,
	corev1.LabelFailureDomainBetaZone: corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
}

// Name is the plugin's.
func (*VolumeZone) Name() string { return "VolumeZone" }

// Hint is a change of storage or nodes.
func (*VolumeZone) Hint(e *framework.Event, p *framework.Pod) bool { return aboutClaims(e, p) }

// PreFilter collects the labels of bound volumes. Claims it cannot follow are
// VolumeBinding's concern.
func (z *VolumeZone) PreFilter(p *framework.Pod) (bool, *framework.Status) {
	z.want = z.want[:0]
	for _, name := range p.Claims {
		c := z.Claim(p.Shape.Namespace, name)
		if c == nil || c.Spec.VolumeName == "" {
			continue
		}
		pv := z.Volume(c.Spec.VolumeName)
		if pv == nil {
			continue
		}
		for key := range stableZoneLabel {
			if v, ok := pv.Labels[key]; ok {
				z.want = append(z.want, zoneLabel{key, strings.Split(v, "__")})
			}
		}
	}
	return len(z.want) == 0, nil
}

// Filter compares labels, on nodes that have any of them.
func (z *VolumeZone) Filter(_ *framework.Pod, n *framework.Node) *framework.Status {
	somewhere := false
	for key := range stableZoneLabel {
		if _, ok := n.Object.Labels[key]; ok {
			somewhere = true
		}
	}
	if !somewhere {
		return nil
	}
	for _, w := range z.want {
		v, ok := n.Object.Labels[w.key]
		if !ok {
			v, ok = n.Object.Labels[stableZoneLabel[w.key]]
		}
		if !ok || !slices.Contains(w.values, v) {
			return otherZone
		}
	}
	return nil
}
