package csi

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// An announced driver waits at its socket to be found. Its node ID says which one it is.
type announced struct {
	csipb.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
	name, id string
	asked    atomic.Int32 // who it is
	srv      *grpc.Server
}

// announce serves a driver in a Manager's registration directory, at a socket that is called
// as its node ID.
func announce(t *testing.T, m *Manager, name, id string) *announced {
	t.Helper()
	ln, err := net.Listen("unix", filepath.Join(m.registry(), id))
	if err != nil {
		t.Fatal(err)
	}
	a := &announced{name: name, id: id, srv: grpc.NewServer()}
	csipb.RegisterNodeServer(a.srv, a)
	registration.RegisterRegistrationServer(a.srv, a)
	go func() { _ = a.srv.Serve(ln) }()
	t.Cleanup(a.srv.Stop)
	return a
}

func (a *announced) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	a.asked.Add(1)
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: a.name, SupportedVersions: []string{"1.0.0"}}, nil
}
func (a *announced) NotifyRegistrationStatus(context.Context, *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	return &registration.RegistrationStatusResponse{}, nil
}
func (a *announced) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: a.id}, nil
}
func (a *announced) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (*csipb.NodeGetCapabilitiesResponse, error) {
	return &csipb.NodeGetCapabilitiesResponse{}, nil
}

// TestSilentSocket: a driver is registered while a socket that was there before it accepts
// and never answers.
func TestSilentSocket(t *testing.T) {
	logged(t)
	came := make(chan struct{})
	m := newNodeAPI().manager(t, func() { close(came) })
	silent, err := net.Listen("unix", filepath.Join(m.registry(), "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	left := make(chan struct{}) // who waits for an answer has given up
	go func() {
		defer close(left)
		if c, err := silent.Accept(); err == nil {
			_, _ = io.Copy(io.Discard, c)
		}
	}()
	announce(t, m, "d", "b")
	ctx, cancel := context.WithCancel(t.Context())
	defer m.sockets.tasks.Wait()
	defer cancel()
	go m.follow(ctx, nil, nil)
	select {
	case <-came:
	case <-left:
		t.Error("the driver was not registered before the other socket was given up")
	}
}

// TestDriverBehindTwoSockets: what registers under a name that another has takes its place.
// That stays so when the other one's socket goes, and is over when its own does.
func TestDriverBehindTwoSockets(t *testing.T) {
	api := newNodeAPI()
	m := api.manager(t, nil)
	is := func(want string) {
		t.Helper()
		settle(t, m)
		got, shown := "", ""
		if d, err := m.driver("d"); err == nil {
			info, err := d.node.NodeGetInfo(t.Context(), &csipb.NodeGetInfoRequest{})
			if err != nil {
				t.Fatal(err)
			}
			got = info.NodeId
		}
		for _, d := range api.csiNode.Spec.Drivers {
			shown += d.NodeID
		}
		if got != want || shown != want {
			t.Errorf("the driver is %q, the CSINode has %q, want %q", got, shown, want)
		}
	}
	first := announce(t, m, "d", "first")
	is("first")
	second := announce(t, m, "d", "second")
	is("second")
	first.srv.Stop() // which removes its socket
	is("second")
	if n := second.asked.Load(); n != 1 {
		t.Errorf("registered %d times, want once", n)
	}
	third := announce(t, m, "d", "third")
	is("third")
	third.srv.Stop()
	is("second")
	second.srv.Stop()
	is("")
}

// TestSocketMadeAnew: another file at the path of a socket is another plugin's.
func TestSocketMadeAnew(t *testing.T) {
	m := newNodeAPI().manager(t, nil)
	announce(t, m, "d", "a")
	settle(t, m)
	old, err := m.driver("d")
	if err != nil {
		t.Fatal(err)
	}
	for path, is := range m.sockets.taken {
		is.file.inode++
		m.sockets.taken[path] = is
	}
	settle(t, m)
	if now, err := m.driver("d"); err != nil || now == old {
		t.Errorf("the driver is what it was, %v", err)
	}
}
