package horizontalpodautoscaler

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcehelpers "k8s.io/component-helpers/resource"
)

// requests are what each pod requests of a resource, in thousandths: the pod
// itself if it says so, else its containers, of which container selects one.
func requests(pods []*corev1.Pod, container string, resource corev1.ResourceName) (map[string]int64, error) {
	all := make(map[string]int64, len(pods))
	for _, pod := range pods {
		request := requestOfContainers
		if container == "" && resourcehelpers.IsPodLevelRequestsSet(pod) {
			request = requestOfPod
		}
		n, err := request(pod, container, resource)
		if err != nil {
			return nil, err
		}
		all[pod.Name] = n
	}
	return all, nil
}

func requestOfPod(pod *corev1.Pod, _ string, resource corev1.ResourceName) (int64, error) {
	q, ok := resourcehelpers.PodRequests(pod, resourcehelpers.PodResourcesOptions{})[resource]
	if !ok {
		return 0, fmt.Errorf("missing pod-level request for %s in Pod %s", resource, pod.Name)
	}
	return milli(&q), nil
}

func requestOfContainers(pod *corev1.Pod, container string, resource corev1.ResourceName) (total int64, err error) {
	found := container == ""
	add := func(c *corev1.Container) error {
		if container != "" && container != c.Name {
			return nil
		}
		q, ok := c.Resources.Requests[resource]
		if !ok {
			return fmt.Errorf("missing request for %s in container %s of Pod %s", resource, c.Name, pod.Name)
		}
		total, found = sum(total, milli(&q)), true
		return nil
	}
	for i := range pod.Spec.Containers {
		if err := add(&pod.Spec.Containers[i]); err != nil {
			return 0, err
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		if err := add(c); err != nil {
			return 0, err
		}
	}
	if !found {
		return 0, fmt.Errorf("container %s not found in Pod %s", container, pod.Name)
	}
	return total, nil
}
