package plugintest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"knarr/internal/run"
)

// An Announced plugin waits at its socket to be found.
type Announced struct {
	registration.UnimplementedRegistrationServer
	// Statuses are what the kubelet says of it.
	Statuses chan *registration.RegistrationStatus
	resource string
	srv      *grpc.Server
}

// Announce serves the plugin in the directory of all kinds of plugins.
func Announce(t testing.TB, p *Plugin, dir, resource string, devices ...*pluginapi.Device) *Announced {
	t.Helper()
	p.devices = make(chan []*pluginapi.Device, 8)
	p.devices <- devices
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	// Several may be of one resource.
	ln, err := net.Listen("unix", filepath.Join(dir, fmt.Sprintf("%s-%p.sock", strings.ReplaceAll(resource, "/", "-"), p)))
	if err != nil {
		t.Fatal(err)
	}
	a := &Announced{Statuses: make(chan *registration.RegistrationStatus, 8), resource: resource, srv: grpc.NewServer()}
	p.srv = a.srv
	pluginapi.RegisterDevicePluginServer(a.srv, p)
	registration.RegisterRegistrationServer(a.srv, a)
	run.Go("announced device plugin of a test", func() { _ = a.srv.Serve(ln) })
	t.Cleanup(a.srv.Stop)
	return a
}

// Stop ends the plugin, and its socket with it.
func (a *Announced) Stop() { a.srv.Stop() }

// GetInfo says which plugin it is.
func (a *Announced) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.DevicePlugin, Name: a.resource, SupportedVersions: []string{pluginapi.Version}}, nil
}

// NotifyRegistrationStatus hears what came of it.
func (a *Announced) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	select {
	case a.Statuses <- s:
	default: // tried again
	}
	return &registration.RegistrationStatusResponse{}, nil
}
