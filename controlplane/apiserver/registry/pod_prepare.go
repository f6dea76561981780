package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/features"
)

func preparePod(_ context.Context, p, old *corev1.Pod) {
	if old != nil {
		p.Status = old.Status
		nextPodGeneration(p, old)
		return
	}
	p.Generation = 1
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: PodQOS(p)}
	if len(p.Spec.SchedulingGates) > 0 {
		p.Status.Conditions = []corev1.PodCondition{{
			Type:               corev1.PodScheduled,
			Status:             corev1.ConditionFalse,
			Reason:             corev1.PodReasonSchedulingGated,
			Message:            "Scheduling is blocked due to non-empty scheduling gates",
			LastTransitionTime: metav1.Now(),
		}}
	}
	mergeLabelKeys(p)
	appArmorFromAnnotations(p)
}

func nextPodGeneration(p, old *corev1.Pod) {
	p.Generation = old.Generation
	if !same(p.Spec, old.Spec) {
		p.Generation++
	}
}

// dropPodFeatures forgets what is off, after it was noted who set it. Sources of volumes
// stay where there were some before.
func dropPodFeatures(ctx context.Context, s, old *corev1.PodSpec) {
	s.SchedulingGroup = nil
	bundles, certificates := features.On(ctx, features.TrustBundleVolumes), features.On(ctx, features.PodCertificates)
	eachProjection(old, func(p *corev1.VolumeProjection) {
		bundles = bundles || p.ClusterTrustBundle != nil
		certificates = certificates || p.PodCertificate != nil
	})
	eachProjection(s, func(p *corev1.VolumeProjection) {
		if !bundles {
			p.ClusterTrustBundle = nil
		}
		if !certificates {
			p.PodCertificate = nil
		}
	})
	eachContainer(s, nil, func(c *corev1.Container, _ place) {
		if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
			return
		}
		c.Lifecycle.StopSignal = nil
		if *c.Lifecycle == (corev1.Lifecycle{}) {
			c.Lifecycle = nil
		}
	})
}

func eachProjection(s *corev1.PodSpec, visit func(*corev1.VolumeProjection)) {
	if s == nil {
		return
	}
	for i := range s.Volumes {
		if p := s.Volumes[i].Projected; p != nil {
			for j := range p.Sources {
				visit(&p.Sources[j])
			}
		}
	}
}

// mergeLabelKeys adds the values the pod has for matchLabelKeys and
// mismatchLabelKeys to the selectors they belong to.
func mergeLabelKeys(p *corev1.Pod) {
	add := func(s *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator) {
		if s == nil { // selects nothing, whatever is added
			return
		}
		for _, key := range keys {
			if value, ok := p.Labels[key]; ok {
				s.MatchExpressions = append(s.MatchExpressions,
					metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: []string{value}})
			}
		}
	}
	term := func(t *corev1.PodAffinityTerm) {
		add(t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
		add(t.LabelSelector, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	}
	terms := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for i := range preferred {
			term(&preferred[i].PodAffinityTerm)
		}
		for i := range required {
			term(&required[i])
		}
	}
	if a := p.Spec.Affinity; a != nil {
		if a.PodAffinity != nil {
			terms(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if a.PodAntiAffinity != nil {
			terms(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
	for i := range p.Spec.TopologySpreadConstraints {
		c := &p.Spec.TopologySpreadConstraints[i]
		add(c.LabelSelector, c.MatchLabelKeys, metav1.LabelSelectorOpIn)
	}
}

// PodQOS is the quality of service the pod's cpu and memory ask for.
func PodQOS(p *corev1.Pod) corev1.PodQOSClass {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	guaranteed := true
	add := func(sum, list corev1.ResourceList) (n int) {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if q, ok := list[name]; ok && q.Sign() == 1 {
				q.Add(sum[name])
				sum[name] = q
				n++
			}
		}
		return n
	}
	if r := p.Spec.Resources; r != nil {
		add(requests, r.Requests)
		guaranteed = len(r.Limits) == 0 || add(limits, r.Limits) == 2
	} else {
		for _, cs := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
			for i := range cs {
				add(requests, cs[i].Resources.Requests)
				guaranteed = add(limits, cs[i].Resources.Limits) == 2 && guaranteed
			}
		}
	}
	if len(requests) == 0 && len(limits) == 0 {
		return corev1.PodQOSBestEffort
	}
	if !guaranteed || len(requests) != len(limits) {
		return corev1.PodQOSBurstable
	}
	for name, q := range requests {
		if limit, ok := limits[name]; !ok || limit.Cmp(q) != 0 {
			return corev1.PodQOSBurstable
		}
	}
	return corev1.PodQOSGuaranteed
}

// keepForPodStatus leaves a status write the status alone.
func keepForPodStatus(p, old *corev1.Pod) {
	p.Spec = old.Spec
	p.Status.NodeAllocatableResourceClaimStatuses = nil // off by default upstream, as are images' digests
	for _, all := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for i := range all {
			for j := range all[i].VolumeMounts {
				all[i].VolumeMounts[j].VolumeStatus = nil
			}
		}
	}
	p.DeletionTimestamp = nil
	p.OwnerReferences = old.OwnerReferences
	if p.Status.QOSClass == "" {
		p.Status.QOSClass = old.Status.QOSClass
	}
	// writers that know nothing of observedGeneration must not erase it
	if p.Status.ObservedGeneration == 0 {
		p.Status.ObservedGeneration = old.Status.ObservedGeneration
	}
	before := map[corev1.PodConditionType][]int64{}
	for _, c := range old.Status.Conditions {
		before[c.Type] = append(before[c.Type], c.ObservedGeneration)
	}
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		if g := before[c.Type]; len(g) > 0 {
			before[c.Type] = g[1:]
			if c.ObservedGeneration == 0 {
				c.ObservedGeneration = g[0]
			}
		}
	}
}

func prepareEphemeral(_ context.Context, p, old *corev1.Pod) {
	ephemeral := p.Spec.EphemeralContainers
	p.Spec, p.Status = *old.Spec.DeepCopy(), old.Status
	metav1.ResetObjectMetaForStatus(&p.ObjectMeta, &old.ObjectMeta)
	p.Spec.EphemeralContainers = ephemeral
	nextPodGeneration(p, old)
}

// prepareResize keeps all but resources and resize policies. Containers that
// are not those of the old pod are left for validation to refuse.
func prepareResize(_ context.Context, p, old *corev1.Pod) {
	if len(p.Spec.Containers) != len(old.Spec.Containers) || len(p.Spec.InitContainers) != len(old.Spec.InitContainers) {
		nextPodGeneration(p, old)
		return
	}
	resized := func(now, before []corev1.Container) []corev1.Container {
		for i := range now {
			if now[i].Name != before[i].Name {
				return now
			}
		}
		out := make([]corev1.Container, len(before))
		for i := range before {
			out[i] = *before[i].DeepCopy()
			out[i].Resources, out[i].ResizePolicy = now[i].Resources, now[i].ResizePolicy
		}
		return out
	}
	containers := resized(p.Spec.Containers, old.Spec.Containers)
	inits := resized(p.Spec.InitContainers, old.Spec.InitContainers)
	resources := p.Spec.Resources
	p.Spec, p.Status = *old.Spec.DeepCopy(), old.Status
	metav1.ResetObjectMetaForStatus(&p.ObjectMeta, &old.ObjectMeta)
	p.Spec.Containers, p.Spec.Resources = containers, resources
	if len(inits) > 0 {
		p.Spec.InitContainers = inits
	}
	nextPodGeneration(p, old)
}
