package kubelet

import (
	"os"
	"testing"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/podtest"
)

// TestFailedRotationIsLogged: which container's log cannot be rotated is in the log, once.
func TestFailedRotationIsLogged(t *testing.T) {
	log := takeLog(t)
	n := newNode(t) // whose runtime opens no log anew
	n.start()
	n.api.addPod(podtest.Pod("p", "c"))
	n.until("ready", n.ready("p"))
	path := n.k.all()[0].shown.Load().observed.Running()[0].LogPath
	if err := os.WriteFile(path, []byte("a line"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		n.k.rotateLarge(t.Context(), 1)
	}
	want := []string{"level=WARN", "Failed to rotate log for container", "pod=" + podspec.Format(n.api.pod("p")), "container=c", "path=" + path}
	if log.count(want...) != 1 {
		t.Errorf("want %q once in\n%s", want, log.all.String())
	}
}
