package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// podUIDLabel is what every kubelet has runtimes say of whose pod a sandbox is.
	podUIDLabel = "io.kubernetes.pod.uid"
	// removeTime bounds each call to another runtime, which may not answer.
	removeTime = 30 * time.Second
)

// RemovePods stops and removes the pods whose cgroups begin so, and those with these UIDs,
// from another runtime, by the address of its socket. A pod that stays is an error, and the
// others go all the same.
func RemovePods(ctx context.Context, endpoint string, cgroups []string, uids map[string]bool) error {
	if strings.HasPrefix(endpoint, "/") {
		endpoint = "unix://" + endpoint
	}
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	limited := func(call func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, removeTime)
		defer cancel()
		return call(ctx)
	}
	var list *runtimeapi.ListPodSandboxResponse
	if err := limited(func(ctx context.Context) (err error) {
		list, err = client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		return err
	}); err != nil {
		return err
	}
	var errs []error
	for _, s := range list.Items {
		err := limited(func(ctx context.Context) error {
			ours, err := uids[s.Labels[podUIDLabel]], error(nil)
			if !ours {
				ours, err = below(ctx, client, s.Id, cgroups)
			}
			if err != nil || !ours {
				return err
			}
			if _, err := client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.Id}); err != nil {
				return err
			}
			_, err = client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.Id})
			return err
		})
		if err != nil && status.Code(err) != codes.NotFound { // gone meanwhile
			errs = append(errs, fmt.Errorf("pod %s/%s: %w", s.Metadata.GetNamespace(), s.Metadata.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

// below says that a sandbox was asked for in a cgroup that begins so. Runtimes tell that among what they
// say only for people to read: containerd as what it was asked for, CRI-O as what it made.
func below(ctx context.Context, client runtimeapi.RuntimeServiceClient, id string, cgroups []string) (bool, error) {
	box, err := client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return false, err
	}
	for _, text := range box.Info {
		if saysBelow(text, cgroups) {
			return true, nil
		}
	}
	return false, nil
}

// saysBelow looks for the field in a JSON document. What a pod's annotations say of it does
// not count: quotes within a text are escaped. Pure.
func saysBelow(document string, cgroups []string) bool {
	for _, field := range []string{"cgroup_parent", "cgroupsPath"} {
		for _, begin := range cgroups {
			if strings.Contains(document, `"`+field+`":"`+begin) {
				return true
			}
		}
	}
	return false
}
