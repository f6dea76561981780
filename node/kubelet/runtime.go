package kubelet

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/crilabels"
)

const (
	maxMessageSize = 16 << 20
	// relistPeriod is how often everything is looked at although no event came.
	relistPeriod = 60 * time.Second
	// relistBlind is how often a runtime that sends no events is asked for all it has:
	// upstream's.
	relistBlind = time.Second
	// eventsOpen is after what time a stream of events is taken to be one: a runtime that
	// has none says so at once.
	eventsOpen = 2 * time.Second
	// runtimePeriod is how often the runtime's own state is asked for.
	runtimePeriod = 5 * time.Second
	// runtimeMissed is how long a runtime that was up may give no status before it is down,
	// upstream's: one that is started anew is back by then.
	runtimeMissed = 30 * time.Second
)

func (k *Kubelet) connect() (*grpc.ClientConn, error) {
	if k.cfg.Runtime != nil {
		return k.cfg.Runtime, nil
	}
	k.ownConn = true
	return dial(k.cfg.RuntimeEndpoint)
}

// dial makes a connection to a socket of the runtime, once it is used.
func dial(target string) (*grpc.ClientConn, error) {
	if strings.HasPrefix(target, "/") {
		target = "unix://" + target
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageSize)))
	if err != nil {
		return nil, fmt.Errorf("connect to runtime %s: %w", target, err)
	}
	return conn, nil
}

// deadlines bounds every call to the runtime that is not a stream, so that a
// runtime that hangs is an error and not a wait without end.
type deadlines struct {
	grpc.ClientConnInterface
	each time.Duration
}

// Invoke makes one call.
func (d deadlines) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if most := callLimit(args, d.each); most > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, most)
		defer cancel()
	}
	return d.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// callLimit is how long a call may take; 0: as long as its context lasts.
func callLimit(request any, each time.Duration) time.Duration {
	switch r := request.(type) {
	case *cri.PullImageRequest:
		return 0 // by what the image's progress shows
	case *cri.ExecSyncRequest:
		if r.Timeout <= 0 {
			return 0
		}
		return each + time.Duration(min(r.Timeout, math.MaxInt32))*time.Second
	case *cri.StopContainerRequest:
		return each + time.Duration(min(max(r.Timeout, 0), math.MaxInt32))*time.Second
	case *cri.CheckpointContainerRequest:
		return max(each, time.Duration(min(r.Timeout, maxCheckpoint))*time.Second)
	case *cri.RunPodSandboxRequest, *cri.StartContainerRequest:
		return 2 * each
	}
	return each
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
	unlisted := ""
	for wait := 10 * time.Millisecond; ; {
		network, was := k.askNetwork(), unlisted
		unlisted = k.listWrong()
		if k.readRuntime(ctx) || network || unlisted != was {
			k.wakeNode()
			for _, w := range k.all() {
				w.poke()
			}
		}
		if k.runtimeUp.Load() && k.network.Load() && k.networkWrong() == "" {
			wait = runtimePeriod
		} else {
			wait = min(2*wait, time.Second)
		}
		if !sleep(ctx, wait) {
			return
		}
	}
}

// askNetwork asks what is wrong with the network apart from what the runtime reports,
// and whether that is something else than before.
func (k *Kubelet) askNetwork() (changed bool) {
	a := k.askAbout(k.cfg.NetworkErr, &k.networkErr)
	b := k.askAbout(k.cfg.NetworkStale, &k.staleErr)
	return a || b
}

func (k *Kubelet) askAbout(what func() error, last *atomic.Pointer[string]) (changed bool) {
	if what == nil {
		return false
	}
	was, is := textOf(last), ""
	if err := what(); err != nil {
		is = err.Error()
	}
	last.Store(&is)
	return is != was
}

func textOf(p *atomic.Pointer[string]) string {
	if m := p.Load(); m != nil {
		return *m
	}
	return ""
}

func (k *Kubelet) networkWrong() string { return textOf(&k.networkErr) }

func (k *Kubelet) readRuntime(ctx context.Context) (changed bool) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if k.runtimeInfo.Load() == nil {
		v, err := k.runtime.Version(ctx, &cri.VersionRequest{})
		if err != nil {
			return k.setRuntime(false, false, "container runtime is down: "+err.Error(), "")
		}
		driver, err := k.askDriver(ctx)
		if err != nil {
			return k.setRuntime(false, false, err.Error(), "")
		}
		k.useDriver(driver)
		k.runtimeInfo.Store(v)
	}
	s, err := k.runtime.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		if k.runtimeUp.Load() && time.Since(k.runtimeSeen) < runtimeMissed {
			k.warnNew("the container runtime gives no status", err)
			return false
		}
		return k.setRuntime(false, k.network.Load(), "container runtime is down: "+err.Error(), k.networkMessage())
	}
	k.runtimeSeen = time.Now()
	k.handlers.Store(&s.RuntimeHandlers)
	k.features.Store(s.Features)
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
	switch {
	case a && up:
		slog.Info("container runtime is ready")
	case a:
		slog.Warn("container runtime is not ready", "err", msg)
	case !up && !k.asked.isOpen(): // it may just start, as the kubelet does
		slog.Info("waiting for the container runtime", "err", msg)
	}
	b := k.network.Swap(net) != net
	k.runtimeErr.Store(&msg)
	k.netMessage.Store(&netMsg)
	k.asked.open()
	if up {
		k.up.open()
	}
	return a || b
}

// networkMissing is what the runtime says that is missing, and the cause where it is known.
func (k *Kubelet) networkMissing() string {
	if why := k.networkWrong(); why != "" {
		return k.networkMessage() + ": " + why
	}
	return k.networkMessage()
}

func (k *Kubelet) networkMessage() string {
	if m := k.netMessage.Load(); m != nil {
		return *m
	}
	return ""
}

// followEvents wakes pods when the runtime reports events of their containers. While it
// reports none, as containerd before 1.7, it is asked for all that it has, and the pods are
// woken of which something has changed.
func (k *Kubelet) followEvents(ctx context.Context) {
	if !k.waitRuntime(ctx) {
		return
	}
	changed, ended := make(chan types.UID, 256), make(chan struct{}, 1)
	var began atomic.Pointer[time.Time] // of the stream that is open
	k.wg.Go("kubelet: runtime events", func() {
		for wait := 100 * time.Millisecond; ctx.Err() == nil; {
			now := time.Now()
			began.Store(&now)
			err := k.readEvents(ctx, changed)
			began.Store(nil)
			if ctx.Err() != nil {
				return
			}
			k.metrics.streamErrors.Inc()
			select {
			case ended <- struct{}{}:
			default:
			}
			slog.Debug("runtime events", "err", err)
			wait = min(2*wait, time.Minute)
			sleep(ctx, wait)
		}
	})
	blind, all, seen := true, time.Now(), map[types.UID]uint64(nil)
	tick := time.NewTicker(relistBlind)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case uid := <-changed:
			if w := k.worker(uid); w != nil {
				w.touch()
			}
			continue
		case <-ended:
			blind = true
			tick.Reset(relistBlind)
			continue
		case <-tick.C:
		}
		if at := began.Load(); blind && at != nil && time.Since(*at) >= eventsOpen {
			blind, seen = false, nil
			tick.Reset(relistPeriod)
			k.touchAll() // what happened before the stream began
			all = time.Now()
			continue
		}
		if blind {
			seen = k.relist(ctx, seen)
		}
		if time.Since(all) >= relistPeriod {
			k.touchAll()
			all = time.Now()
		}
	}
}

// relist asks for all containers, and wakes the pods of which something is not as it was
// seen before.
func (k *Kubelet) relist(ctx context.Context, before map[types.UID]uint64) (seen map[types.UID]uint64) {
	boxes, err := k.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return before // the runtime's state is asked for elsewhere
	}
	containers, err := k.runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return before
	}
	k.listed()
	seen = map[types.UID]uint64{}
	note := func(uid, id string, state int32) { // in whatever order they come
		var h maphash.Hash
		h.SetSeed(relistSeed)
		h.WriteString(id)
		h.WriteByte(byte(state))
		seen[types.UID(uid)] += h.Sum64()
	}
	for _, b := range boxes.Items {
		note(b.Labels[crilabels.PodUID], b.Id, int32(b.State))
	}
	for _, c := range containers.Containers {
		note(c.Labels[crilabels.PodUID], c.Id, int32(c.State))
	}
	wake := func(uid types.UID) {
		if w := k.worker(uid); w != nil {
			w.touch()
		}
	}
	for uid, sum := range seen {
		if was, ok := before[uid]; !ok || was != sum {
			wake(uid)
		}
	}
	for uid := range before {
		if _, ok := seen[uid]; !ok {
			wake(uid)
		}
	}
	return seen
}

var relistSeed = maphash.MakeSeed()

func (k *Kubelet) touchAll() {
	for _, w := range k.all() {
		w.touch()
	}
}

func (k *Kubelet) readEvents(ctx context.Context, changed chan<- types.UID) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := k.runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		return err
	}
	k.metrics.streams.Inc()
	for {
		ev, err := stream.Recv()
		if err != nil {
			return err
		}
		k.metrics.eventDelay.Observe(max(time.Since(time.Unix(0, ev.CreatedAt)), 0).Seconds())
		uid := ev.PodSandboxStatus.GetMetadata().GetUid()
		if uid == "" {
			for _, c := range ev.ContainersStatuses {
				uid = c.Labels[crilabels.PodUID]
			}
		}
		if uid == "" {
			// Without the pod's name on it the event means: look everywhere.
			k.touchAll()
			continue
		}
		select {
		case changed <- types.UID(uid):
		case <-ctx.Done():
			return nil
		}
	}
}
