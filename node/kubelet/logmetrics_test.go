package kubelet

import (
	"os"
	"path/filepath"
	"testing"

	"knarr/node/kubelet/podtest"
)

// TestLogSizes: how much the logs of a container take is shown for those that have begun.
func TestLogSizes(t *testing.T) {
	n := newNode(t)
	n.start()
	pod := podtest.Pod("web", "c")
	pod.Spec.InitContainers = podtest.Pod("init", "first").Spec.Containers
	n.api.addPod(podtest.Use(pod))
	n.until("the first one runs", func() bool { return len(n.rt.Running()) > 0 })
	for _, name := range []string{"first", "c"} {
		dir := filepath.Join(n.k.podLogDir(n.k.worker(pod.UID).shown.Load().pod), name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "0.log"), make([]byte, 100000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.until("its logs", func() bool {
		return total(asked(t, n.k, "/metrics")["kubelet_container_log_filesystem_used_bytes"], "first") >= 100000
	})
	all := asked(t, n.k, "/metrics")
	if got := all["kubelet_container_log_filesystem_used_bytes"]; len(got.Metric) != 1 {
		t.Errorf("%v", got)
	}
	upstreamNames(t, all)
}
