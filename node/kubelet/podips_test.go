package kubelet

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podstatus"
	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/runtimestate"
)

func TestShownIPs(t *testing.T) {
	sandbox := func(state cri.PodSandboxState, ip string) runtimestate.Sandbox {
		return runtimestate.Sandbox{PodSandboxStatus: &cri.PodSandboxStatus{State: state, Network: &cri.PodSandboxNetworkStatus{Ip: ip}}}
	}
	ready, gone := cri.PodSandboxState_SANDBOX_READY, cri.PodSandboxState_SANDBOX_NOTREADY
	exited := []*runtimestate.Container{podtest.Container("a", podtest.Exited, 0)}
	for _, c := range []struct {
		name string
		v    runtimestate.Pod
		want []string
	}{
		{"ready", runtimestate.Pod{Sandboxes: []runtimestate.Sandbox{sandbox(ready, "10.0.0.2")}}, []string{"10.0.0.2"}},
		{"its network is not there yet", runtimestate.Pod{Sandboxes: []runtimestate.Sandbox{sandbox(ready, "")}}, nil},
		{"not ready", runtimestate.Pod{Sandboxes: []runtimestate.Sandbox{sandbox(gone, "10.0.0.2")}}, []string{"10.0.0.1"}},
		{"the newest is not ready", runtimestate.Pod{Sandboxes: []runtimestate.Sandbox{sandbox(gone, ""), sandbox(ready, "10.0.0.2")}}, nil},
		{"removed, a container is left", runtimestate.Pod{Containers: exited}, []string{"10.0.0.1"}},
		{"nothing is left", runtimestate.Pod{}, nil},
	} {
		if got := shownIPs(&c.v, []string{"10.0.0.1"}); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestAddressWithoutSandbox: a pod whose sandbox is gone shows where it was until it is
// somewhere else.
func TestAddressWithoutSandbox(t *testing.T) {
	n := newNode(t)
	var refuse atomic.Bool
	n.rt.Fail = func(method string) error {
		if method == "RunPodSandbox" && refuse.Load() {
			return errors.New("no room")
		}
		return nil
	}
	defer n.start()()
	n.api.addPod(podtest.Pod("p", "c"))
	n.until("ready", n.ready("p"))
	was := n.api.pod("p").Status.PodIP
	refuse.Store(true)
	all, err := n.rt.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
	if err != nil || len(all.Items) != 1 {
		t.Fatal(all, err)
	}
	if _, err := n.rt.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: all.Items[0].Id}); err != nil {
		t.Fatal(err)
	}
	n.until("shown without a sandbox", func() bool {
		c := podstatus.FindCondition(n.api.pod("p").Status.Conditions, corev1.PodReadyToStartContainers)
		return c != nil && c.Status == corev1.ConditionFalse
	})
	if s := n.api.pod("p").Status; s.PodIP != was || len(s.PodIPs) != 1 {
		t.Errorf("it was %s and is %s, %v", was, s.PodIP, s.PodIPs)
	}
	refuse.Store(false)
	n.until("somewhere else", func() bool { return n.api.pod("p").Status.PodIP != was })
	if n.api.pod("p").Status.PodIP == "" {
		t.Error("it is nowhere")
	}
}
