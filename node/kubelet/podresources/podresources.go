// Package podresources tells monitoring agents and schedulers which devices, CPUs and
// memory the containers of this node have, by upstream's PodResources API of versions v1 and
// v1alpha1. It reads them through the sources it is given and serves a socket.
package podresources

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"knarr/internal/run"
	"knarr/node/kubelet/deviceplugin"
	"knarr/node/kubelet/podspec"
)

// Config is what a server tells of.
type Config struct {
	// Socket is the path it is served at.
	Socket string
	// Pods are those of the node that have not ended, and AllPods those that have too.
	Pods, AllPods func() []*corev1.Pod
	// ListAll has lists tell of pods that have ended, as before Kubernetes 1.34.
	ListAll bool
	// Devices are who has which.
	Devices *deviceplugin.Manager
	// CPUs are those that a container has for itself, and AllCPUs those that containers
	// can have; nil: there are none.
	CPUs    func(pod *corev1.Pod, container string) []int64
	AllCPUs func() []int64
	// Memory is what a container has for itself, and AllMemory what containers can have.
	Memory    func(pod *corev1.Pod, container string) []*api.ContainerMemory
	AllMemory func() []*api.ContainerMemory
	// Counted counts the requests by the API's version and their names, "" in its first
	// version; nil: nobody does.
	Counted func(version, method string, failed bool)
}

// Upstream's limits of requests.
const (
	requests = 100
	burst    = 10
)

// Run serves the socket until ctx ends.
func Run(ctx context.Context, c Config) error {
	if err := os.MkdirAll(filepath.Dir(c.Socket), 0o750); err != nil {
		return fmt.Errorf("serve the resources of pods: %w", err)
	}
	if err := os.Remove(c.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("serve the resources of pods: %w", err)
	}
	ln, err := net.Listen("unix", c.Socket)
	if err != nil {
		return fmt.Errorf("serve the resources of pods: %w", err)
	}
	limit := flowcontrol.NewTokenBucketRateLimiter(requests, burst)
	srv := grpc.NewServer(grpc.MaxRecvMsgSize(64<<10), grpc.UnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (answer any, err error) {
			if !limit.TryAccept() {
				return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
			}
			err = run.Catch("kubelet: resources of pods", func() (err error) {
				answer, err = next(ctx, req)
				return err
			})
			return answer, err
		}))
	api.RegisterPodResourcesListerServer(srv, server{c: c})
	v1alpha1.RegisterPodResourcesListerServer(srv, early{server: server{c: c}})
	stop := context.AfterFunc(ctx, srv.Stop)
	defer stop()
	if err := srv.Serve(ln); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve the resources of pods: %w", err)
	}
	return nil
}

type server struct {
	c Config
	api.UnimplementedPodResourcesListerServer
}

func (s server) count(method string, err error) {
	if s.c.Counted != nil {
		s.c.Counted("v1", method, err != nil)
	}
}

// List tells of the pods that have not ended, or of all.
func (s server) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	res := &api.ListPodResourcesResponse{}
	pods := s.c.Pods
	if s.c.ListAll {
		pods = s.c.AllPods
	}
	for _, pod := range pods() {
		res.PodResources = append(res.PodResources, s.of(pod))
	}
	s.count("list", nil)
	return res, nil
}

// Get tells of one pod that has not ended.
func (s server) Get(_ context.Context, req *api.GetPodResourcesRequest) (*api.GetPodResourcesResponse, error) {
	for _, pod := range s.c.Pods() {
		if pod.Name == req.PodName && pod.Namespace == req.PodNamespace {
			s.count("get", nil)
			return &api.GetPodResourcesResponse{PodResources: s.of(pod)}, nil
		}
	}
	err := fmt.Errorf("pod %s in namespace %s not found", req.PodName, req.PodNamespace)
	s.count("get", err)
	return nil, err
}

// GetAllocatableResources tells what containers can have.
func (s server) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (*api.AllocatableResourcesResponse, error) {
	res := &api.AllocatableResourcesResponse{Devices: devices(s.c.Devices.Allocatable())}
	if s.c.AllCPUs != nil {
		res.CpuIds = s.c.AllCPUs()
	}
	if s.c.AllMemory != nil {
		res.Memory = s.c.AllMemory()
	}
	s.count("get_allocatable", nil)
	return res, nil
}

func (s server) of(pod *corev1.Pod) *api.PodResources {
	out := &api.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	podspec.EachContainer(pod, func(c *corev1.Container, kind podspec.ContainerKind) {
		if kind == podspec.EphemeralContainer || kind == podspec.InitContainer && !podspec.IsSidecar(c) {
			return
		}
		r := &api.ContainerResources{Name: c.Name, Devices: devices(s.c.Devices.Of(pod.UID, c.Name))}
		if s.c.CPUs != nil {
			r.CpuIds = s.c.CPUs(pod, c.Name)
		}
		if s.c.Memory != nil {
			r.Memory = s.c.Memory(pod, c.Name)
		}
		out.Containers = append(out.Containers, r)
	})
	return out
}

// devices is one entry for each device, as upstream has it.
func devices(all []deviceplugin.Device) (out []*api.ContainerDevices) {
	for _, d := range all {
		e := &api.ContainerDevices{ResourceName: d.Resource, DeviceIds: []string{d.ID}}
		if len(d.Nodes) > 0 {
			e.Topology = &api.TopologyInfo{}
			for _, n := range d.Nodes {
				e.Topology.Nodes = append(e.Topology.Nodes, &api.NUMANode{ID: n})
			}
		}
		out = append(out, e)
	}
	return out
}
