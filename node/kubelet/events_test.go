package kubelet

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/podstatus"
	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/volume"
)

// TestMessagesAreTruncated: what a registry answers, or an image holds, is not
// written to etcd in any length.
func TestMessagesAreTruncated(t *testing.T) {
	n := newNode(t)
	n.rt.Registry = func(string, *cri.AuthConfig) error {
		return status.Error(codes.Unknown, strings.Repeat("long words ", 20_000))
	}
	defer n.start()()
	n.api.addPod(user("failed", "reg.io/long:1", "", corev1.PullAlways))
	n.until("backing off", n.waits("failed", "ImagePullBackOff"))
	if got := len(n.api.pod("failed").Status.ContainerStatuses[0].State.Waiting.Message); got > podstatus.MaxMessage+3 {
		t.Errorf("a message of %d bytes in the status", got)
	}
	n.until("an event", func() bool { return strings.Contains(strings.Join(n.api.events(), "\n"), "Failed to pull image") })
	for _, e := range n.api.events() {
		if len(e) > podstatus.MaxMessage+1024 {
			t.Errorf("an event of %d bytes: %.80s", len(e), e)
		}
	}
}

// TestEventsOfWhatLasts: that of what keeps a pod from starting is written again while it
// does, and at once when it begins anew.
func TestEventsOfWhatLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := record.NewFakeRecorder(100)
		w := &worker{k: &Kubelet{events: events}, pod: podtest.Pod("p", "c"), lastEvents: map[string]pastEvent{}}
		for range 60 {
			w.eventOnce(volumeEvent+"v", corev1.EventTypeWarning, "FailedMount", "it is not there")
			w.eventAfter(stateEventAgain, "resize", corev1.EventTypeWarning, "ResizeDeferred", "it is full")
			time.Sleep(time.Minute)
		}
		if got := len(events.Events); got != 30+2 {
			t.Errorf("%d events in an hour, want one each two minutes, and one each half hour", got)
		}
		w.eventOnce(volumeEvent+"v", corev1.EventTypeWarning, "FailedMount", "it is of another kind")
		w.retries = map[opKey]*retry{}
		w.mounted(w.pod, nil, time.Time{}, nil)
		w.eventOnce(volumeEvent+"v", corev1.EventTypeWarning, "FailedMount", "it is of another kind")
		if got := len(events.Events); got != 30+2+2 {
			t.Error("other words were held back, or the same ones after it was there")
		}
	})
}

// TestWarningsAreLogged: the log has why a pod does not start, once, and nothing of what is
// as it should be; a volume that is waited for has no event, and is in the log too.
func TestWarningsAreLogged(t *testing.T) {
	k := &Kubelet{}
	k.events = truncatedEvents{record.NewFakeRecorder(100), &k.news}
	w := &worker{k: k, pod: podtest.Pod("p", "c"), lastEvents: map[string]pastEvent{}}
	w.retries = map[opKey]*retry{}
	pod := w.pod
	ref := containerReference(pod, &pod.Spec.Containers[0])
	slow := fmt.Errorf("volume data: %w", volume.ErrTimedOut)
	text := logged(t, func() {
		for range 3 {
			k.events.Event(pod, corev1.EventTypeNormal, "Pulling", "all is well")
			k.events.Event(ref, corev1.EventTypeWarning, "Failed", "no such image")
			k.events.AnnotatedEventf(k.nodeRef(), nil, corev1.EventTypeWarning, "FreeDiskSpaceFailed", "%d bytes", 1)
			w.mounted(pod, nil, time.Time{}, errors.Join(slow))
		}
	})
	for _, want := range []string{
		`msg=event pod=` + podspec.Format(pod) + ` reason=Failed message="no such image" of=spec.containers{c}`,
		`reason=FreeDiskSpaceFailed message="1 bytes"`, `err="volume data: timed out waiting for the condition"`,
	} {
		if strings.Count(text, want) != 1 || strings.Count(text, "\n") != 3 {
			t.Errorf("want %s once in\n%s", want, text)
		}
	}
}
