package criconfig

import (
	"path/filepath"

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
		p := apparmor(pod, c, effectiveSecurity(pod, c).AppArmorProfile)
		needs = needs || p != nil && p.ProfileType != cri.SecurityProfile_Unconfined
	})
	return needs
}

func apparmor(pod *corev1.Pod, c *corev1.Container, p *corev1.AppArmorProfile) *cri.SecurityProfile {
	if p == nil {
		switch old := pod.Annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name]; {
		case old == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
			return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
		case old == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
			return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
		}
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
