package kubelet

import (
	"context"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/eviction"
	"knarr/node/kubelet/podtest"
)

// TestPullsAreCalledOff: a pull that takes the disk ends before another pod is evicted for it,
// and says why; a pod is evicted where the pull was not to blame.
func TestPullsAreCalledOff(t *testing.T) {
	for name, blame := range map[string]bool{"the pull takes the disk": true, "something else does": false} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.rt.Registry = func(string, *cri.AuthConfig) error { return nil }
			var taken atomic.Bool
			n.rt.Pulling = func(ctx context.Context, _ string) {
				taken.Store(true)
				<-ctx.Done()
				taken.Store(!blame)
			}
			n.statfs = func(_ string, s *unix.Statfs_t) error {
				s.Bsize, s.Blocks, s.Bavail, s.Files, s.Ffree = 4096, 1000<<10, 500<<10, 1000, 1000
				if taken.Load() {
					s.Bavail = 50 << 10
				}
				return nil
			}
			stop := n.start()
			defer stop()
			n.api.addPod(podtest.Pod("p", "c"))
			n.until("the pod", n.ready("p"))
			n.rt.SetLayer("c", 1<<20)
			puller := podtest.Pod("puller", "large")
			puller.Spec.Containers[0].Image = "reg.io/large:1"
			n.api.addPod(puller)
			n.until("the pull", taken.Load)
			hard, errs := eviction.Parse(map[string]string{"nodefs.available": "10%"}, nil, nil, nil, false)
			if errs != nil {
				t.Fatal(errs)
			}
			n.k.relieve(t.Context(), hard, &eviction.State{}, &evicting{})
			n.until("the pull says why", n.sent(`Failed to pull image "reg.io/large:1": the pull was called off, since the node is short of disk`))
			if evicted := n.k.worker(podtest.Pod("p").UID).evicted.Load() != nil; evicted == blame {
				t.Errorf("evicted: %t", evicted)
			}
		})
	}
}
