package registry

import (
	"fmt"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func warnTemplate(t *corev1.PodTemplateSpec, at *field.Path) []string {
	return warnPodSpec(&t.Spec, &t.ObjectMeta, at)
}

// oldLabels are node labels that have new names.
var oldLabels = map[string]string{
	"beta.kubernetes.io/arch":                  `deprecated since v1.14; use "kubernetes.io/arch" instead`,
	"beta.kubernetes.io/os":                    `deprecated since v1.14; use "kubernetes.io/os" instead`,
	"failure-domain.beta.kubernetes.io/region": `deprecated since v1.17; use "topology.kubernetes.io/region" instead`,
	"failure-domain.beta.kubernetes.io/zone":   `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`,
	"beta.kubernetes.io/instance-type":         `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`,
}

func warnOldLabel(key string, at *field.Path) []string {
	if msg, ok := oldLabels[key]; ok {
		return []string{fmt.Sprintf("%s: %s is %s", at, key, msg)}
	}
	return nil
}

// warnPodSpec warns of what works otherwise than it looks. at is nil for a pod
// itself.
func warnPodSpec(s *corev1.PodSpec, meta *metav1.ObjectMeta, at *field.Path) (warnings []string) {
	warn := func(at *field.Path, format string, args ...any) {
		warnings = append(warnings, fmt.Sprintf("%s: "+format, append([]any{at}, args...)...))
	}
	spec := at.Child("spec")
	for _, k := range sortedKeys(s.NodeSelector) {
		if msg, ok := oldLabels[k]; ok {
			warn(spec.Child("nodeSelector").Key(k), "%s", msg)
		}
	}
	for i, c := range s.TopologySpreadConstraints {
		p := spec.Child("topologySpreadConstraints").Index(i)
		warnings = append(warnings, warnOldLabel(c.TopologyKey, p.Child("topologyKey"))...)
		if c.LabelSelector == nil {
			warn(p.Child("labelSelector"), "a null labelSelector results in matching no pod")
		}
	}
	for _, a := range []struct{ key, msg string }{
		{"scheduler.alpha.kubernetes.io/critical-pod", `non-functional in v1.16+; use the "priorityClassName" field instead`},
		{"security.alpha.kubernetes.io/sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
		{"security.alpha.kubernetes.io/unsafe-sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
	} {
		if _, ok := meta.Annotations[a.key]; ok {
			warn(at.Child("metadata", "annotations").Key(a.key), "%s", a.msg)
		}
	}
	warnings = append(warnings, warnVolumes(s.Volumes, spec)...)
	seen := map[string]bool{}
	for i, h := range s.HostAliases {
		if seen[h.IP] {
			warn(spec.Child("hostAliases").Index(i).Child("ip"), "duplicate ip %q", h.IP)
		}
		seen[h.IP] = true
	}
	seen = map[string]bool{}
	for i, ref := range s.ImagePullSecrets {
		p := spec.Child("imagePullSecrets").Index(i).Child("name")
		if ref.Name == "" {
			warn(p, "invalid empty name %q", ref.Name)
		} else if seen[ref.Name] {
			warn(p, "duplicate name %q", ref.Name)
		}
		seen[ref.Name] = true
	}
	eachContainer(s, spec, func(c *corev1.Container, at place) {
		for _, list := range []struct {
			name   string
			values corev1.ResourceList
		}{{"limits", c.Resources.Limits}, {"requests", c.Resources.Requests}} {
			for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
				q, ok := list.values[name]
				if _, whole := q.AsInt64(); ok && !whole && q.MilliValue()%1000 != 0 {
					warn(at.path().Child("resources", list.name).Key(string(name)), "fractional byte value %q is invalid, must be an integer", q.String())
				}
			}
		}
		if len(c.Env) > 1 {
			warnings = append(warnings, warnEnv(c.Env, at.path().Child("env"))...)
		}
	})
	warnings = append(warnings, warnPorts(s, spec)...)
	if deref(s.TerminationGracePeriodSeconds, 0) < 0 {
		warn(spec.Child("terminationGracePeriodSeconds"), "must be >= 0; negative values are invalid and will be treated as 1")
	}
	selectsNone := func(s *metav1.LabelSelector, p *field.Path) {
		if s == nil {
			warn(p.Child("labelSelector"), "a null labelSelector results in matching no pod")
		}
	}
	affinity := func(name string, required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		p := spec.Child("affinity", name)
		for i := range required {
			selectsNone(required[i].LabelSelector, p.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i))
		}
		for i := range preferred {
			selectsNone(preferred[i].PodAffinityTerm.LabelSelector, p.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i).Child("podAffinityTerm"))
		}
	}
	if s.Affinity != nil {
		if a := s.Affinity.PodAffinity; a != nil {
			affinity("podAffinity", a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if a := s.Affinity.PodAntiAffinity; a != nil {
			affinity("podAntiAffinity", a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
	return warnings
}

func warnVolumes(volumes []corev1.Volume, at *field.Path) (warnings []string) {
	for i, v := range volumes {
		for _, old := range []struct {
			set       bool
			name, msg string
		}{
			{v.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"},
			{v.GitRepo != nil, "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"},
			{v.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+"},
			{v.Flocker != nil, "flocker", "deprecated in v1.22, non-functional in v1.25+"},
			{v.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+"},
			{v.Quobyte != nil, "quobyte", "deprecated in v1.22, non-functional in v1.25+"},
			{v.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+"},
			{v.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+"},
			{v.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+"},
		} {
			if old.set {
				warnings = append(warnings, fmt.Sprintf("%s: %s", at.Child("volumes").Index(i).Child(old.name), old.msg))
			}
		}
	}
	return warnings
}

// warnEnv: a variable set again is lost when applied, unless it extends the
// first.
func warnEnv(env []corev1.EnvVar, at *field.Path) (warnings []string) {
	seen := map[string]bool{}
	for i, v := range env {
		ref := "$(" + v.Name + ")"
		extends := v.ValueFrom == nil && len(v.Value) > len(ref) && strings.Contains(v.Value, ref)
		if seen[v.Name] && !extends {
			warnings = append(warnings, fmt.Sprintf("%s: hides previous definition of %q, which may be dropped when using apply", at.Index(i), v.Name))
		}
		seen[v.Name] = true
	}
	return warnings
}

func warnPorts(s *corev1.PodSpec, at *field.Path) (warnings []string) {
	type key struct {
		number   int32
		protocol corev1.Protocol
	}
	type definition struct {
		at   *field.Path
		port corev1.ContainerPort
	}
	numbers, names := map[key][]definition{}, map[string]*field.Path{}
	eachContainer(s, at, func(c *corev1.Container, at place) {
		for i, port := range c.Ports {
			q := at.path().Child("ports").Index(i)
			if port.HostIP != "" && port.HostPort == 0 {
				warnings = append(warnings, fmt.Sprintf("%s: hostIP set without hostPort: %+v", q, port))
			}
			key := key{port.ContainerPort, port.Protocol}
			for _, o := range numbers[key] {
				switch {
				case port.HostIP == o.port.HostIP && port.HostPort == o.port.HostPort:
					warnings = append(warnings, fmt.Sprintf("%s: duplicate port definition with %s", q, o.at))
				case port.HostPort == 0 || o.port.HostPort == 0:
					warnings = append(warnings, fmt.Sprintf("%s: overlapping port definition with %s", q, o.at))
				case port.HostPort == o.port.HostPort && (port.HostIP == "") != (o.port.HostIP == ""):
					warnings = append(warnings, fmt.Sprintf("%s: dangerously ambiguous port definition with %s", q, o.at))
				}
			}
			numbers[key] = append(numbers[key], definition{q, port})
		}
	})
	eachContainer(s, at, func(c *corev1.Container, at place) {
		for i, port := range c.Ports {
			if port.Name == "" {
				continue
			}
			q := at.path().Child("ports").Index(i)
			if other, ok := names[port.Name]; ok {
				warnings = append(warnings, fmt.Sprintf("%s: duplicate port name %q with %s, services and probes that select ports by name will use %s", q, port.Name, other, other))
			} else {
				names[port.Name] = q
			}
		}
	})
	return warnings
}

func warnJobSpec(s *batchv1.JobSpec, at *field.Path) (warnings []string) {
	if isIndexed(s) {
		completions, parallelism := deref(s.Completions, 0), deref(s.Parallelism, 0)
		if completions > manyCompletions && parallelism > manyParallelism {
			warnings = append(warnings, fmt.Sprintf("%s: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes and failedIndexes. We recommend migrating to smaller jobs.", at))
		}
	}
	return append(warnings, warnTemplate(&s.Template, at.Child("template"))...)
}
