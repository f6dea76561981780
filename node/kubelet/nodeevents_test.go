package kubelet

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podtest"
)

func (n *node) sent(what string) func() bool {
	return func() bool { return strings.Contains(strings.Join(n.api.events(), "\n"), what) }
}

// TestNodeEvents: events tell that a Node is to have no pods, that it may again, and that the
// machine was started anew.
func TestNodeEvents(t *testing.T) {
	n := newNode(t)
	defer n.startAttentive()()
	const path = "/api/v1/nodes/n1"
	set := func(f func(map[string]any)) {
		n.api.mu.Lock()
		defer n.api.mu.Unlock()
		f(n.api.objects[path])
		n.api.put(path, n.api.objects[path], "MODIFIED")
	}
	for _, unschedulable := range []bool{true, false} {
		set(func(o map[string]any) {
			spec, _ := o["spec"].(map[string]any)
			if spec == nil {
				spec = map[string]any{}
				o["spec"] = spec
			}
			spec["unschedulable"] = unschedulable
		})
		want := "NodeSchedulable: Node n1 status is now: NodeSchedulable"
		if unschedulable {
			want = "NodeNotSchedulable: Node n1 status is now: NodeNotSchedulable"
		}
		n.until(want, n.sent(want))
	}
	set(func(o map[string]any) {
		o["status"].(map[string]any)["nodeInfo"].(map[string]any)["bootID"] = "another"
	})
	n.until("rebooted", n.sent("Rebooted: Node n1 has been rebooted, boot id: "+n.k.machine.bootID))
}

// TestMissingPullSecret: that a secret to pull with is not there is told at each look at the
// pod, also where nothing is pulled.
func TestMissingPullSecret(t *testing.T) {
	n := newNode(t)
	n.config = func(c *Config) { c.Settings.SyncFrequency.Duration = time.Second }
	n.start()
	p := podtest.Pod("p", "c")
	p.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
	p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "none"}, {}, {Name: "neither"}}
	n.api.addPod(p)
	n.until("told", n.sent("FailedToRetrieveImagePullSecret: Unable to retrieve some image pull secrets (none, neither); attempting to pull the image may not succeed."))
}

// TestOverdue: a pod that was to end and does not, in its grace and half of it, is told of
// once; one that its maker deletes is not. What hurries it gives it that time anew.
func TestOverdue(t *testing.T) {
	n := newNode(t)
	n.start()
	n.until("up", func() bool { return n.k.node.Load() != nil })
	w := newWorker(n.k, podtest.Pod("p", "c"))
	w.pod, w.observed = w.inbox.pod, podtest.Observed(podtest.Container("c", podtest.Running, 0))
	w.ended = &ending{grace: new(int64(20)), disruption: "Evicted", began: time.Now()}
	if left := w.tellOverdue(true); left <= 20*time.Second || left > 30*time.Second {
		t.Errorf("looks again after %s", left)
	}
	w.ended.began = time.Now().Add(-31 * time.Second)
	if left := w.tellOverdue(true); left != never || !w.ended.overdue {
		t.Errorf("looks again after %s", left)
	}
	n.until("told", n.sent("ExceededGracePeriod: Container runtime did not kill the pod within specified grace period."))
	for name, e := range map[string]*ending{"deleted": {began: time.Now().Add(-time.Hour)}, "told": w.ended} {
		if w.ended = e; w.tellOverdue(true) != never {
			t.Errorf("%s: looks again", name)
		}
	}
	for name, e := range map[string]ending{"deleted": {}, "evicted, and hurried": {reason: "Evicted", grace: new(int64(600)), disruption: "Evicted"}} {
		w.ended = &e
		w.ended.began = time.Now().Add(-time.Hour)
		w.hasten(&ending{reason: "Evicted", grace: new(int64(1)), disruption: "Evicted"})
		w.pod.DeletionGracePeriodSeconds = new(int64(0))
		if left := w.tellOverdue(true); left <= 9*time.Second || left > 10*time.Second {
			t.Errorf("%s: looks again after %s", name, left)
		}
		w.pod.DeletionGracePeriodSeconds = nil
	}
}

func TestSizeText(t *testing.T) {
	for size, want := range map[uint64]string{1: "1 B", 1024: "1.0 KiB", 3 << 20: "3.0 MiB", 5 << 29: "2.5 GiB", 3 << 40: "3.0 TiB", 5 << 50: "5120.0 TiB"} {
		if got := sizeText(size); got != want {
			t.Errorf("%d: %s, want %s", size, got, want)
		}
	}
}
