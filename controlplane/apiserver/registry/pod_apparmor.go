package registry

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// appArmorFromAnnotations takes profiles from the annotations that came
// before the field.
func appArmorFromAnnotations(p *corev1.Pod) {
	if p.Spec.OS != nil && p.Spec.OS.Name == corev1.Windows {
		return
	}
	set := func(name string, sc **corev1.SecurityContext) {
		value, ok := p.Annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+name]
		if !ok || (*sc != nil && (*sc).AppArmorProfile != nil) {
			return
		}
		profile := appArmorProfile(value)
		if profile == nil || (p.Spec.SecurityContext != nil && same(profile, p.Spec.SecurityContext.AppArmorProfile)) {
			return
		}
		if *sc == nil {
			*sc = &corev1.SecurityContext{}
		}
		(*sc).AppArmorProfile = profile
	}
	for i := range p.Spec.InitContainers {
		set(p.Spec.InitContainers[i].Name, &p.Spec.InitContainers[i].SecurityContext)
	}
	for i := range p.Spec.Containers {
		set(p.Spec.Containers[i].Name, &p.Spec.Containers[i].SecurityContext)
	}
}

// appArmorProfile is the field an annotation stands for, nil for none.
func appArmorProfile(annotation string) *corev1.AppArmorProfile {
	switch annotation {
	case corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	case corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	}
	name, ok := strings.CutPrefix(annotation, corev1.DeprecatedAppArmorBetaProfileNamePrefix)
	if !ok || name == "" || strings.TrimSpace(name) != name || len(name) > 4095 {
		return nil
	}
	return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
}

// warnAppArmor warns of annotations that became fields. The field is filled by
// now, so one who set both the same is warned too.
func warnAppArmor(p *corev1.Pod) (warnings []string) {
	var whole *corev1.AppArmorProfile
	if p.Spec.SecurityContext != nil {
		whole = p.Spec.SecurityContext.AppArmorProfile
	}
	eachContainer(&p.Spec, nil, func(c *corev1.Container, _ place) {
		key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
		value, ok := p.Annotations[key]
		if !ok {
			return
		}
		profile := appArmorProfile(value)
		if profile != nil && (same(profile, whole) || c.SecurityContext == nil || !same(profile, c.SecurityContext.AppArmorProfile)) {
			return
		}
		warnings = append(warnings, fmt.Sprintf(`%s: deprecated since v1.30; use the "appArmorProfile" field instead`,
			field.NewPath("metadata", "annotations").Key(key)))
	})
	return warnings
}
