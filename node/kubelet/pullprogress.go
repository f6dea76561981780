package kubelet

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Events tell of a long pull after the first of these times and then ever more seldom:
// of what is told of one object, the API server's clients keep one in five minutes.
const (
	progressFirst = 30 * time.Second
	progressMost  = 5 * time.Minute
)

// followPull tells in events how much of an image is there, beside the pull, until stop
// is called.
func (k *Kubelet) followPull(ctx context.Context, ref *corev1.ObjectReference, image string) (stop func()) {
	if k.cfg.PullProgress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	k.wg.Go("kubelet: pull progress", func() {
		defer close(ended)
		tellProgress(ctx, func() {
			if done, total, ok := k.cfg.PullProgress(ctx, image); ok && total > 0 && ctx.Err() == nil {
				k.events.Event(ref, corev1.EventTypeNormal, "PullProgress", progressMessage(image, done, total))
			}
		})
	})
	return func() {
		cancel()
		<-ended
	}
}

// tellProgress calls tell at growing intervals until ctx ends.
func tellProgress(ctx context.Context, tell func()) {
	for wait := progressFirst; sleep(ctx, wait); wait = min(2*wait, progressMost) {
		tell()
	}
}

func progressMessage(image string, done, total int64) string {
	return fmt.Sprintf("Pulling image %q: %.1f of %.1f MB are there (%d%%)", image, float64(done)/1e6, float64(total)/1e6, min(100*done/total, 100))
}
