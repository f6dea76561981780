package kubelet

import (
	"context"
	"fmt"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// notListed is after what time without a list of pods the node is not ready: upstream's.
const notListed = 3 * time.Minute

// listPeriod leaves room within notListed for one list that ends at its deadline, two minutes,
// and another: a node is not given up for one call.
const listPeriod = 30 * time.Second

// followList asks the runtime for its pods once in a while. One may say that it is well
// and answer nothing about pods, and then no pod starts or ends.
func (k *Kubelet) followList(ctx context.Context) {
	if !k.waitRuntime(ctx) {
		return
	}
	now := time.Now()
	k.askedList.Store(&now)
	for wait := listPeriod; ; wait = listPeriod {
		if _, err := k.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{}); err == nil {
			k.listed()
		} else {
			wait = runtimePeriod
		}
		if !sleep(ctx, wait) {
			return
		}
	}
}

// listed notes that the runtime has listed its pods, and that they can be looked at: whoever
// holds the workers for ever keeps all pods from being run as much as a runtime that hangs.
func (k *Kubelet) listed() {
	k.worker("")
	now := time.Now()
	k.metrics.relisted(k.relisted.Swap(&now), now)
}

// listWrong is what the node says of a runtime that lists no pods; "" of one that does, or
// that was not asked yet.
func (k *Kubelet) listWrong() string {
	if last := k.relisted.Load(); last != nil {
		return unlisted(*last, time.Now(), true)
	}
	if first := k.askedList.Load(); first != nil {
		return unlisted(*first, time.Now(), false)
	}
	return ""
}

// unlisted is upstream's sentence about pods that were listed last, or not once, since a time.
// It changes once a minute: each change is written to the Node. Pure.
func unlisted(since, now time.Time, once bool) string {
	switch ago := now.Sub(since); {
	case ago <= notListed:
		return ""
	case once:
		return fmt.Sprintf("PLEG is not healthy: pleg was last seen active %v ago; threshold is %v", ago.Truncate(time.Minute), notListed)
	}
	return "PLEG is not healthy: pleg has yet to be successful"
}
