package kubelet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podtest"
)

func ownUsers(name string) *corev1.Pod {
	p := podtest.Pod(name, name)
	p.Spec.HostUsers = new(false)
	return p
}

// users is the user namespace that the runtime was asked for, of a pod's sandbox and of
// what its container has mounted.
func (n *node) users(pod string) string {
	sandbox, mounts := n.rt.Namespaces(pod).GetUsernsOptions(), n.rt.Mounts(pod)
	out := sandbox.GetMode().String()
	for _, m := range sandbox.GetUids() {
		out += fmt.Sprintf(" %d-%d", m.HostId, m.HostId+m.Length)
	}
	for _, m := range mounts {
		if sandbox.GetMode() == cri.NamespaceMode_POD && (len(m.UidMappings) != 1 || m.UidMappings[0].HostId != sandbox.Uids[0].HostId || len(m.GidMappings) != 1) {
			out += " but not " + m.ContainerPath
		}
	}
	return out
}

// TestUserNamespaces: pods that ask for it have users of their own, the same after a
// restart of the kubelet, and others do not.
func TestUserNamespaces(t *testing.T) {
	n := newNode(t)
	n.rt.Handlers = []*cri.RuntimeHandler{{Features: &cri.RuntimeHandlerFeatures{UserNamespaces: true}}}
	stop := n.start()
	n.until("what the runtime can on the Node", func() bool {
		have := n.k.node.Load()
		return have != nil && have.Status.Features != nil && *have.Status.Features.SupplementalGroupsPolicy
	})
	n.api.addPod(podtest.Pod("host", "host"))
	n.api.addPod(ownUsers("one"))
	n.until("the pods", func() bool { return n.ready("host")() && n.ready("one")() })
	n.api.addPod(ownUsers("two"))
	n.until("another pod", n.ready("two"))
	if n.rt.Namespaces("host").GetUsernsOptions() != nil {
		t.Error("a pod with the node's users has a user namespace")
	}
	whole := func(users string) bool { // a range of a multiple of its length, and nothing amiss
		var first, end int64
		_, err := fmt.Sscanf(users, "POD %d-%d", &first, &end)
		return err == nil && end-first == 65536 && first > 0 && first%65536 == 0 && users == fmt.Sprintf("POD %d-%d", first, end)
	}
	one, two := n.users("one"), n.users("two")
	if !whole(one) || !whole(two) || one == two {
		t.Errorf("the pods have %s and %s", one, two)
	}
	all := asked(t, n.k, "/metrics")
	if got := total(all["kubelet_started_user_namespaced_pods_total"], ""); got != 2 {
		t.Errorf("%v pods with users of their own are counted, of 2", got)
	}
	stop()
	n.start()
	n.until("the pods after a restart", func() bool { return n.ready("one")() && n.ready("two")() })
	n.rt.Exit("one", 1)
	n.until("a container that began anew", func() bool { return n.api.pod("one").Status.ContainerStatuses[0].RestartCount == 1 && n.ready("one")() })
	if got := n.users("one"); got != one {
		t.Errorf("after a restart: %s", got)
	}
	n.api.deletePod("one")
	n.until("the pod gone", func() bool { return n.api.pod("one") == nil })
	if _, err := os.Stat(filepath.Join(n.dir, "kubelet/pods/uid-one/userns")); !os.IsNotExist(err) {
		t.Errorf("its range is kept: %v", err)
	}
	n.api.addPod(ownUsers("three"))
	n.until("a pod in its place", n.ready("three"))
	if got := n.users("three"); !whole(got) || got == two {
		t.Errorf("three: %s beside %s", got, two)
	}
}

// TestUserNamespacesFail: a pod with users of its own whose container cannot be made is
// counted once, however often that is tried; one with the node's is not.
func TestUserNamespacesFail(t *testing.T) {
	n := newNode(t)
	n.rt.Handlers = []*cri.RuntimeHandler{{Features: &cri.RuntimeHandlerFeatures{UserNamespaces: true}}}
	var tried atomic.Int32
	n.rt.Fail = func(method string) error {
		if method == "CreateContainer" {
			tried.Add(1)
			return errors.New("no such program")
		}
		return nil
	}
	n.start()
	n.until("what the runtime can on the Node", func() bool {
		have := n.k.node.Load()
		return have != nil && have.Status.Features != nil && *have.Status.Features.SupplementalGroupsPolicy
	})
	n.api.addPod(podtest.Pod("host", "host"))
	n.api.addPod(ownUsers("own"))
	failed := func() float64 {
		return total(asked(t, n.k, "/metrics")["kubelet_started_user_namespaced_pods_errors_total"], "")
	}
	n.until("several failures of each", func() bool { return tried.Load() >= 6 && failed() > 0 })
	if got := failed(); got != 1 {
		t.Errorf("%v pods with users of their own are counted that failed, of 1", got)
	}
}

// TestNoUserNamespaces: a runtime that has none says so of the pod, in upstream's words.
func TestNoUserNamespaces(t *testing.T) {
	n := newNode(t)
	n.rt.Handlers = []*cri.RuntimeHandler{{Features: &cri.RuntimeHandlerFeatures{}}}
	n.start()
	n.api.addPod(ownUsers("one"))
	n.until("an event", func() bool {
		return strings.Contains(strings.Join(n.api.events(), "\n"), "FailedCreatePodSandBox: Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not support user namespaces")
	})
}
