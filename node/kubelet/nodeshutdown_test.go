package kubelet

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/node/kubelet/podstatus"
	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/shutdown/logindtest"
)

// TestNodeShutdown: pods end before the node does, those of the system last, and no new
// ones are taken until a shutdown is called off.
func TestNodeShutdown(t *testing.T) {
	logind := logindtest.Start(t, time.Hour)
	n := newNode(t)
	n.bus = logind.Address
	n.rt.StopCode = 137
	n.config = func(c *Config) {
		c.Settings.ShutdownGracePeriod = metav1.Duration{Duration: 30 * time.Second}
		c.Settings.ShutdownGracePeriodCriticalPods = metav1.Duration{Duration: 10 * time.Second}
	}
	n.start()
	critical := podtest.Pod("critical", "critical")
	critical.Spec.Priority = new(int32(2000001000))
	n.api.addPod(critical)
	n.api.addPod(podtest.Pod("plain", "plain"))
	n.until("the pods", func() bool { return n.ready("plain")() && n.ready("critical")() })
	logind.WaitLocks(t, 1)
	logind.Prepare(t, true)
	logind.WaitLocks(t, 0)
	if got := n.rt.Running(); len(got) > 0 {
		t.Errorf("still running: %v", got)
	}
	calls := strings.Join(n.rt.Calls(), "\n")
	if a, b := strings.Index(calls, "StopContainer plain"), strings.Index(calls, "StopContainer critical"); a < 0 || b < a {
		t.Errorf("calls %s", calls)
	}
	for _, name := range []string{"plain", "critical"} {
		n.until(name+" shows it", func() bool {
			s := n.api.pod(name).Status
			return s.Phase == corev1.PodFailed && s.Reason == "Terminated" && s.Message == "Pod was terminated in response to imminent node shutdown." &&
				podstatus.FindCondition(s.Conditions, corev1.DisruptionTarget) != nil
		})
	}
	n.until("the node is not ready", func() bool {
		for _, c := range n.k.node.Load().Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "node is shutting down")
			}
		}
		return false
	})
	n.api.addPod(podtest.Pod("late", "late"))
	n.until("a late pod", func() bool { return n.api.pod("late").Status.Reason == "NodeShutdown" })
	if m := n.api.pod("late").Status.Message; !strings.Contains(m, "Pod was rejected as the node is shutting down.") {
		t.Errorf("message %q", m)
	}
	logind.Prepare(t, false)
	logind.WaitLocks(t, 1)
	n.api.addPod(podtest.Pod("again", "again"))
	n.until("pods again", n.ready("again"))
}
