package shim

import (
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
)

// A bound is how many of something a container, all of a pod, and all of a node may have. The
// node's is for everybody, and so one that pods which want all of it must not reach: the last
// kept places are for pods that have less than few.
type bound struct {
	container, pod, all int
	kept, few           int
	// of is what is counted, for who is refused one more.
	of string
}

var (
	// starting are processes that are being started: each holds a thread of this program, of
	// which it has 10,000, and a container can stop a process halfway.
	starting = bound{16, 32, 2000, 500, 4, "processes that do not get to their start"}
	// undeleted are processes that were added and not deleted yet: each holds three
	// descriptors, of which this program has as many as it may. Who started one that has ended
	// waits until nobody has its output any more, which a container decides.
	undeleted = bound{500, 1000, 20000, 5000, 16, "processes that are not deleted"}
)

// places counts what containers have of something.
type places struct {
	mu         sync.Mutex
	all        int
	pods       map[key]int
	containers map[key]int
}

// take counts one more for a container of a pod, until back is called. Its error is that of
// the first bound which is reached, and has ErrResourceExhausted.
func (s *places) take(b bound, container, pod key) (back func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := func(who string, n int) error {
		return fmt.Errorf("%s %d %s: %w", who, n, b.of, errdefs.ErrResourceExhausted)
	}
	switch {
	case s.containers[container] >= b.container:
		return nil, full("container "+container.id+" has", b.container)
	case s.pods[pod] >= b.pod:
		return nil, full("the containers of sandbox "+pod.id+" have", b.pod)
	case s.all >= b.all-b.kept && s.pods[pod] >= b.few:
		return nil, full("the containers of this node have", s.all)
	case s.all >= b.all:
		return nil, full("the containers of this node have", b.all)
	}
	if s.pods == nil {
		s.pods, s.containers = map[key]int{}, map[key]int{}
	}
	s.all++
	s.pods[pod]++
	s.containers[container]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		less(s.pods, pod)
		less(s.containers, container)
	}), nil
}

// less counts one less.
func less(counts map[key]int, k key) {
	if counts[k]--; counts[k] == 0 {
		delete(counts, k)
	}
}

// podOf is the sandbox of a container by what containerd annotates containers with: its own id
// where there is none.
func podOf(container key, annotations map[string]string) key {
	if id := annotations["io.kubernetes.cri.sandbox-id"]; id != "" {
		container.id = id
	}
	return container
}
