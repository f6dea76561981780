package shim

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/capabilities"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Main does what containerd asks of a shim's program (start, delete and -info),
// and serves.
func Main(args []string) error {
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	namespace := f.String("namespace", "", "of containerd")
	address := f.String("address", "", "of containerd's socket")
	id := f.String("id", "", "of the container")
	bundle := f.String("bundle", "", "of the container")
	_ = f.String("publish-binary", "", "is not used")
	_ = f.Bool("debug", false, "is not used")
	info := f.Bool("info", false, "says what containers may have")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	switch verb := f.Arg(0); {
	case *info:
		return answer(runtimeInfo())
	case verb == "serve" && *address != "":
		return Serve(*address, args[0])
	case verb == "start" && *address != "":
		return answer(&bootstrap.BootstrapResult{
			Version: 3, Protocol: "ttrpc", Address: "unix://" + filepath.Join(filepath.Dir(*address), FrontName),
		}, nil)
	case verb == "delete" && *address != "" && *namespace != "" && *id != "":
		if *bundle == "" {
			*bundle = filepath.Join(filepath.Dir(*address), FormerBundlesName, *namespace, *id)
		}
		return answer(remove(filepath.Dir(*address), *bundle, key{*namespace, *id}))
	}
	return errors.New("usage: knarr-shim -address SOCKET serve|start|delete, or -info")
}

func answer(m proto.Message, err error) error {
	if err != nil {
		return err
	}
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(b)
	return err
}

// removeTime bounds what is waited for a container to end.
const removeTime = 4 * time.Second

// remove ends a container that containerd has lost, and removes what is left of
// it: by the program that runs it, or, where that does not know it, from what is
// on disk.
func remove(state, bundle string, k key) (*api.DeleteResponse, error) {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), k.namespace), removeTime)
	defer cancel()
	if conn, err := net.DialTimeout("unix", filepath.Join(state, SocketName), time.Second); err == nil {
		tasks := api.NewTTRPCTaskClient(ttrpc.NewClient(conn))
		defer conn.Close()
		if _, err := tasks.Kill(ctx, &api.KillRequest{ID: k.id, Signal: uint32(unix.SIGKILL), All: true}); err == nil || errdefs.IsNotFound(errgrpc.ToNative(err)) {
			if _, err := tasks.Wait(ctx, &api.WaitRequest{ID: k.id}); err == nil {
				if res, err := tasks.Delete(ctx, &api.DeleteRequest{ID: k.id}); err == nil {
					return res, nil
				}
			}
		}
	}
	res := &api.DeleteResponse{ExitStatus: 128 + uint32(unix.SIGKILL), ExitedAt: timestamppb.Now()}
	old, err := readSaved(bundle)
	if errors.Is(err, os.ErrNotExist) {
		old, err = readFormer(bundle, k.namespace)
	}
	if err == nil {
		res.Pid = uint32(old.Pid)
		if old.Exit != nil {
			res.ExitStatus, res.ExitedAt = old.Exit.Status, timestamppb.New(old.Exit.At)
		}
		err = destroy(ctx, old.Root, k.id)
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return res, errors.Join(err, mount.UnmountRecursive(filepath.Join(bundle, "rootfs"), 0))
}

// readFormer reads what the shim of versions before wrote of a container, one for
// each pod.
func readFormer(bundle, namespace string) (*saved, error) {
	f, err := os.Open(filepath.Join(bundle, "options.json"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	o := &options.Options{}
	if err := json.NewDecoder(io.LimitReader(f, 1<<20)).Decode(o); err != nil {
		return nil, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	old := &saved{Root: filepath.Join(o.Root, namespace)}
	if b, err := os.ReadFile(filepath.Join(bundle, "init.pid")); err == nil {
		old.Pid, _ = strconv.Atoi(string(b)) // only told
	}
	return old, nil
}

// destroy kills a container and removes its control groups and state.
func destroy(ctx context.Context, root, id string) error {
	c, err := libcontainer.Load(root, id)
	if errors.Is(err, libcontainer.ErrNotExist) {
		return os.RemoveAll(filepath.Join(root, id)) // not made to its end
	}
	if err != nil {
		return err
	}
	for c.Signal(unix.SIGKILL) == nil {
		if status, err := c.Status(); err == nil && status == libcontainer.Stopped {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("container %s does not end: %w", id, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
	if _, err := c.Status(); err != nil {
		return err
	}
	return c.Destroy()
}

// runtimeInfo says what containers may have; containerd asks on its standard
// output.
func runtimeInfo() (*types.RuntimeInfo, error) {
	// What it writes is read to its end: options, which change nothing of it.
	_, _ = io.Copy(io.Discard, io.LimitReader(os.Stdin, 1<<20))
	yes := true
	f := &features.Features{
		OCIVersionMin: "1.0.0", OCIVersionMax: specs.Version,
		Hooks: configs.KnownHookNames(),
		Linux: &features.Linux{
			Capabilities:    capabilities.KnownCapabilities(),
			Cgroup:          &features.Cgroup{V1: &yes, V2: &yes, Systemd: &yes, SystemdUser: &yes, Rdma: &yes},
			Apparmor:        &features.Apparmor{Enabled: &yes},
			Selinux:         &features.Selinux{Enabled: &yes},
			IntelRdt:        &features.IntelRdt{Enabled: &yes, Schemata: &yes, Monitoring: &yes},
			MountExtensions: &features.MountExtensions{IDMap: &features.IDMap{Enabled: &yes}},
			NetDevices:      &features.NetDevices{Enabled: &yes},
			Seccomp: &features.Seccomp{
				Enabled: &yes, Actions: seccomp.KnownActions(), Operators: seccomp.KnownOperators(), Archs: seccomp.KnownArchs(),
				KnownFlags: seccomp.KnownFlags(), SupportedFlags: seccomp.SupportedFlags(),
			},
		},
	}
	known(f)
	b, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	return &types.RuntimeInfo{
		Name:     "io.containerd.runc.v2",
		Features: &anypb.Any{TypeUrl: featuresType, Value: b},
	}, nil
}

// featuresType is how containerd calls the features of a runtime.
const featuresType = "types.containerd.io/opencontainers/runtime-spec/1/features/Features"
