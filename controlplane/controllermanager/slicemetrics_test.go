package controllermanager

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestMetricsOfSlices: endpoints that come and go are counted, with the slices that hold them.
func TestMetricsOfSlices(t *testing.T) {
	inCluster(t, []string{"endpointslice-controller", "serviceaccount-controller"}, func(c *cluster) {
		g := &grown{t, map[string]float64{}}
		g.by("endpoint_slice_controller_changes", "create")
		g.by("endpoint_slice_controller_changes", "update")
		g.by("endpoint_slice_controller_syncs", "success")
		svc := &corev1.Service{ObjectMeta: meta("web"), Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}, TrafficDistribution: new("PreferSameZone")}}
		_, err := c.client.CoreV1().Services("default").Create(c.ctx, svc, metav1.CreateOptions{})
		c.no(err)
		time.Sleep(time.Minute)
		for name, want := range map[string]float64{"num_endpoint_slices": 1, "desired_endpoint_slices": 1, "endpoints_desired": 0, "services_count_by_traffic_distribution": 1} {
			if n := counted(t, "endpoint_slice_controller_"+name); n != want {
				t.Errorf("without pods: %s %v, want %v", name, n, want)
			}
		}
		pod := &corev1.Pod{ObjectMeta: meta("p"), Spec: *template.Spec.DeepCopy()}
		pod.Labels = map[string]string{"app": "web"}
		pod, err = c.client.CoreV1().Pods("default").Create(c.ctx, pod, metav1.CreateOptions{})
		c.no(err)
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		_, err = c.client.CoreV1().Pods("default").UpdateStatus(c.ctx, pod, metav1.UpdateOptions{})
		c.no(err)
		time.Sleep(time.Minute)
		if n := counted(t, "endpoint_slice_controller_endpoints_desired"); n != 1 {
			t.Errorf("%v endpoints", n)
		}
		if n := g.by("endpoint_slice_controller_changes", "create"); n < 1 {
			t.Errorf("%v slices made", n)
		}
		if n := g.by("endpoint_slice_controller_syncs", "success"); n < 2 {
			t.Errorf("%v looks", n)
		}
	})
}
