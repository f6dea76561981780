package kubelet

import (
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/crilabels"
	"knarr/node/kubelet/podtest"
)

func TestResizes(t *testing.T) {
	c := podtest.Container("a", podtest.Running, 0)
	c.Resources = &cri.ContainerResources{Linux: &cri.LinuxContainerResources{CpuShares: 102, CpuQuota: 20000, CpuPeriod: 100000, MemoryLimitInBytes: 1 << 20}}
	v := podtest.Observed(c)
	want := proto.Clone(c.Resources.Linux).(*cri.LinuxContainerResources)
	if got := resizes(podtest.Pod("p", "a"), v, nil, func(*corev1.Container) *cri.LinuxContainerResources { return want }); len(got) != 0 {
		t.Errorf("nothing to resize, got %v", got)
	}
	p := podtest.Pod("p", "a")
	want.CpuShares = 104
	ask := func(*corev1.Container) *cri.LinuxContainerResources { return want }
	if got := resizes(p, v, nil, ask); len(got) != 1 {
		t.Errorf("a little more: %v", got)
	}
	if got := resizes(p, v, map[string]*cri.LinuxContainerResources{c.Id: want}, ask); len(got) != 0 {
		t.Errorf("asked for already: %v", got)
	}
	want.CpuQuota = 50000
	p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
	got := resizes(p, v, nil, func(*corev1.Container) *cri.LinuxContainerResources { return want })
	if len(got) != 1 || got[0].restart {
		t.Errorf("%+v", got)
	}
	want.MemoryLimitInBytes = 2 << 20
	if got := resizes(p, v, nil, func(*corev1.Container) *cri.LinuxContainerResources { return want }); len(got) != 1 || !got[0].restart {
		t.Errorf("%+v", got)
	}
}

// TestResizeOfMemoryRequest: the runtime knows nothing of it, but a container whose
// policy says so begins anew for it.
func TestResizeOfMemoryRequest(t *testing.T) {
	limits := &cri.LinuxContainerResources{CpuShares: 102, MemoryLimitInBytes: 1 << 20}
	p := podtest.Pod("p", "a")
	spec := &p.Spec.Containers[0]
	spec.Resources = podtest.Resources("", "1Ki", "", "1Mi")
	c := podtest.Container("a", podtest.Running, 0)
	c.Resources = &cri.ContainerResources{Linux: limits}
	got := func() []resizing {
		return resizes(p, podtest.Observed(c), map[string]*cri.LinuxContainerResources{c.Id: limits}, func(*corev1.Container) *cri.LinuxContainerResources { return limits })
	}
	if all := got(); len(all) != 0 {
		t.Errorf("without such a policy: %+v", all)
	}
	spec.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
	c.Annotations = map[string]string{crilabels.MemoryRequest: "1024"}
	if all := got(); len(all) != 0 {
		t.Errorf("the same: %+v", all)
	}
	spec.Resources = podtest.Resources("", "2Ki", "", "1Mi")
	if all := got(); len(all) != 1 || !all[0].restart {
		t.Errorf("another: %+v", all)
	}
}
