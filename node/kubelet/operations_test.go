package kubelet

import (
	"strings"
	"testing"
	"time"

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
