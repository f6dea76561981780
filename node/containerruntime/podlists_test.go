package containerruntime

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// aRuntime has sandboxes and containers, and counts how often it was asked for all.
type aRuntime struct {
	cri.RuntimeServiceClient
	sandboxes  map[string]*cri.PodSandbox
	containers map[string]*cri.Container
	lists      int
}

func (r *aRuntime) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest, ...grpc.CallOption) (*cri.ListPodSandboxResponse, error) {
	r.lists++
	res := &cri.ListPodSandboxResponse{}
	for _, s := range r.sandboxes {
		res.Items = append(res.Items, s)
	}
	return res, nil
}

func (r *aRuntime) ListContainers(context.Context, *cri.ListContainersRequest, ...grpc.CallOption) (*cri.ListContainersResponse, error) {
	res := &cri.ListContainersResponse{}
	for _, c := range r.containers {
		res.Containers = append(res.Containers, c)
	}
	return res, nil
}

func (r *aRuntime) PodSandboxStatus(_ context.Context, q *cri.PodSandboxStatusRequest, _ ...grpc.CallOption) (*cri.PodSandboxStatusResponse, error) {
	s := r.sandboxes[q.PodSandboxId]
	if s == nil {
		return nil, status.Error(codes.NotFound, "no such sandbox")
	}
	return &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{Id: s.Id, State: s.State, Labels: s.Labels}}, nil
}

func (r *aRuntime) ContainerStatus(_ context.Context, q *cri.ContainerStatusRequest, _ ...grpc.CallOption) (*cri.ContainerStatusResponse, error) {
	c := r.containers[q.ContainerId]
	if c == nil {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	return &cri.ContainerStatusResponse{Status: &cri.ContainerStatus{Id: c.Id, State: c.State, Labels: c.Labels}}, nil
}

func id(name string) string { return name + strings.Repeat("0", idLength-len(name)) }

func ofPod(uid string) map[string]string { return map[string]string{podUIDLabel: uid} }

func TestPodLists(t *testing.T) {
	r := &aRuntime{
		sandboxes:  map[string]*cri.PodSandbox{id("s1"): {Id: id("s1"), Labels: ofPod("a")}},
		containers: map[string]*cri.Container{id("c1"): {Id: id("c1"), PodSandboxId: id("s1"), Labels: ofPod("a")}},
	}
	l := &podLists{runtime: r}
	do := func(req, res any, err error) {
		t.Helper()
		if _, got := l.intercept(t.Context(), req, func(context.Context, any) (any, error) { return res, err }); !errors.Is(got, err) {
			t.Fatal(got)
		}
	}
	want := func(uid string, lists int, ids ...string) {
		t.Helper()
		var got []string
		none := func(context.Context, any) (any, error) { t.Fatal("containerd is asked"); return nil, nil }
		s, err := l.intercept(t.Context(), &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: ofPod(uid)}}, none)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range s.(*cri.ListPodSandboxResponse).Items {
			got = append(got, s.Id)
		}
		c, err := l.intercept(t.Context(), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: ofPod(uid)}}, none)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range c.(*cri.ListContainersResponse).Containers {
			got = append(got, c.Id)
			if c.PodSandboxId != r.containers[c.Id].PodSandboxId {
				t.Errorf("container %s is said to be of %s", c.Id, c.PodSandboxId)
			}
		}
		for i := range ids {
			ids[i] = id(ids[i])
		}
		if !slices.Equal(got, ids) || r.lists != lists {
			t.Errorf("pod %s: %v, want %v; asked for all %d times, want %d", uid, got, ids, r.lists, lists)
		}
	}
	want("a", 1, "s1", "c1")

	// What is made is known without another look.
	r.sandboxes[id("s2")] = &cri.PodSandbox{Id: id("s2"), Labels: ofPod("b")}
	do(&cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{Labels: ofPod("b")}}, &cri.RunPodSandboxResponse{PodSandboxId: id("s2")}, nil)
	for _, name := range []string{"c2", "c3"} {
		r.containers[id(name)] = &cri.Container{Id: id(name), PodSandboxId: id("s2"), Labels: ofPod("b")}
		do(&cri.CreateContainerRequest{PodSandboxId: id("s2"), Config: &cri.ContainerConfig{Labels: ofPod("b")}}, &cri.CreateContainerResponse{ContainerId: id(name)}, nil)
	}
	want("b", 1, "s2", "c2", "c3")
	want("a", 1, "s1", "c1")

	// So is what is removed, by whomever.
	delete(r.containers, id("c2"))
	do(&cri.RemoveContainerRequest{ContainerId: id("c2")}, &cri.RemoveContainerResponse{}, nil)
	want("b", 1, "s2", "c3")
	delete(r.containers, id("c3"))
	want("b", 1, "s2")
	r.containers[id("c4")] = &cri.Container{Id: id("c4"), PodSandboxId: id("s2"), Labels: ofPod("b")}
	do(&cri.CreateContainerRequest{PodSandboxId: id("s2"), Config: &cri.ContainerConfig{Labels: ofPod("b")}}, &cri.CreateContainerResponse{ContainerId: id("c4")}, nil)
	delete(r.containers, id("c4"))
	delete(r.sandboxes, id("s2"))
	do(&cri.RemovePodSandboxRequest{PodSandboxId: id("s2")}, &cri.RemovePodSandboxResponse{}, nil)
	want("b", 1)
	if len(l.pods) != 1 || len(l.entries) != 2 {
		t.Errorf("left: %v %v", l.pods, l.entries)
	}

	// What failed may have left something; an id that is only the beginning says nothing.
	r.sandboxes[id("s3")] = &cri.PodSandbox{Id: id("s3"), Labels: ofPod("c"), State: cri.PodSandboxState_SANDBOX_NOTREADY}
	do(&cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{Labels: ofPod("c")}}, (*cri.RunPodSandboxResponse)(nil), errors.ErrUnsupported)
	want("c", 2, "s3")
	delete(r.sandboxes, id("s3"))
	do(&cri.RemovePodSandboxRequest{PodSandboxId: "s3"}, &cri.RemovePodSandboxResponse{}, nil)
	want("c", 3)
}

// TestPodListsOfOthers: whoever asks for something else is answered by containerd.
func TestPodListsOfOthers(t *testing.T) {
	l := &podLists{}
	for name, req := range map[string]any{
		"all sandboxes":   &cri.ListPodSandboxRequest{},
		"a state":         &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: ofPod("a"), State: &cri.PodSandboxStateValue{}}},
		"an id":           &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: ofPod("a"), Id: "1"}},
		"a sandbox":       &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: ofPod("a"), PodSandboxId: "1"}},
		"more labels":     &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: map[string]string{podUIDLabel: "a", "b": "c"}}},
		"another label":   &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: map[string]string{"b": "c"}}},
		"something else":  &cri.VersionRequest{},
		"all containers ": &cri.ListContainersRequest{Filter: &cri.ContainerFilter{}},
	} {
		asked := false
		if _, err := l.intercept(t.Context(), req, func(context.Context, any) (any, error) { asked = true; return nil, nil }); err != nil || !asked {
			t.Errorf("%s: %v, containerd asked: %v", name, err, asked)
		}
	}
}
