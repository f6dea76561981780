package podstatus

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/internal/equal"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/runtimestate"
)

// shownState writes a container's state down in short: "lost" if it was ended with its pod,
// else its exit code or why it waits; after a comma what it ended with before.
func shownState(s *corev1.ContainerStatus) string {
	of := func(state corev1.ContainerState) string {
		switch t := state.Terminated; {
		case t != nil && t.Reason == "ContainerStatusUnknown" && t.ExitCode == 137:
			switch t.Message {
			case "The container could not be located when the pod was terminated":
				return "lost"
			case "The container could not be located when the pod was deleted.  The container used to be Running":
				return "ran"
			}
		case t != nil:
			return fmt.Sprint(t.ExitCode)
		case state.Waiting != nil:
			return state.Waiting.Reason
		case state.Running != nil:
			return "runs"
		}
		return ""
	}
	return strings.TrimSuffix(s.Name+"="+of(s.State)+","+of(s.LastTerminationState), ",")
}

// TestEndedContainers: once a pod has ended so have its containers, each that had its turn.
// Others go on to wait: why the pod failed is shown by those before them.
func TestEndedContainers(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	yes := true
	ran := func(names ...string) (out []corev1.ContainerStatus) {
		for _, n := range names {
			out = append(out, corev1.ContainerStatus{Name: n, State: running, Started: &yes})
		}
		return out
	}
	waits := map[string]corev1.ContainerStateWaiting{"a": {Reason: "ImagePullBackOff"}, "i": {Reason: "ImagePullBackOff"}, "j": {Reason: "CrashLoopBackOff"}}
	a, ai, aij, as := podtest.Pod("p", "a"), podtest.WithInit(podtest.Pod("p", "a"), "i"), podtest.WithInit(podtest.Pod("p", "a"), "i", "j"), podtest.WithInit(podtest.Pod("p", "a"), "s")
	static := func(p *corev1.Pod) *corev1.Pod {
		p = p.DeepCopy()
		p.Annotations = map[string]string{podspec.ConfigSource: "file"}
		return p
	}
	for _, c := range []struct {
		name     string
		pod      *corev1.Pod
		has      []*runtimestate.Container
		old      corev1.PodStatus
		rejected bool
		want     string
	}{
		{name: "never began", pod: a, want: "a=lost"},
		{name: "one of two began", pod: podtest.Pod("p", "a", "b"), has: exited("b", 0), want: "a=lost b=0"},
		{name: "created, never began", pod: a, has: []*runtimestate.Container{podtest.Container("a", podtest.Created, 0)}, want: "a=lost"},
		{name: "ended by itself", pod: podtest.Pod("p", "b"), has: exited("b", 3), want: "b=3"},
		{name: "waits for its next start", pod: a, has: exited("a", 3), want: "a=lost,3"},
		{name: "ran and is gone", pod: a, old: corev1.PodStatus{ContainerStatuses: ran("a")}, want: "a=lost,ran"},
		{name: "in the first init container", pod: aij, want: "i=lost j=CrashLoopBackOff a=ImagePullBackOff"},
		{name: "init done", pod: ai, has: exited("i", 0), want: "i=0 a=lost"},
		{name: "in the second init container", pod: aij, has: exited("i", 0), want: "i=0 j=CrashLoopBackOff a=ImagePullBackOff"},
		{name: "the second init container failed", pod: aij, has: append(exited("i", 0), exited("j", 1)...), want: "i=0 j=lost,1 a=ImagePullBackOff"},
		{name: "the second init container is gone", pod: aij, has: exited("i", 0), old: corev1.PodStatus{InitContainerStatuses: ran("j")}, want: "i=0 j=lost,ran a=ImagePullBackOff"},
		{name: "sidecar never started", pod: as, want: "s=lost a=ImagePullBackOff"},
		{name: "sidecar started", pod: as, has: exited("s", 0), old: corev1.PodStatus{InitContainerStatuses: ran("s")}, want: "s=0 a=lost"},
		{name: "sidecar is gone", pod: as, has: exited("a", 3), old: corev1.PodStatus{InitContainerStatuses: ran("s")}, want: "s=lost,ran a=lost,3"},
		{name: "rejected", pod: a, rejected: true},
		{name: "static", pod: static(a), want: "a=lost"},
		{name: "static, init done", pod: static(ai), has: exited("i", 0), want: "i=0 a=ImagePullBackOff"},
		{name: "static, in the first init container", pod: static(ai), want: "i=lost a=ImagePullBackOff"},
		{name: "ephemeral container", pod: withEphemeral(a, "e"), want: "a=lost e=ContainerCreating"},
		{name: "ephemeral container is gone", pod: withEphemeral(a, "e"), old: corev1.PodStatus{EphemeralContainerStatuses: ran("e")}, want: "a=lost e=ContainerCreating,ran"},
	} {
		t.Run(c.name, func(t *testing.T) {
			last := c.old
			for range 2 { // it stays so
				s := statusOf(c.pod, podtest.Observed(c.has...), func(in *Input) {
					in.Old, in.Waiting, in.Terminal, in.Ended = &last, waits, true, &Ending{Reason: "Evicted", Rejected: c.rejected}
				})
				var got []string
				for _, is := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses) {
					got = append(got, shownState(&is))
					if is.Ready != (is.Name == "i" && is.State.Terminated != nil && is.State.Terminated.ExitCode == 0) || is.Started != nil && *is.Started {
						t.Errorf("%s is ready or started", is.Name)
					}
				}
				if got := strings.Join(got, " "); got != c.want || s.Phase != corev1.PodFailed || s.Reason != "Evicted" {
					t.Fatalf("%s %s: %s, want %s", s.Phase, s.Reason, got, c.want)
				}
				if last.Phase != "" && !equal.Objects(&last, &s) {
					t.Errorf("it was\n%+v\nand is\n%+v", last, s)
				}
				last = s
			}
		})
	}
}

func exited(name string, code int32) []*runtimestate.Container {
	return []*runtimestate.Container{podtest.Container(name, podtest.Exited, code)}
}

func withEphemeral(p *corev1.Pod, name string) *corev1.Pod {
	p = p.DeepCopy()
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name}}}
	return p
}
