package metrics

import (
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// wantsHistory is whether a request for one node or pod asks for its last hour: with the
// parameter history=true, so that who may read its metrics may read these.
func wantsHistory(value, name string) (bool, error) {
	switch {
	case value == "" || value == "false":
		return false, nil
	case value != "true":
		return false, apierrors.NewBadRequest(fmt.Sprintf("history is %q, but can only be true or false", value))
	case name == "":
		return false, apierrors.NewBadRequest("history is that of one node or pod: name it")
	}
	return true, nil
}

// nodeHistory is a list of one node's metrics, oldest first.
func (s *Server) nodeHistory(name string) (runtime.Object, error) {
	o, there, err := s.nodes.GetStore().GetByKey(name)
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	list := &metricsv1beta1.NodeMetricsList{Items: []metricsv1beta1.NodeMetrics{}}
	for _, p := range s.store.nodeHistory(name, time.Now()) {
		list.Items = append(list.Items, metricsv1beta1.NodeMetrics{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: o.(*corev1.Node).Labels},
			Timestamp:  metav1.NewTime(p.Time.Add(period)), Window: metav1.Duration{Duration: period}, Usage: p.resources(),
		})
	}
	return list, nil
}

// podHistory is a list of one pod's metrics, oldest first. What its containers used
// is remembered together, as of one without a name.
func (s *Server) podHistory(r *http.Request, namespace, name string) (runtime.Object, error) {
	pod, err := s.runningPod(r, namespace, name)
	if err != nil {
		return nil, err
	}
	list := &metricsv1beta1.PodMetricsList{Items: []metricsv1beta1.PodMetrics{}}
	of := types.NamespacedName{Namespace: namespace, Name: name}
	for _, p := range s.store.podHistory(pod.Spec.NodeName, of, pod.CreationTimestamp.Time, time.Now()) {
		list.Items = append(list.Items, metricsv1beta1.PodMetrics{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: pod.Labels},
			Timestamp:  metav1.NewTime(p.Time.Add(period)), Window: metav1.Duration{Duration: period},
			Containers: []metricsv1beta1.ContainerMetrics{{Usage: p.resources()}},
		})
	}
	return list, nil
}

func (p Point) resources() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(float64(p.Cores)*1e9), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(p.Memory), resource.BinarySI),
	}
}
