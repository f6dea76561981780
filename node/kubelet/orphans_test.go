package kubelet

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podtest"
)

// TestOrphanEndsWithItsHook: a pod deleted while the kubelet was away ends as
// its spec said, although nobody has the spec any more.
func TestOrphanEndsWithItsHook(t *testing.T) {
	n := newNode(t)
	var mu sync.Mutex
	var hooks []string
	n.rt.OnExec = func(container string, cmd []string) (string, int32) {
		mu.Lock()
		defer mu.Unlock()
		hooks = append(hooks, container+": "+strings.Join(cmd, " "))
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
	if got := total(asked(t, n.k, "/metrics")["kubelet_orphaned_runtime_pods_total"], ""); got != 1 {
		t.Errorf("%v orphans are counted", got)
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(hooks, []string{"main: save all"}) {
		t.Errorf("hooks run: %v", hooks)
	}
}

// TestOrphanDirectories: what no pod stands for is counted, and what could not be removed
// of it for as long as it is there.
func TestOrphanDirectories(t *testing.T) {
	m := newMetrics()
	o := orphans{k: &Kubelet{metrics: m}, failures: map[string]bool{}}
	shows := func(want, errs float64) {
		t.Helper()
		var all, failed dto.Metric
		if err := errors.Join(m.orphanDirs.Write(&all), m.orphanDirErrors.Write(&failed)); err != nil {
			t.Fatal(err)
		}
		if all.GetGauge().GetValue() != want || failed.GetGauge().GetValue() != errs {
			t.Errorf("%v, %v could not be removed", all.GetGauge().GetValue(), failed.GetGauge().GetValue())
		}
	}
	o.count(map[string]bool{"a": true, "b": true})
	shows(2, 0)
	o.failed("a", errors.New("it is busy"))
	o.failed("b", nil)
	o.count(map[string]bool{"a": true})
	shows(1, 1)
	o.count(map[string]bool{})
	shows(0, 0)
}
