package kubelet

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/record"

	"knarr/node/kubelet/podtest"
)

// TestContainersNamedAsOperations: what a user calls a container has no meaning
// for what the kubelet does beside it. Such a container fails as others do, and
// each step of it is seen.
func TestContainersNamedAsOperations(t *testing.T) {
	n := newNode(t)
	defer n.start()()
	for _, name := range []string{"status", "volumes", "sandbox", "clean", "delete", "remove"} {
		seen := make(chan watchEvent, 256)
		n.api.mu.Lock()
		n.api.watches[seen] = "/api/v1/namespaces/ns/pods/p-" + name
		n.api.mu.Unlock()
		p := podtest.Pod("p-"+name, name)
		p.Spec.Containers[0].Image = "missing:1"
		n.api.addPod(p)
		n.until("backing off", n.waits("p-"+name, "ImagePullBackOff"))
		n.api.mu.Lock()
		delete(n.api.watches, seen)
		n.api.mu.Unlock()
		close(seen)
		shown := false
		for e := range seen {
			shown = shown || strings.Contains(string(e.body), `"reason":"ErrImagePull"`)
		}
		if !shown {
			t.Errorf("container %s: ErrImagePull was never shown", name)
		}
	}
}

// TestFailedStarts: a container that cannot be made is tried again soon at first, then every
// ten to fifteen seconds for as long as that goes on, not always at the same time, and each
// try is counted in its event.
func TestFailedStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := record.NewFakeRecorder(100)
		pod, seen := podtest.Pod("p", "c"), map[time.Duration]bool{}
		w := &worker{k: &Kubelet{events: events}, pod: pod, retries: map[opKey]*retry{}, containers: map[string]*containerState{}}
		for i := range 40 {
			w.failed(t.Context(), &pod.Spec.Containers[0], waitError{"CreateContainerError", "no such device"})
			left := w.retryIn(opKey{kind: opStart, of: "c"})
			if d := min(time.Second<<min(i, 10), 10*time.Second); left < d || left > d+d/2 {
				t.Errorf("try %d: again in %v", i, left)
			}
			seen[left] = true
			if got := <-events.Events; got != "Warning Failed Error: no such device" {
				t.Error(got)
			}
			time.Sleep(left)
		}
		if len(seen) < 10 {
			t.Errorf("always at the same time: %v", seen)
		}
	})
}

// TestOperationKeysAreDistinct: by kind and whole name.
func TestOperationKeysAreDistinct(t *testing.T) {
	w := &worker{ops: map[opKey]*op{}, retries: map[opKey]*retry{}}
	for _, key := range []opKey{{kind: opPull, of: "web2"}, {kind: opStart, of: "sandbox"}, {opShorten, "id", 5}} {
		w.ops[key] = &op{key: key}
		w.retryLater(key, time.Hour, time.Hour)
	}
	for _, key := range []opKey{{kind: opPull, of: "web"}, {kind: opStart, of: "web2"}, {kind: opSandbox}, {kind: opStopSandbox, of: "sandbox"}, {opShorten, "id", 4}, {kind: opKill, of: "id"}} {
		if w.busy(key) || w.retryIn(key) > 0 {
			t.Errorf("%s: taken for another operation", key)
		}
	}
	if !w.busy(opKey{kind: opPull, of: "web2"}) || !w.anyBusy(opVolumes, opStart) || w.anyBusy(opSandbox, opKill) || !w.ending("id") || w.ending("i") {
		t.Error("what is under way is not known")
	}
	w.retryNow(opKey{kind: opPull, of: "web2"})
	if w.retryIn(opKey{kind: opPull, of: "web2"}) != 0 || w.retryIn(opKey{kind: opStart, of: "sandbox"}) == 0 {
		t.Error("the wrong operation may be tried again")
	}
}
