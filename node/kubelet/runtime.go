package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	maxMessageSize = 16 << 20
	// relistPeriod is how often everything is looked at although no event came.
	relistPeriod = 60 * time.Second
	// relistBlind is the same for a runtime that sends no events.
	relistBlind = 10 * time.Second
	// runtimePeriod is how often the runtime's own state is asked for.
	runtimePeriod = 5 * time.Second
)

func (k *Kubelet) connect() (*grpc.ClientConn, error) {
	if k.cfg.Runtime != nil {
		return k.cfg.Runtime, nil
	}
	k.ownConn = true
	target := k.cfg.RuntimeEndpoint
	if strings.HasPrefix(target, "/") {
		target = "unix://" + target
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageSize)))
	if err != nil {
		return nil, fmt.Errorf("kubelet: connect to runtime %s: %w", target, err)
	}
	return conn, nil
}

// runtimeName is how container ids begin.
func (k *Kubelet) runtimeName() string {
	if v := k.runtimeInfo.Load(); v != nil {
		return v.RuntimeName
	}
	return "unknown"
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// waitRuntime returns once the runtime has answered; false when ctx ended.
func (k *Kubelet) waitRuntime(ctx context.Context) bool {
	return k.up.wait(ctx)
}

// followRuntime keeps what the node says of the runtime.
func (k *Kubelet) followRuntime(ctx context.Context) {
	for wait := 10 * time.Millisecond; ; {
		changed := k.readRuntime(ctx)
		if changed {
			k.wakeNode()
			for _, w := range k.all() {
				w.poke()
			}
		}
		if k.runtimeUp.Load() && k.network.Load() {
			wait = runtimePeriod
		} else {
			wait = min(2*wait, time.Second)
		}
		if !sleep(ctx, wait) {
			return
		}
	}
}

func (k *Kubelet) readRuntime(ctx context.Context) (changed bool) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if k.runtimeInfo.Load() == nil {
		v, err := k.runtime.Version(ctx, &cri.VersionRequest{})
		if err != nil {
			return k.setRuntime(false, false, "container runtime is down: "+err.Error(), "")
		}
		k.runtimeInfo.Store(v)
	}
	s, err := k.runtime.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return k.setRuntime(false, k.network.Load(), "container runtime is down: "+err.Error(), k.networkMessage())
	}
	k.handlers.Store(&s.RuntimeHandlers)
	up, net, netMsg, msg := false, false, "network state unknown", "container runtime status check may not have completed yet"
	for _, c := range s.Status.GetConditions() {
		switch c.Type {
		case "RuntimeReady":
			up = c.Status
			msg = fmt.Sprintf("container runtime not ready: RuntimeReady=%v reason:%v message:%v", c.Status, c.Reason, c.Message)
		case "NetworkReady":
			net = c.Status
			netMsg = fmt.Sprintf("container runtime network not ready: NetworkReady=%v reason:%v message:%v", c.Status, c.Reason, c.Message)
		}
	}
	return k.setRuntime(up, net, msg, netMsg)
}

func (k *Kubelet) setRuntime(up, net bool, msg, netMsg string) bool {
	a := k.runtimeUp.Swap(up) != up
	b := k.network.Swap(net) != net
	k.runtimeErr.Store(&msg)
	k.netMessage.Store(&netMsg)
	k.asked.open()
	if up {
		k.up.open()
	}
	return a || b
}

func (k *Kubelet) networkMessage() string {
	if m := k.netMessage.Load(); m != nil {
		return *m
	}
	return ""
}

// followEvents wakes pods when the runtime tells of their containers. While it
// does not tell, everything is looked at every ten seconds.
func (k *Kubelet) followEvents(ctx context.Context) {
	if !k.waitRuntime(ctx) {
		return
	}
	told := make(chan types.UID, 256)
	alive := make(chan bool, 1)
	k.wg.Go(func() {
		for wait := 100 * time.Millisecond; ctx.Err() == nil; {
			err := k.readEvents(ctx, told, alive)
			if ctx.Err() != nil {
				return
			}
			slog.Debug("runtime events", "err", err)
			wait = min(2*wait, time.Minute)
			sleep(ctx, wait)
		}
	})
	tick := time.NewTicker(relistBlind)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case uid := <-told:
			if w := k.worker(uid); w != nil {
				w.touch()
			}
		case ok := <-alive:
			tick.Reset(map[bool]time.Duration{true: relistPeriod, false: relistBlind}[ok])
			k.touchAll() // what happened before the stream began
		case <-tick.C:
			k.touchAll()
		}
	}
}

func (k *Kubelet) touchAll() {
	for _, w := range k.all() {
		w.touch()
	}
}

func (k *Kubelet) readEvents(ctx context.Context, told chan<- types.UID, alive chan<- bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := k.runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		return err
	}
	first := true
	for {
		ev, err := stream.Recv()
		if err != nil {
			if !first {
				select {
				case alive <- false:
				case <-ctx.Done():
				}
			}
			return err
		}
		if first {
			first = false
			select {
			case alive <- true:
			case <-ctx.Done():
				return nil
			}
		}
		uid := ev.PodSandboxStatus.GetMetadata().GetUid()
		if uid == "" {
			for _, c := range ev.ContainersStatuses {
				uid = c.Labels[labelPodUID]
			}
		}
		if uid == "" {
			// Without the pod's name on it the event means: look everywhere.
			k.touchAll()
			continue
		}
		select {
		case told <- types.UID(uid):
		case <-ctx.Done():
			return nil
		}
	}
}
