package criconfig

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/volume"
)

// Downward answers the references of a pod to its own fields and resources.
type Downward struct {
	pod          *corev1.Pod
	ips, hostIPs []string
	allocatable  corev1.ResourceList
	// Volumes are where variables are read from files.
	Volumes map[string]volume.Mounted
}

// NewDownward is for a pod with these addresses on a node that has allocatable
// for pods.
func NewDownward(n Node, pod *corev1.Pod, ips []string, allocatable corev1.ResourceList) *Downward {
	d := &Downward{pod: pod, ips: ips, hostIPs: n.HostIPs, allocatable: allocatable}
	if pod.Spec.HostNetwork && len(d.ips) == 0 {
		d.ips = d.hostIPs
	}
	return d
}

// Field answers a fieldPath.
func (d *Downward) Field(path string) (string, error) {
	p := d.pod
	if name, key, ok := subscript(path); ok {
		switch name {
		case "metadata.annotations":
			return p.Annotations[key], nil
		case "metadata.labels":
			return p.Labels[key], nil
		}
		return "", fmt.Errorf("fieldPath %q does not support subscript", path)
	}
	switch path {
	case "metadata.annotations":
		return formatMap(p.Annotations), nil
	case "metadata.labels":
		return formatMap(p.Labels), nil
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	case "spec.nodeName":
		return p.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(d.hostIPs), nil
	case "status.hostIPs":
		return strings.Join(d.hostIPs, ","), nil
	case "status.podIP":
		return first(d.ips), nil
	case "status.podIPs":
		return strings.Join(d.ips, ","), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

func subscript(path string) (name, key string, ok bool) {
	i := strings.IndexByte(path, '[')
	if i < 0 || !strings.HasSuffix(path, "']") || !strings.HasPrefix(path[i:], "['") {
		return "", "", false
	}
	return path[:i], path[i+2 : len(path)-2], true
}

func formatMap(m map[string]string) string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var b strings.Builder
	for i, k := range keys {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(k + "=" + strconv.Quote(m[k]))
	}
	return b.String()
}

// Resource answers a resourceFieldRef; a limit not set is the node's.
func (d *Downward) Resource(container string, ref *corev1.ResourceFieldSelector) (string, error) {
	c, _ := podspec.FindContainer(d.pod, container)
	if c == nil {
		return "", fmt.Errorf("container %s not found", container)
	}
	kind, name, ok := strings.Cut(ref.Resource, ".")
	if !ok {
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	rn := corev1.ResourceName(name)
	var q resource.Quantity
	switch kind {
	case "limits":
		q, ok = c.Resources.Limits[rn]
		if !ok || q.IsZero() {
			if l := podLevel(d.pod, rn); !l.IsZero() {
				q = *l
			} else if rn == corev1.ResourceCPU || rn == corev1.ResourceMemory || rn == corev1.ResourceEphemeralStorage {
				q = d.allocatable[rn]
			}
		}
	case "requests":
		q = c.Resources.Requests[rn]
	default:
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if rn == corev1.ResourceCPU {
		return strconv.FormatInt(int64(math.Ceil(float64(q.MilliValue())/float64(divisor.MilliValue()))), 10), nil
	}
	return strconv.FormatInt(int64(math.Ceil(float64(q.Value())/float64(divisor.Value()))), 10), nil
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}
