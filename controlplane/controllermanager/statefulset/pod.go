package statefulset

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/controllermanager/pods"
)

const (
	podNameLabel  = "statefulset.kubernetes.io/pod-name"
	podIndexLabel = "apps.kubernetes.io/pod-index"
)

// pod is the one of an ordinal.
func (v *view) pod(template *corev1.PodTemplateSpec, revision string, n int) *corev1.Pod {
	p := pods.FromTemplate(template, v.set, metav1.NewControllerRef(v.set, kind))
	p.GenerateName, p.Name = "", fmt.Sprintf("%s-%d", v.set.Name, n)
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Labels[podNameLabel], p.Labels[podIndexLabel] = p.Name, strconv.Itoa(n)
	p.Labels[appsv1.StatefulSetRevisionLabel] = revision
	p.Spec.Hostname, p.Spec.Subdomain = p.Name, v.set.Spec.ServiceName
	for _, claim := range v.claims(n) {
		volume := corev1.Volume{Name: claim.template, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}}}
		p.Spec.Volumes = append(slices.DeleteFunc(p.Spec.Volumes, func(have corev1.Volume) bool { return have.Name == claim.template }), volume)
	}
	return p
}

// A claim is a claim with the name of its template.
type claim struct {
	*corev1.PersistentVolumeClaim
	template string
}

// claims are those of an ordinal.
func (v *view) claims(n int) (out []claim) {
	for i := range v.set.Spec.VolumeClaimTemplates {
		template := &v.set.Spec.VolumeClaimTemplates[i]
		c := template.DeepCopy()
		c.Name, c.Namespace = fmt.Sprintf("%s-%s-%d", template.Name, v.set.Name, n), v.set.Namespace
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		maps.Copy(c.Labels, v.set.Spec.Selector.MatchLabels)
		if deleted, _ := v.retention(); deleted {
			c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(v.set, kind)}
		}
		out = append(out, claim{c, template.Name})
	}
	return out
}
