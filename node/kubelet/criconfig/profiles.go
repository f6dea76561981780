package criconfig

import (
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podspec"
)

func seccomp(n Node, p *corev1.SeccompProfile) *cri.SecurityProfile {
	if p == nil {
		if n.SeccompDefault {
			return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
		}
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
	}
	switch p.Type {
	case corev1.SeccompProfileTypeRuntimeDefault:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	case corev1.SeccompProfileTypeLocalhost:
		ref := ""
		if p.LocalhostProfile != nil {
			ref = filepath.Join(n.SeccompDir, filepath.Join("/", *p.LocalhostProfile))
		}
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: ref}
	}
	return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
}

// NeedsAppArmor says whether a container of the pod is to be confined by a profile.
func NeedsAppArmor(pod *corev1.Pod) (needs bool) {
	podspec.EachContainer(pod, func(c *corev1.Container, _ podspec.ContainerKind) {
		p := apparmor(pod, c)
		needs = needs || p != nil && p.ProfileType != cri.SecurityProfile_Unconfined
	})
	return needs
}

// appArmorProfile is the profile of a container: its own, that of the annotation, which only
// manifests of the node's own may still have instead, or the pod's.
func appArmorProfile(pod *corev1.Pod, c *corev1.Container) *corev1.AppArmorProfile {
	if c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
		return c.SecurityContext.AppArmorProfile
	}
	old := pod.Annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name]
	switch name, local := strings.CutPrefix(old, corev1.DeprecatedAppArmorBetaProfileNamePrefix); {
	case old == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case old == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	case local:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	case pod.Spec.SecurityContext != nil:
		return pod.Spec.SecurityContext.AppArmorProfile
	}
	return nil
}

func apparmor(pod *corev1.Pod, c *corev1.Container) *cri.SecurityProfile {
	p := appArmorProfile(pod, c)
	if p == nil {
		return nil
	}
	switch p.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	case corev1.AppArmorProfileTypeLocalhost:
		ref := ""
		if p.LocalhostProfile != nil {
			ref = *p.LocalhostProfile
		}
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: ref}
	}
	return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
}
