// Package podtest makes pods, what a runtime has of them, and mounts that hang, for
// tests. It reads and writes nothing else.
package podtest

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/crilabels"
	"knarr/node/kubelet/runtimestate"
)

// Image is what the containers of these pods are made of.
const Image = "img:1"

// Pod is a pod of these containers that is bound to the node n1.
func Pod(name string, containers ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: "n1", RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSDefault},
	}
	for _, c := range containers {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c, Image: Image, ImagePullPolicy: corev1.PullIfNotPresent})
	}
	return p
}

// WithInit adds init containers; those whose names begin with s are sidecars.
func WithInit(p *corev1.Pod, names ...string) *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	for _, n := range names {
		c := corev1.Container{Name: n, Image: Image}
		if n[0] == 's' {
			c.RestartPolicy = &always
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	return p
}

// WithRestartPolicy sets the pod's restart policy.
func WithRestartPolicy(p *corev1.Pod, r corev1.RestartPolicy) *corev1.Pod {
	p.Spec.RestartPolicy = r
	return p
}

// Observed is a view of one ready sandbox with these containers.
func Observed(cs ...*runtimestate.Container) *runtimestate.Pod {
	return &runtimestate.Pod{
		Sandboxes: []runtimestate.Sandbox{{PodSandboxStatus: &cri.PodSandboxStatus{Id: "s", Metadata: &cri.PodSandboxMetadata{}, State: cri.PodSandboxState_SANDBOX_READY,
			Network: &cri.PodSandboxNetworkStatus{Ip: "10.0.0.9"}}}},
		Containers: cs,
	}
}

// Container is a container of the sandbox of Observed.
func Container(name string, state cri.ContainerState, code int32) *runtimestate.Container {
	return &runtimestate.Container{SandboxID: "s", ContainerStatus: &cri.ContainerStatus{Id: "id-" + name, Labels: map[string]string{crilabels.ContainerName: name}, State: state, ExitCode: code,
		Image: &cri.ImageSpec{}, StartedAt: 1e9, FinishedAt: 2e9}}
}

// The states of containers.
const (
	Running = cri.ContainerState_CONTAINER_RUNNING
	Exited  = cri.ContainerState_CONTAINER_EXITED
	Created = cri.ContainerState_CONTAINER_CREATED
)

// Resources are requests and limits; "" leaves one out.
func Resources(cpuReq, memReq, cpu, mem string) corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	for _, x := range []struct {
		l corev1.ResourceList
		n corev1.ResourceName
		v string
	}{{r.Requests, "cpu", cpuReq}, {r.Requests, "memory", memReq}, {r.Limits, "cpu", cpu}, {r.Limits, "memory", mem}} {
		if x.v != "" {
			x.l[x.n] = resource.MustParse(x.v)
		}
	}
	return r
}

// Use gives a pod's volumes to its first container, which it makes if need be:
// volumes that no container has are not mounted.
func Use(pod *corev1.Pod) *corev1.Pod {
	if len(pod.Spec.Containers) == 0 {
		pod.Spec.Containers = []corev1.Container{{Name: "c", Image: Image}}
	}
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = nil
	for i := range pod.Spec.Volumes {
		name := pod.Spec.Volumes[i].Name
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	return pod
}
