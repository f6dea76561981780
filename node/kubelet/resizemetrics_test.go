package kubelet

import (
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"knarr/node/kubelet/podstatus"
	"knarr/node/kubelet/podtest"
)

func TestResizeOperation(t *testing.T) {
	for _, c := range [][3]string{{"0", "1", "add"}, {"1", "0", "remove"}, {"1", "2", "increase"}, {"2", "1", "decrease"}, {"1000m", "1", ""}, {"0", "0", ""}} {
		if got := resizeOperation(resource.MustParse(c[0]), resource.MustParse(c[1])); got != c[2] {
			t.Errorf("%s to %s: %q", c[0], c[1], got)
		}
	}
}

// TestResizeMetrics: what is asked for, refused, put off and done is counted, each once.
func TestResizeMetrics(t *testing.T) {
	n := newNode(t)
	n.start()
	milli := int64(0)
	n.until("the node", func() bool {
		if have := n.k.node.Load(); have != nil {
			milli = have.Status.Allocatable.Cpu().MilliValue()
		}
		return milli > 0
	})
	share := func(part int64) string { return resource.NewMilliQuantity(milli*part/10, resource.DecimalSI).String() }
	for name, part := range map[string]int64{"small": 1, "large": 8} {
		n.api.addPod(cpus(podtest.Pod(name, "c-"+name), share(part)))
		n.until("ready", n.ready(name))
	}
	counted := func(name, label string) float64 {
		return total(asked(t, n.k, "/metrics")["kubelet_"+name], label)
	}
	n.resize("small", share(100))
	n.until("more than the node has put off", n.deferred("small"))
	n.until("shown", func() bool { return counted("pod_pending_resizes", "deferred") == 1 })
	n.resizeAs("small", share(5), 3)
	n.until("less put off", func() bool {
		return strings.Contains(podstatus.FindCondition(n.api.pod("small").Status.Conditions, corev1.PodResizePending).Message, "requested: "+strconv.FormatInt(milli*5/10, 10))
	})
	n.api.deletePod("large")
	n.until("done", func() bool { return counted("pod_deferred_accepted_resizes_total", resizeRemoved) == 1 })
	n.until("in the runtime", func() bool { return counted("pod_resize_duration_milliseconds", "true") == 1 })
	n.until("nothing pending", func() bool {
		return counted("pod_pending_resizes", "") == 0 && counted("pod_in_progress_resizes", "") == 0
	})
	for _, c := range []struct {
		name, label string
		want        float64
	}{
		{"container_requested_resizes_total", "increase", 1}, {"container_requested_resizes_total", "decrease", 1}, {"container_requested_resizes_total", "", 2},
		{"pod_infeasible_resizes_total", "", 0}, {"pod_deferred_accepted_resizes_total", "", 1},
	} {
		if got := counted(c.name, c.label); got != c.want {
			t.Errorf("%s %s: %v, want %v", c.name, c.label, got, c.want)
		}
	}
	upstreamNames(t, asked(t, n.k, "/metrics"))
	if s := n.api.pod("small").Status; s.Phase != corev1.PodRunning {
		t.Errorf("%+v", s)
	}
}
