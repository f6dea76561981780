package shim

import (
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
)

// maxStarting bounds the processes of one container that are being started, maxStartingPod
// those of all containers of a pod, and maxStartingAll those of a node: each holds a thread of
// this program, of which it has 10,000, and a container can stop a process halfway. The last
// bound is for everybody, and so one that pods which stop theirs must not reach: of these
// places the last keptStarting are for pods that have less than fewStarting.
const (
	maxStarting, maxStartingPod, maxStartingAll = 16, 32, 2000
	keptStarting, fewStarting                   = 500, 4
)

// starts counts the processes that are being started in containers.
type starts struct {
	mu         sync.Mutex
	all        int
	pods       map[key]int
	containers map[key]int
}

// take counts one more for a container of a pod, until back is called. Its error is that of
// the first bound which is reached, and has ErrResourceExhausted.
func (s *starts) take(container, pod key) (back func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const bound = "%s %d processes that do not get to their start: %w"
	switch {
	case s.containers[container] >= maxStarting:
		return nil, fmt.Errorf(bound, "container "+container.id+" has", maxStarting, errdefs.ErrResourceExhausted)
	case s.pods[pod] >= maxStartingPod:
		return nil, fmt.Errorf(bound, "the containers of sandbox "+pod.id+" have", maxStartingPod, errdefs.ErrResourceExhausted)
	case s.all >= maxStartingAll-keptStarting && s.pods[pod] >= fewStarting:
		return nil, fmt.Errorf(bound, "the containers of this node have", s.all, errdefs.ErrResourceExhausted)
	case s.all >= maxStartingAll:
		return nil, fmt.Errorf(bound, "the containers of this node have", maxStartingAll, errdefs.ErrResourceExhausted)
	}
	if s.pods == nil {
		s.pods, s.containers = map[key]int{}, map[key]int{}
	}
	s.all++
	s.pods[pod]++
	s.containers[container]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		less(s.pods, pod)
		less(s.containers, container)
	}, nil
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
