package kubelet

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Labels and annotations that tie what the runtime holds to pods. They are how
// state is read back after a restart, so they are the field's own.
const (
	labelPodName       = "io.kubernetes.pod.name"
	labelPodNamespace  = "io.kubernetes.pod.namespace"
	labelPodUID        = "io.kubernetes.pod.uid"
	labelContainerName = "io.kubernetes.container.name"

	annHash              = "io.kubernetes.container.hash"
	annRestartCount      = "io.kubernetes.container.restartCount"
	annMessagePath       = "io.kubernetes.container.terminationMessagePath"
	annMessagePolicy     = "io.kubernetes.container.terminationMessagePolicy"
	annPreStop           = "io.kubernetes.container.preStopHandler"
	annPorts             = "io.kubernetes.container.ports"
	annDeletionGrace     = "io.kubernetes.pod.deletionGracePeriod"
	annTerminationGrace  = "io.kubernetes.pod.terminationGracePeriod"
	annConfigSource      = "kubernetes.io/config.source"
	annConfigHash        = "kubernetes.io/config.hash"
	annConfigSeen        = "kubernetes.io/config.seen"
	annConfigMirror      = "kubernetes.io/config.mirror"
	maxContainersPerName = 2
)

// A sandbox is one pod sandbox as the runtime reports it.
type sandbox struct {
	*cri.PodSandboxStatus
}

func (s sandbox) ready() bool { return s.State == cri.PodSandboxState_SANDBOX_READY }

func (s sandbox) ips() []string {
	if s.Network == nil || s.Network.Ip == "" {
		return nil
	}
	ips := []string{s.Network.Ip}
	for _, a := range s.Network.AdditionalIps {
		ips = append(ips, a.Ip)
	}
	return ips
}

// A container is one container as the runtime reports it.
type container struct {
	*cri.ContainerStatus
	sandboxID string
}

func (c *container) name() string  { return c.Labels[labelContainerName] }
func (c *container) running() bool { return c.State == cri.ContainerState_CONTAINER_RUNNING }
func (c *container) exited() bool  { return c.State == cri.ContainerState_CONTAINER_EXITED }
func (c *container) restarts() int {
	n, _ := strconv.Atoi(c.Annotations[annRestartCount])
	return n
}
func (c *container) started() time.Time  { return time.Unix(0, c.StartedAt) }
func (c *container) finished() time.Time { return time.Unix(0, c.FinishedAt) }

// A view is everything the runtime holds of one pod, newest first.
type view struct {
	sandboxes  []sandbox
	containers []*container
}

// latest is the newest container of that name, or nil.
func (v *view) latest(name string) *container {
	for _, c := range v.containers {
		if c.name() == name {
			return c
		}
	}
	return nil
}

// previous is the newest exited container of that name older than c.
func (v *view) previous(c *container) *container {
	after := false
	for _, o := range v.containers {
		switch {
		case o == c:
			after = true
		case after && o.name() == c.name() && o.exited():
			return o
		}
	}
	return nil
}

func (v *view) byID(id string) *container {
	for _, c := range v.containers {
		if c.Id == id {
			return c
		}
	}
	return nil
}

// readySandbox is the newest sandbox if it is ready.
func (v *view) readySandbox() (sandbox, bool) {
	if len(v.sandboxes) > 0 && v.sandboxes[0].ready() {
		return v.sandboxes[0], true
	}
	return sandbox{}, false
}

func (v *view) running() (out []*container) {
	for _, c := range v.containers {
		if !c.exited() && c.State != cri.ContainerState_CONTAINER_CREATED {
			out = append(out, c)
		}
	}
	return out
}

// A viewer reads views and remembers the statuses that cannot change any more,
// so that looking again costs two list calls.
type viewer struct {
	rt         cri.RuntimeServiceClient
	sandboxes  map[string]sandbox
	containers map[string]*container
}

func newViewer(rt cri.RuntimeServiceClient) *viewer {
	return &viewer{rt: rt, sandboxes: map[string]sandbox{}, containers: map[string]*container{}}
}

// forget drops what is remembered of one container, whose status may change
// without its state changing (after a resize).
func (r *viewer) forget(id string) { delete(r.containers, id) }

func (r *viewer) read(ctx context.Context, uid types.UID) (*view, error) {
	sel := map[string]string{labelPodUID: string(uid)}
	sl, err := r.rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: sel}})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	cl, err := r.rt.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: sel}})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	v := &view{}
	sandboxes := make(map[string]sandbox, len(sl.Items))
	for _, s := range sl.Items {
		known, ok := r.sandboxes[s.Id]
		if !ok || known.State != s.State {
			res, err := r.rt.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: s.Id})
			if status.Code(err) == codes.NotFound {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("sandbox status: %w", err)
			}
			known = sandbox{res.Status}
		}
		sandboxes[s.Id] = known
		v.sandboxes = append(v.sandboxes, known)
	}
	containers := make(map[string]*container, len(cl.Containers))
	for _, c := range cl.Containers {
		known, ok := r.containers[c.Id]
		if !ok || known.State != c.State || known.State == cri.ContainerState_CONTAINER_CREATED {
			res, err := r.rt.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id})
			if status.Code(err) == codes.NotFound {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("container status: %w", err)
			}
			known = &container{res.Status, c.PodSandboxId}
		}
		containers[c.Id] = known
		v.containers = append(v.containers, known)
	}
	r.sandboxes, r.containers = sandboxes, containers
	slices.SortFunc(v.sandboxes, func(a, b sandbox) int { return int(compare64(b.CreatedAt, a.CreatedAt)) })
	slices.SortFunc(v.containers, func(a, b *container) int { return int(compare64(b.CreatedAt, a.CreatedAt)) })
	return v, nil
}

func compare64(a, b int64) int64 {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// isSidecar says whether an init container stays while the pod runs.
func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// eachContainer calls f for init, regular and ephemeral containers in order.
func eachContainer(pod *corev1.Pod, f func(c *corev1.Container, kind containerKind)) {
	for i := range pod.Spec.InitContainers {
		f(&pod.Spec.InitContainers[i], initKind)
	}
	for i := range pod.Spec.Containers {
		f(&pod.Spec.Containers[i], mainKind)
	}
	for i := range pod.Spec.EphemeralContainers {
		f((*corev1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon), ephemeralKind)
	}
}

type containerKind int

const (
	mainKind containerKind = iota
	initKind
	ephemeralKind
)

func findContainer(pod *corev1.Pod, name string) (found *corev1.Container, kind containerKind) {
	eachContainer(pod, func(c *corev1.Container, k containerKind) {
		if c.Name == name {
			found, kind = c, k
		}
	})
	return found, kind
}
