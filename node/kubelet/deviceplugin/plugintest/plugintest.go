// Package plugintest is a device plugin for tests. It serves a socket in the directory of
// device plugins and registers at the kubelet's.
package plugintest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"knarr/internal/run"
)

// A Plugin has devices of one resource.
type Plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	// Options are what it says of itself.
	Options pluginapi.DevicePluginOptions
	// Prefer answers GetPreferredAllocation, Fail Allocate if it is not nil.
	Prefer func(*pluginapi.ContainerPreferredAllocationRequest) []string
	Fail   func() error

	devices chan []*pluginapi.Device
	mu      sync.Mutex
	calls   []string
	srv     *grpc.Server
}

// Start serves the plugin and registers it, as soon as the kubelet is there.
func Start(t testing.TB, p *Plugin, dir, resource string, devices ...*pluginapi.Device) {
	t.Helper()
	p.devices = make(chan []*pluginapi.Device, 8)
	p.devices <- devices
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	name := strings.ReplaceAll(resource, "/", "-") + ".sock"
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	// The kubelet removes what sockets there are before it serves its own.
	conn.Connect()
	for s := conn.GetState(); s.String() != "READY"; s = conn.GetState() {
		if !conn.WaitForStateChange(ctx, s) {
			t.Fatal("no kubelet takes plugins")
		}
		conn.Connect()
	}
	ln, err := net.Listen("unix", filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	p.srv = grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(p.srv, p)
	run.Go("device plugin of a test", func() { _ = p.srv.Serve(ln) })
	t.Cleanup(p.srv.Stop)
	if _, err := pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: name, ResourceName: resource}); err != nil {
		t.Fatal(err)
	}
}

// Stop ends the plugin.
func (p *Plugin) Stop() { p.srv.Stop() }

// Set says that the plugin has other devices.
func (p *Plugin) Set(devices ...*pluginapi.Device) { p.devices <- devices }

// Calls are what was asked of it.
func (p *Plugin) Calls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.calls...)
}

func (p *Plugin) call(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, fmt.Sprintf(format, args...))
}

// GetDevicePluginOptions gives the options.
func (p *Plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{PreStartRequired: p.Options.PreStartRequired, GetPreferredAllocationAvailable: p.Options.GetPreferredAllocationAvailable}, nil
}

// ListAndWatch sends the devices.
func (p *Plugin) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		select {
		case d := <-p.devices:
			if err := s.Send(&pluginapi.ListAndWatchResponse{Devices: d}); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

// GetPreferredAllocation answers what Prefer does.
func (p *Plugin) GetPreferredAllocation(_ context.Context, r *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	return &pluginapi.PreferredAllocationResponse{ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{{DeviceIDs: p.Prefer(r.ContainerRequests[0])}}}, nil
}

// Allocate gives a variable with the devices, and one of everything else.
func (p *Plugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	if p.Fail != nil {
		if err := p.Fail(); err != nil {
			return nil, err
		}
	}
	ids := strings.Join(r.ContainerRequests[0].DevicesIds, ",")
	p.call("Allocate %s", ids)
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
		Envs:        map[string]string{"DEVICES": ids},
		Devices:     []*pluginapi.DeviceSpec{{HostPath: "/dev/null", ContainerPath: "/dev/device", Permissions: "rw"}},
		Mounts:      []*pluginapi.Mount{{HostPath: "/lib", ContainerPath: "/driver", ReadOnly: true}},
		Annotations: map[string]string{"example.com/devices": ids},
		CdiDevices:  []*pluginapi.CDIDevice{{Name: "example.com/gpu=" + ids}},
	}}}, nil
}

// PreStartContainer notes that a container starts.
func (p *Plugin) PreStartContainer(_ context.Context, r *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	p.call("PreStart %s", strings.Join(r.DevicesIds, ","))
	return &pluginapi.PreStartContainerResponse{}, nil
}

// Devices are healthy ones.
func Devices(ids ...string) (out []*pluginapi.Device) {
	for _, id := range ids {
		out = append(out, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	return out
}
