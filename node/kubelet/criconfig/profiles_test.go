package criconfig

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podtest"
)

// TestAppArmor: a container's own profile comes before the annotation, that before the pod's.
func TestAppArmor(t *testing.T) {
	profile := func(kind corev1.AppArmorProfileType) *corev1.AppArmorProfile {
		return &corev1.AppArmorProfile{Type: kind}
	}
	for name, c := range map[string]struct {
		own, pod   *corev1.AppArmorProfile
		annotation string
		want       cri.SecurityProfile_ProfileType
		ref        string
		none       bool
	}{
		"none":             {none: true},
		"of the pod":       {pod: profile(corev1.AppArmorProfileTypeRuntimeDefault), want: cri.SecurityProfile_RuntimeDefault},
		"annotation":       {pod: profile(corev1.AppArmorProfileTypeRuntimeDefault), annotation: "localhost/mine", want: cri.SecurityProfile_Localhost, ref: "mine"},
		"default":          {annotation: "runtime/default", want: cri.SecurityProfile_RuntimeDefault},
		"unconfined":       {annotation: "unconfined", want: cri.SecurityProfile_Unconfined},
		"own":              {own: profile(corev1.AppArmorProfileTypeUnconfined), annotation: "runtime/default", want: cri.SecurityProfile_Unconfined},
		"wrong annotation": {annotation: "x", none: true},
	} {
		p := podtest.Pod("p", "c")
		p.Annotations = map[string]string{}
		if c.annotation != "" {
			p.Annotations["container.apparmor.security.beta.kubernetes.io/c"] = c.annotation
		}
		p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: c.pod}
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{AppArmorProfile: c.own}
		got := apparmor(p, &p.Spec.Containers[0])
		if (got == nil) != c.none || got.GetProfileType() != c.want || got.GetLocalhostRef() != c.ref {
			t.Errorf("%s: %v", name, got)
		}
	}
}
