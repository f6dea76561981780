package kubelet

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/server"
)

func TestCheckpoint(t *testing.T) {
	n := newNode(t)
	n.start()
	n.api.addPod(podtest.Pod("web", "a"))
	n.until("ready", n.ready("web"))
	h := host{n.k}
	at := server.Target{Namespace: "ns", Pod: "web", Container: "a"}
	for _, c := range []struct {
		change  func(*server.Target)
		timeout int64
		want    string
	}{
		{func(t *server.Target) { t.Pod = "other" }, 0, "pod does not exist"},
		{func(t *server.Target) { t.Container = "b" }, 0, "container b does not exist"},
		{func(*server.Target) {}, -1, "CheckpointContainer requires the timeout value to be > 0"},
		{func(*server.Target) {}, 0, "rpc error: code = Unknown desc = checkpoint/restore support not available"},
	} {
		to := at
		c.change(&to)
		if _, err := h.Checkpoint(t.Context(), to, c.timeout); err == nil || err.Error() != c.want {
			t.Errorf("%+v, %d s: %v, want %s", to, c.timeout, err, c.want)
		}
	}
	var of, written string
	n.rt.OnCheckpoint = func(container, path string, seconds int64) {
		of, written = fmt.Sprintf("%s within %d s", container, seconds), path
	}
	for timeout, want := range map[int64]string{0: "a within 120 s", 5: "a within 120 s", 300: "a within 300 s", math.MaxInt64: "a within 3600 s"} {
		path, err := h.Checkpoint(t.Context(), at, timeout)
		if err != nil {
			t.Fatal(err)
		}
		if dir, name := filepath.Split(path); dir != n.dir+"/kubelet/checkpoints/" || !strings.HasPrefix(name, "checkpoint-web_ns-a-") || !strings.HasSuffix(name, ".tar") {
			t.Errorf("it is at %s", path)
		}
		if of != want || written != path {
			t.Errorf("timeout %d: %q at %s, want %q at %s", timeout, of, written, want, path)
		}
	}
	if info, err := os.Stat(n.dir + "/kubelet/checkpoints"); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory of checkpoints: %v, %v", info, err)
	}
	all := asked(t, n.k, "/metrics")
	if got := total(all["kubelet_runtime_operations_total"], "checkpoint_container"); got != 5 {
		t.Errorf("%v calls are counted, of 5", got)
	}
}
