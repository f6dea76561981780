package kubelet

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestImageLoadedWhileWaiting: a pod that waits for an image starts when the
// image comes, however long it would have waited for its next pull.
func TestImageLoadedWhileWaiting(t *testing.T) {
	for _, notifies := range []bool{true, false} {
		n := newNode(t)
		changed := make(chan struct{}, 1)
		n.config = func(c *Config) {
			if notifies {
				c.ImagesChanged = changed
			}
		}
		stop := n.start()
		n.api.addPod(user("if-not-present", "missing:1", "", corev1.PullIfNotPresent))
		n.api.addPod(user("never", "missing:1", "", corev1.PullNever))
		n.api.addPod(user("always", "missing:1", "", corev1.PullAlways))
		n.until("waits", n.waits("if-not-present", "ImagePullBackOff"))
		n.until("waits", n.waits("always", "ImagePullBackOff"))
		n.until("waits", n.waits("never", "ErrImageNeverPull"))
		n.k.pulls.mu.Lock()
		for _, f := range n.k.pulls.fails {
			f.delay.cur = time.Hour
		}
		n.k.pulls.mu.Unlock()
		n.rt.Load("missing:1")
		if notifies {
			changed <- struct{}{}
		}
		n.until("started", n.ready("if-not-present"))
		n.until("started", n.ready("never"))
		if got := n.pulls(); got != 2 {
			t.Errorf("notifies %v: %d pulls", notifies, got)
		}
		n.k.imageWaits.mu.Lock()
		if got := len(n.k.imageWaits.pods); got > 2 {
			t.Errorf("notifies %v: %d pods wait", notifies, got)
		}
		n.k.imageWaits.mu.Unlock()
		stop()
	}
}
