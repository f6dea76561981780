package podresources

import (
	"context"

	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
)

// An early answers in the API's first version, which upstream serves still: pods, their
// regular containers and devices.
type early struct {
	server server
	v1alpha1.UnimplementedPodResourcesListerServer
}

// List tells of all pods, those that have ended too.
func (e early) List(context.Context, *v1alpha1.ListPodResourcesRequest) (*v1alpha1.ListPodResourcesResponse, error) {
	res := &v1alpha1.ListPodResourcesResponse{}
	for _, pod := range e.server.c.AllPods() {
		out := &v1alpha1.PodResources{Name: pod.Name, Namespace: pod.Namespace}
		for i := range pod.Spec.Containers {
			r := &v1alpha1.ContainerResources{Name: pod.Spec.Containers[i].Name}
			for _, d := range e.server.c.Devices.Of(pod.UID, r.Name) {
				r.Devices = append(r.Devices, &v1alpha1.ContainerDevices{ResourceName: d.Resource, DeviceIds: []string{d.ID}})
			}
			out.Containers = append(out.Containers, r)
		}
		res.PodResources = append(res.PodResources, out)
	}
	if counted := e.server.c.Counted; counted != nil {
		counted("v1alpha1", "", false)
	}
	return res, nil
}
