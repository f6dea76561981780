package criconfig

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/volume"
)

// linuxConfig is the part of a container's configuration that only Linux has.
func linuxConfig(n Node, in Inputs) (*cri.LinuxContainerConfig, error) {
	pod, c := in.Pod, in.Spec
	sc := effectiveSecurity(pod, c)
	if err := checkNonRoot(pod, c, sc, in.Image); err != nil {
		return nil, err
	}
	on := func(b *bool) bool { return b != nil && *b }
	out := &cri.LinuxContainerSecurityContext{
		Privileged:         on(sc.Privileged),
		ReadonlyRootfs:     on(sc.ReadOnlyRootFilesystem),
		NoNewPrivs:         sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation,
		SelinuxOptions:     selinux(sc.SELinuxOptions),
		NamespaceOptions:   namespaces(pod, in.Users),
		SupplementalGroups: volumeGroups(podGroups(pod), in.Volumes),
		Seccomp:            seccomp(n, sc.SeccompProfile),
	}
	out.Apparmor = apparmor(pod, c)
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
	case in.Image.Username != "":
		out.RunAsUsername = in.Image.Username
	default:
		if in.Image.Uid != nil {
			out.RunAsUser = in.Image.Uid
		} else {
			out.RunAsUser = &cri.Int64Value{}
		}
	}
	if sc.RunAsGroup != nil {
		out.RunAsGroup = &cri.Int64Value{Value: *sc.RunAsGroup}
	}
	if in.Target != "" {
		out.NamespaceOptions.Pid, out.NamespaceOptions.TargetId = cri.NamespaceMode_TARGET, in.Target
	}
	resources := n.ContainerResources(pod, c)
	resources.CpusetCpus, resources.CpusetMems = in.CPUs, in.MemoryNodes
	return &cri.LinuxContainerConfig{Resources: resources, SecurityContext: out}, nil
}

// effectiveSecurity merges a container's security context over its pod's.
func effectiveSecurity(pod *corev1.Pod, c *corev1.Container) corev1.SecurityContext {
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
	return out
}

func podGroups(pod *corev1.Pod) (groups []int64) {
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return nil
	}
	if sc.FSGroup != nil {
		groups = append(groups, *sc.FSGroup)
	}
	return append(groups, sc.SupplementalGroups...)
}

// volumeGroups are these groups and those of the pod's volumes.
func volumeGroups(groups []int64, volumes map[string]volume.Mounted) []int64 {
	for _, name := range slices.Sorted(maps.Keys(volumes)) {
		if g := volumes[name].Group; g != nil && !slices.Contains(groups, *g) {
			groups = append(groups, *g)
		}
	}
	return groups
}

func groupsPolicy(sc *corev1.PodSecurityContext) cri.SupplementalGroupsPolicy {
	if sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		return cri.SupplementalGroupsPolicy_Strict
	}
	return cri.SupplementalGroupsPolicy_Merge
}

func selinux(o *corev1.SELinuxOptions) *cri.SELinuxOption {
	if o == nil {
		return nil
	}
	return &cri.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}
