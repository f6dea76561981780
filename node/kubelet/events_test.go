package kubelet

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podstatus"
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
