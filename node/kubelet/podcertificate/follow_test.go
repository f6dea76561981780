package podcertificate

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

// watches counts those that were started, and those that are there.
func (n *node) watches() (started, there *int) {
	started, there = new(int), new(int)
	n.client.PrependWatchReactor("podcertificaterequests", func(a ktesting.Action) (bool, watch.Interface, error) {
		if got := a.(ktesting.WatchAction).GetWatchRestrictions().Fields.String(); got != "spec.nodeName=n" || a.GetNamespace() != "" {
			n.Errorf("watches %q in %q", got, a.GetNamespace())
		}
		w, err := n.client.Tracker().Watch(a.GetResource(), a.GetNamespace())
		*started, *there = *started+1, *there+1
		return true, &counted{w, there}, err
	})
	return started, there
}

type counted struct {
	watch.Interface
	there *int
}

func (c *counted) Stop() { *c.there--; c.Interface.Stop() }

// TestOneWatch: however many sources wait for signers that never answer, there is one watch,
// and none once the pods are gone or all is decided.
func TestOneWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		started, there := n.watches()
		for i := range 50 {
			if _, _, err := n.Get(n.Context(), n.pod, "v", i, n.of); !errors.Is(err, errPending) {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		time.Sleep(time.Hour)
		if *started != 1 || *there != 1 {
			t.Errorf("%d watches were started, %d are there", *started, *there)
		}
		n.Forget(n.pod.UID)
		synctest.Wait()
		if *there != 0 || len(n.requests.undecided) != 0 {
			t.Errorf("%d watches, for a pod that is gone", *there)
		}
		n.group.Wait()
	})
}

// TestFollowedAgain: a watch that fails is started anew, and tells of what was decided
// meanwhile.
func TestFollowedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		_, there := n.watches()
		var broken atomic.Bool
		broken.Store(true)
		n.client.PrependReactor("list", "podcertificaterequests", func(ktesting.Action) (bool, runtime.Object, error) {
			if broken.Load() {
				return true, nil, errors.New("no connection")
			}
			return false, nil, nil
		})
		n.get(pending)
		broken.Store(false)
		n.decide(certificatesv1beta1.PodCertificateRequestConditionTypeDenied, nil)
		broken.Store(true)
		if n.changed != 0 {
			t.Errorf("told %d times by nothing", n.changed)
		}
		time.Sleep(10 * time.Second)
		broken.Store(false)
		time.Sleep(followAgain[1])
		synctest.Wait()
		if n.changed != 1 || *there != 0 {
			t.Errorf("told %d times, %d watches", n.changed, *there)
		}
		n.group.Wait()
	})
}

// TestDecidedEarly: a signer that decides before the kubelet knows its request's name is
// heard, too.
func TestDecidedEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.watches()
		n.get(pending) // which the watch is there for
		other := cache.ObjectName{Namespace: "default", Name: "fast"}
		n.making()
		n.done(other)
		n.follow("other", &certificatesv1beta1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "fast"}})
		synctest.Wait()
		if n.changed != 1 || n.requests.asking != 0 || n.requests.early != nil || len(n.requests.undecided) != 1 {
			t.Errorf("told %d times, %+v", n.changed, n.requests)
		}
		n.done(other) // nobody asks any more
		if n.requests.early != nil {
			t.Errorf("remembered: %v", n.requests.early)
		}
	})
}
