package registry

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validatePodAnnotations checks annotations that mean something for pods.
func validatePodAnnotations(annotations map[string]string, s *corev1.PodSpec, at *field.Path) field.ErrorList {
	var f faults
	if value, ok := annotations[corev1.MirrorPodAnnotationKey]; ok && s.NodeName == "" {
		f.invalid(at.Key(corev1.MirrorPodAnnotationKey), value, "must set spec.nodeName if mirror pod annotation is set")
	}
	if value, ok := annotations[corev1.PodDeletionCost]; ok && !isDeletionCost(value) {
		f.invalid(at.Key(corev1.PodDeletionCost), value, "must be a 32bit integer")
	}
	for _, key := range sortedKeys(annotations) {
		if key == corev1.SeccompPodAnnotationKey || strings.HasPrefix(key, corev1.SeccompContainerAnnotationKeyPrefix) {
			f.add(seccompAnnotation(annotations[key], at.Child(key)))
		}
		name, ok := strings.CutPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix)
		if !ok {
			continue
		}
		if !hasContainer(s, name) {
			f.invalid(at.Key(key), name, "container not found")
		}
		switch profile := annotations[key]; {
		case profile == "", profile == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault,
			profile == corev1.DeprecatedAppArmorBetaProfileNameUnconfined,
			strings.HasPrefix(profile, corev1.DeprecatedAppArmorBetaProfileNamePrefix):
		default:
			f.invalid(at.Key(key), profile, fmt.Sprintf("invalid AppArmor profile name: %q", profile))
		}
	}
	return f.list
}

// isDeletionCost: no plus sign, no leading zeros.
func isDeletionCost(value string) bool {
	n, err := strconv.ParseInt(value, 10, 32)
	return err == nil && strconv.FormatInt(n, 10) == value
}

func seccompAnnotation(value string, at *field.Path) field.ErrorList {
	if value == corev1.SeccompProfileRuntimeDefault || value == corev1.DeprecatedSeccompProfileDockerDefault || value == corev1.SeccompProfileNameUnconfined {
		return nil
	}
	if file, ok := strings.CutPrefix(value, corev1.SeccompLocalhostProfileNamePrefix); ok {
		return descendingPath(file, at)
	}
	return field.ErrorList{field.Invalid(at, value, "must be a valid seccomp profile")}
}

func hasContainer(s *corev1.PodSpec, name string) (found bool) {
	eachContainer(s, nil, func(c *corev1.Container, _ place) { found = found || c.Name == name })
	return found
}

// validatePodAnnotationUpdate: some annotations are there from the start or never.
func validatePodAnnotationUpdate(p, old *corev1.Pod, at *field.Path) field.ErrorList {
	var f faults
	for _, key := range sortedKeys(old.Annotations) {
		if now, ok := p.Annotations[key]; ok && now == old.Annotations[key] {
			continue
		}
		if strings.HasPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) {
			f.forbidden(at.Key(key), "may not remove or update AppArmor annotations")
		}
		if key == corev1.MirrorPodAnnotationKey {
			f.forbidden(at.Key(key), "may not remove or update mirror pod annotation")
		}
	}
	for _, key := range sortedKeys(p.Annotations) {
		if _, ok := old.Annotations[key]; ok {
			continue
		}
		if strings.HasPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) {
			f.forbidden(at.Key(key), "may not add AppArmor annotations")
		}
		if key == corev1.MirrorPodAnnotationKey {
			f.forbidden(at.Key(key), "may not add mirror pod annotation")
		}
	}
	f.add(validatePodAnnotations(p.Annotations, &p.Spec, at))
	return f.list
}
