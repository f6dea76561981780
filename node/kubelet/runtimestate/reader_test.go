package runtimestate

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/crilabels"
)

// clocks is a runtime that has two sandboxes, and a container of two names in each. Later
// attempts were made at the given time.
type clocks struct {
	cri.RuntimeServiceClient
	first, second int64
}

func (c clocks) at(attempt uint32) int64 { return []int64{c.first, c.second}[attempt] }

func (c clocks) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest, ...grpc.CallOption) (*cri.ListPodSandboxResponse, error) {
	return &cri.ListPodSandboxResponse{Items: []*cri.PodSandbox{{Id: "0"}, {Id: "1"}}}, nil
}

func (c clocks) PodSandboxStatus(_ context.Context, q *cri.PodSandboxStatusRequest, _ ...grpc.CallOption) (*cri.PodSandboxStatusResponse, error) {
	attempt := uint32(q.PodSandboxId[0] - '0')
	return &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{Id: q.PodSandboxId, Metadata: &cri.PodSandboxMetadata{Attempt: attempt}, CreatedAt: c.at(attempt)}}, nil
}

func (c clocks) ListContainers(context.Context, *cri.ListContainersRequest, ...grpc.CallOption) (*cri.ListContainersResponse, error) {
	return &cri.ListContainersResponse{Containers: []*cri.Container{{Id: "0a"}, {Id: "1a"}, {Id: "1b"}, {Id: "0b"}}}, nil
}

func (c clocks) ContainerStatus(_ context.Context, q *cri.ContainerStatusRequest, _ ...grpc.CallOption) (*cri.ContainerStatusResponse, error) {
	attempt := uint32(q.ContainerId[0] - '0')
	return &cri.ContainerStatusResponse{Status: &cri.ContainerStatus{Id: q.ContainerId, Metadata: &cri.ContainerMetadata{Attempt: attempt},
		CreatedAt: c.at(attempt), Labels: map[string]string{crilabels.ContainerName: q.ContainerId[1:]}}}, nil
}

// TestClockSetBack: the latest container of a name, and the latest sandbox, is the one that was
// made last, also if the clock was set back by an hour between them.
func TestClockSetBack(t *testing.T) {
	for name, c := range map[string]clocks{"goes on": {first: 1, second: 2}, "stands still": {first: 1, second: 1}, "set back": {first: 3600e9, second: 1}} {
		v, err := NewReader(c).Read(t.Context(), "uid")
		if err != nil {
			t.Fatal(err)
		}
		if v.Sandboxes[0].Id != "1" || v.Sandboxes[1].Id != "0" {
			t.Errorf("%s: sandboxes %v", name, v.Sandboxes)
		}
		for _, of := range []string{"a", "b"} {
			if latest := v.Latest(of); latest.Id != "1"+of {
				t.Errorf("%s: the latest is %s", name, latest.Id)
			}
		}
	}
}
