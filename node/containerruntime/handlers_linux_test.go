package containerruntime

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// otherRuntime gives a directory with upstream's shim, and runc by crun's name.
func otherRuntime(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, of := range map[string]string{runcShim: runcShim, "crun": "runc"} {
		built, err := filepath.Abs(filepath.Join("../../build", of))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(built); err != nil {
			t.Skip("needs upstream's shim and runc: make build/runc build/containerd-shim-runc-v2")
		}
		if err := os.Symlink(built, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const otherLoop = "while :; do /bin/busybox sleep 1; done # of another runtime"

// TestOtherRuntime: a pod that asks for crun runs by it, beside those of the own shim,
// over a restart of the runtime, and nothing is left of it.
func TestOtherRuntime(t *testing.T) {
	if isolated(t) {
		return
	}
	t.Setenv("PATH", otherRuntime(t)+":"+os.Getenv("PATH"))
	var n *node
	t.Cleanup(func() { // after the node's own, which purges
		all, err := processes()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			if isShim(p, n.config.withDefaultsForTest(t).Socket()) || strings.Contains(strings.Join(p.args, " "), otherLoop) {
				t.Errorf("left: %v", p)
			}
		}
	})
	n = newNode(t)
	status, err := n.Status(t.Context(), &cri.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, h := range status.RuntimeHandlers {
		names = append(names, h.Name)
	}
	if all := strings.Join(names, " "); !strings.Contains(all, "crun") {
		t.Fatalf("the handlers are %q, without crun", all)
	}

	n.handler = "crun"
	sandbox, container := n.shell(t, "other", otherLoop)
	n.handler = ""
	if got := n.exec(t, container, "/bin/busybox", "echo", "in it"); got != "in it" {
		t.Errorf("a command in it says %q", got)
	}
	config := n.config.withDefaultsForTest(t)
	if of, _ := filepath.Glob(filepath.Join(config.State, "crun", "*", container)); len(of) == 0 {
		t.Error("the runtime that was asked for knows nothing of the container")
	}
	stats, err := n.ContainerStats(t.Context(), &cri.ContainerStatsRequest{ContainerId: container})
	if err != nil || stats.Stats.GetMemory().GetWorkingSetBytes().GetValue() == 0 {
		t.Errorf("it is not measured: %v, %v", stats, err)
	}
	n.stop()
	n.start(t)
	n.await(t, container, cri.ContainerState_CONTAINER_RUNNING)
	if err := n.remove(t.Context(), sandbox); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(config.State, "crun", "*", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	// One stays, with a pod of the own shim, for Purge to find.
	n.handler = "crun"
	n.shell(t, "stays", otherLoop)
	n.handler = ""
	n.shell(t, "too", otherLoop)
}

// TestHandlerOfOwnRuntime: another name of the built-in runtime runs pods as the default
// does, over a restart too.
func TestHandlerOfOwnRuntime(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNodeWith(t, func(c *Config) { c.Handlers = []Handler{{Name: "test-handler", Program: "runc"}} })
	status, err := n.Status(t.Context(), &cri.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(status.RuntimeHandlers, func(h *cri.RuntimeHandler) bool {
		return h.Name == "test-handler" && h.Features.GetRecursiveReadOnlyMounts()
	}) {
		t.Errorf("the handlers are %v", status.RuntimeHandlers)
	}
	n.handler = "test-handler"
	sandbox, container := n.shell(t, "alias", "exec sleep 1000")
	n.handler = ""
	n.stop()
	n.start(t)
	n.await(t, container, cri.ContainerState_CONTAINER_RUNNING)
	if got := n.exec(t, container, "/bin/busybox", "echo", "in it"); got != "in it" {
		t.Errorf("a command in it says %q", got)
	}
	if n.shimPid(t) == 0 {
		t.Error("the built-in runtime has no shim")
	}
	if err := n.remove(t.Context(), sandbox); err != nil {
		t.Fatal(err)
	}
	n.nothingLeft(t)
}
