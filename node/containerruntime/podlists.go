package containerruntime

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A podLists answers, in containerd's place, which sandboxes and containers a pod has:
// the kubelet asks some times in each pod's start, and containerd describes all that the
// node has before it looks which are asked for.
type podLists struct {
	runtime cri.RuntimeServiceClient

	mu sync.Mutex
	// known says that what follows is all there is: not at the start, and not after a call
	// failed that may have left something.
	known   bool
	entries map[string]listed   // by the id of a sandbox or container
	pods    map[string][]string // the ids of a pod, by its uid, as they were made
}

// A listed is of one pod; a container has a sandbox, and the image that it was asked for with.
type listed struct {
	uid, sandbox string
	image        *cri.ImageSpec
}

// intercept answers, or learns from what containerd does.
func (l *podLists) intercept(ctx context.Context, req any, next grpc.UnaryHandler) (any, error) {
	switch r := req.(type) {
	case *cri.ListPodSandboxRequest:
		if uid, ok := onlyPod(r.GetFilter().GetLabelSelector()); ok && r.Filter.Id == "" && r.Filter.State == nil {
			return l.sandboxesOf(ctx, uid)
		}
	case *cri.ListContainersRequest:
		if uid, ok := onlyPod(r.GetFilter().GetLabelSelector()); ok && r.Filter.Id == "" && r.Filter.State == nil && r.Filter.PodSandboxId == "" {
			return l.containersOf(ctx, uid)
		}
	}
	res, err := next(ctx, req)
	switch r := req.(type) {
	case *cri.RunPodSandboxRequest:
		made, _ := res.(*cri.RunPodSandboxResponse)
		l.learn(err, made.GetPodSandboxId(), func(id string) { l.add(id, listed{uid: r.GetConfig().GetLabels()[podUIDLabel]}) })
	case *cri.CreateContainerRequest:
		made, _ := res.(*cri.CreateContainerResponse)
		l.learn(err, made.GetContainerId(), func(id string) {
			l.add(id, listed{uid: r.GetConfig().GetLabels()[podUIDLabel], sandbox: r.PodSandboxId, image: r.GetConfig().GetImage()})
		})
		l.learn(nil, r.PodSandboxId, func(string) {})
	case *cri.RemovePodSandboxRequest:
		l.learn(err, r.PodSandboxId, l.remove)
	case *cri.RemoveContainerRequest:
		l.learn(err, r.ContainerId, l.remove)
	}
	return res, err
}

// onlyPod is the pod that a selector of labels asks for, if it asks for nothing else.
func onlyPod(selector map[string]string) (uid string, ok bool) {
	return selector[podUIDLabel], len(selector) == 1 && selector[podUIDLabel] != ""
}

// idLength is that of containerd's ids; in calls their beginnings will do.
const idLength = 64

func (l *podLists) learn(err error, id string, what func(id string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || len(id) != idLength {
		l.known = false
	}
	if l.known {
		what(id)
	}
}

func (l *podLists) add(id string, of listed) {
	if _, there := l.entries[id]; there || of.uid == "" {
		return
	}
	l.entries[id] = of
	l.pods[of.uid] = append(l.pods[of.uid], id)
}

// remove forgets a container, or a sandbox with its containers.
func (l *podLists) remove(id string) {
	uid := l.entries[id].uid
	left := slices.DeleteFunc(l.pods[uid], func(other string) bool {
		gone := other == id || l.entries[other].sandbox == id
		if gone {
			delete(l.entries, other)
		}
		return gone
	})
	if len(left) == 0 {
		delete(l.pods, uid)
	} else {
		l.pods[uid] = left
	}
}

// of gives a pod's sandboxes, or its containers, with what is known of each.
func (l *podLists) of(ctx context.Context, uid string, containers bool) (ids []string, of []listed, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.known {
		if err := l.all(ctx); err != nil {
			return nil, nil, err
		}
	}
	for _, id := range l.pods[uid] {
		if e := l.entries[id]; (e.sandbox != "") == containers {
			ids, of = append(ids, id), append(of, e)
		}
	}
	return ids, of, nil
}

// all asks containerd for all there is. The lock is held: what is made meanwhile is added
// after.
func (l *podLists) all(ctx context.Context) error {
	boxes, err := l.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	containers, err := l.runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return err
	}
	l.entries, l.pods, l.known = map[string]listed{}, map[string][]string{}, true
	for _, b := range boxes.Items {
		l.add(b.Id, listed{uid: b.Labels[podUIDLabel]})
	}
	for _, c := range containers.Containers {
		l.add(c.Id, listed{uid: c.Labels[podUIDLabel], sandbox: c.PodSandboxId, image: c.Image})
	}
	return nil
}

// gone says that an id is nobody's any longer, and forgets it.
func (l *podLists) gone(err error, id string) bool {
	if status.Code(err) != codes.NotFound {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(id)
	return true
}

func (l *podLists) sandboxesOf(ctx context.Context, uid string) (*cri.ListPodSandboxResponse, error) {
	ids, _, err := l.of(ctx, uid, false)
	if err != nil {
		return nil, err
	}
	res := &cri.ListPodSandboxResponse{}
	for _, id := range ids {
		r, err := l.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id})
		if l.gone(err, id) {
			continue
		}
		if err != nil {
			return nil, err
		}
		s := r.Status
		res.Items = append(res.Items, &cri.PodSandbox{
			Id: s.Id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels, Annotations: s.Annotations, RuntimeHandler: s.RuntimeHandler,
		})
	}
	return res, nil
}

func (l *podLists) containersOf(ctx context.Context, uid string) (*cri.ListContainersResponse, error) {
	ids, known, err := l.of(ctx, uid, true)
	if err != nil {
		return nil, err
	}
	res := &cri.ListContainersResponse{}
	for i, id := range ids {
		r, err := l.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		if l.gone(err, id) {
			continue
		}
		if err != nil {
			return nil, err
		}
		s := r.Status // whose image has the names of today: containerd's lists give what was asked for
		res.Containers = append(res.Containers, &cri.Container{
			Id: s.Id, PodSandboxId: known[i].sandbox, Metadata: s.Metadata, Image: known[i].image, ImageRef: s.ImageId, ImageId: s.ImageId,
			State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels, Annotations: s.Annotations,
		})
	}
	return res, nil
}
