package kubelet

import (
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podtest"
)

// TestOrphanEndsWithItsHook: a pod deleted while the kubelet was away ends as
// its spec said, although nobody has the spec any more.
func TestOrphanEndsWithItsHook(t *testing.T) {
	n := newNode(t)
	var mu sync.Mutex
	var asked []string
	n.rt.OnExec = func(container string, cmd []string) (string, int32) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, container+": "+strings.Join(cmd, " "))
		return "", 0
	}
	stop := n.start()
	p := podtest.Pod("db", "main")
	grace := int64(20)
	p.Spec.TerminationGracePeriodSeconds = &grace
	p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"save", "all"}}}}
	n.api.addPod(p)
	n.until("ready", n.ready("db"))
	stop()
	n.api.dropPod("db")
	n.start()
	n.until("collected", n.rt.Empty)
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(asked, []string{"main: save all"}) {
		t.Errorf("hooks run: %v", asked)
	}
}
