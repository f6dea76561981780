package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPodResources: what init containers, overhead and all containers together need,
// with units; nothing of pods that have ended, of what is not asked for, or of
// a scheduler whose name is no text.
func TestPodResources(t *testing.T) {
	list := func(words string) corev1.ResourceList {
		l := corev1.ResourceList{}
		for w := range strings.FieldsSeq(words) {
			name, q, _ := strings.Cut(w, "=")
			l[corev1.ResourceName(name)] = resource.MustParse(q)
		}
		return l
	}
	containers := func(requests, limits string) []corev1.Container {
		return []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: list(requests), Limits: list(limits)}}}
	}
	running := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a"},
		Spec: corev1.PodSpec{NodeName: "one", SchedulerName: "default-scheduler", Priority: new(int32(7)), Overhead: list("memory=10"),
			InitContainers: containers("cpu=2", ""), Containers: containers("cpu=500m memory=100 hugepages-2Mi=4Mi example.com/fpga=1 ephemeral-storage=0", "cpu=1")},
	}
	waiting := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "b"}, Spec: corev1.PodSpec{SchedulerName: "mine", Containers: containers("cpu=1", "")}}
	ended := running.DeepCopy()
	ended.Name, ended.Status.Phase = "c", corev1.PodFailed
	hostile := waiting.DeepCopy()
	hostile.Name, hostile.Spec.SchedulerName = "d", "\xff"
	r := prometheus.NewRegistry()
	r.MustRegister(podResources{func() []any { return []any{running, hostile, waiting, ended} }})
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range all {
		for _, m := range f.Metric {
			words := []string{f.GetName()}
			for _, l := range m.Label {
				words = append(words, l.GetName()+"="+l.GetValue())
			}
			got = append(got, fmt.Sprint(strings.Join(words, " "), " ", m.Gauge.GetValue()))
		}
	}
	slices.Sort(got)
	want := []string{
		"kube_pod_resource_limit namespace=n node=one pod=a priority=7 resource=cpu scheduler=default-scheduler unit=cores 1",
		"kube_pod_resource_request namespace=n node= pod=b priority= resource=cpu scheduler=mine unit=cores 1",
		"kube_pod_resource_request namespace=n node=one pod=a priority=7 resource=cpu scheduler=default-scheduler unit=cores 2",
		"kube_pod_resource_request namespace=n node=one pod=a priority=7 resource=example.com/fpga scheduler=default-scheduler unit= 1",
		"kube_pod_resource_request namespace=n node=one pod=a priority=7 resource=hugepages-2Mi scheduler=default-scheduler unit=bytes 4.194304e+06",
		"kube_pod_resource_request namespace=n node=one pod=a priority=7 resource=memory scheduler=default-scheduler unit=bytes 110",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
