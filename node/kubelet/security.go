package kubelet

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var defaultMasked = func() []string {
	paths := []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
	for i := range runtime.NumCPU() {
		p := fmt.Sprintf("/sys/devices/system/cpu/cpu%d/thermal_throttle", i)
		if _, err := os.Stat(p); err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}()

var defaultReadonly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

// effective merges a container's security context over its pod's.
func effective(pod *corev1.Pod, c *corev1.Container) corev1.SecurityContext {
	var out corev1.SecurityContext
	if c.SecurityContext != nil {
		out = *c.SecurityContext
	}
	p := pod.Spec.SecurityContext
	if p == nil {
		return out
	}
	or := func(a, b *int64) *int64 {
		if a != nil {
			return a
		}
		return b
	}
	out.RunAsUser, out.RunAsGroup = or(out.RunAsUser, p.RunAsUser), or(out.RunAsGroup, p.RunAsGroup)
	if out.RunAsNonRoot == nil {
		out.RunAsNonRoot = p.RunAsNonRoot
	}
	if out.SELinuxOptions == nil {
		out.SELinuxOptions = p.SELinuxOptions
	}
	if out.SeccompProfile == nil {
		out.SeccompProfile = p.SeccompProfile
	}
	if out.AppArmorProfile == nil {
		out.AppArmorProfile = p.AppArmorProfile
	}
	return out
}

func (k *Kubelet) linuxContainer(in containerInputs) (*cri.LinuxContainerConfig, error) {
	pod, c := in.pod, in.spec
	sc := effective(pod, c)
	if err := checkNonRoot(pod, c, sc, in.image); err != nil {
		return nil, err
	}
	on := func(b *bool) bool { return b != nil && *b }
	out := &cri.LinuxContainerSecurityContext{
		Privileged:         on(sc.Privileged),
		ReadonlyRootfs:     on(sc.ReadOnlyRootFilesystem),
		NoNewPrivs:         sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation,
		SelinuxOptions:     selinux(sc.SELinuxOptions),
		NamespaceOptions:   namespaces(pod),
		SupplementalGroups: podGroups(pod),
		Seccomp:            k.seccomp(sc.SeccompProfile),
	}
	out.Apparmor = apparmor(pod, c, sc.AppArmorProfile)
	if pod.Spec.SecurityContext != nil {
		out.SupplementalGroupsPolicy = groupsPolicy(pod.Spec.SecurityContext)
	}
	if sc.ProcMount == nil || *sc.ProcMount != corev1.UnmaskedProcMount {
		out.MaskedPaths, out.ReadonlyPaths = defaultMasked, defaultReadonly
	}
	if sc.Capabilities != nil {
		out.Capabilities = &cri.Capability{}
		for _, x := range sc.Capabilities.Add {
			out.Capabilities.AddCapabilities = append(out.Capabilities.AddCapabilities, string(x))
		}
		for _, x := range sc.Capabilities.Drop {
			out.Capabilities.DropCapabilities = append(out.Capabilities.DropCapabilities, string(x))
		}
	}
	switch {
	case sc.RunAsUser != nil:
		out.RunAsUser = &cri.Int64Value{Value: *sc.RunAsUser}
	case in.image.Username != "":
		out.RunAsUsername = in.image.Username
	default:
		if in.image.Uid != nil {
			out.RunAsUser = in.image.Uid
		} else {
			out.RunAsUser = &cri.Int64Value{}
		}
	}
	if sc.RunAsGroup != nil {
		out.RunAsGroup = &cri.Int64Value{Value: *sc.RunAsGroup}
	}
	if in.target != "" {
		out.NamespaceOptions.Pid, out.NamespaceOptions.TargetId = cri.NamespaceMode_TARGET, in.target
	}
	return &cri.LinuxContainerConfig{Resources: k.containerResources(pod, c), SecurityContext: out}, nil
}

func (k *Kubelet) seccomp(p *corev1.SeccompProfile) *cri.SecurityProfile {
	if p == nil {
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
	}
	switch p.Type {
	case corev1.SeccompProfileTypeRuntimeDefault:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	case corev1.SeccompProfileTypeLocalhost:
		ref := ""
		if p.LocalhostProfile != nil {
			ref = filepath.Join(k.cfg.RootDir, "seccomp", filepath.Join("/", *p.LocalhostProfile))
		}
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: ref}
	}
	return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
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

// checkNonRoot refuses a container that must not run as root but would.
func checkNonRoot(pod *corev1.Pod, c *corev1.Container, sc corev1.SecurityContext, image *cri.Image) error {
	if sc.RunAsNonRoot == nil || !*sc.RunAsNonRoot {
		return nil
	}
	who := podRef(pod)
	switch {
	case sc.RunAsUser != nil && *sc.RunAsUser == 0:
		return fmt.Errorf("container's runAsUser breaks non-root policy (pod: %q, container: %s)", who, c.Name)
	case sc.RunAsUser != nil:
		return nil
	case image.Username != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root (pod: %q, container: %s)", image.Username, who, c.Name)
	case image.Uid == nil || image.Uid.Value == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root (pod: %q, container: %s)", who, c.Name)
	}
	return nil
}

// podRef is how events and messages name a pod.
func podRef(pod *corev1.Pod) string {
	return pod.Name + "_" + pod.Namespace + "(" + string(pod.UID) + ")"
}
