// Package driver is the CSI driver of local volumes: the contract's three
// services, and the kubelet's registration, over unix sockets. It reads and
// writes volumes through the package disk, and mounts below the paths that the
// kubelet names.
package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"knarr/addons/localstorage/disk"
	"knarr/internal/localpath"
	"knarr/internal/run"
)

// Name is the driver's.
const Name = localpath.Provisioner

// A Driver answers the calls of the contract for one node.
type Driver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer
	csipb.UnimplementedNodeServer
	registration.UnsafeRegistrationServer

	// Store has the volumes.
	Store *disk.Store
	// NodeID is the node's name, and Topology which nodes reach its volumes.
	NodeID   string
	Topology map[string]string
	// Version is the program's.
	Version string
	// Endpoint is the socket of the contract's services.
	Endpoint string
}

// maxMessage bounds a request: the contract's fields have a few KiB.
const maxMessage = 1 << 20

// Serve answers at the endpoint, and for the kubelet at the registration socket,
// until ctx ends. Ready is called once it does.
func (d *Driver) Serve(ctx context.Context, registry string, ready func()) error {
	srv := grpc.NewServer(grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(maxMessage), grpc.UnaryInterceptor(guarded))
	csipb.RegisterIdentityServer(srv, d)
	csipb.RegisterControllerServer(srv, d)
	csipb.RegisterNodeServer(srv, d)
	registration.RegisterRegistrationServer(srv, d)
	var wg run.Group
	defer wg.Wait()
	defer srv.Stop()
	failed := make(chan error, 2)
	for _, path := range []string{d.Endpoint, registry} { // the kubelet may call as soon as it sees the second
		l, err := d.listen(path)
		if err != nil {
			return err
		}
		defer os.Remove(path)
		wg.Go("local storage: serve", func() {
			failed <- run.Catch("local storage: serve", func() error { return srv.Serve(l) })
		})
	}
	ready()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("serve the storage driver: %w", err)
	}
}

// listen takes the place of a socket that an earlier process has left. It is
// there under its name once it answers: the kubelet calls as soon as it sees it.
func (d *Driver) listen(path string) (net.Listener, error) {
	for _, dir := range []string{filepath.Dir(d.Endpoint), filepath.Dir(path)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, fmt.Errorf("socket of the storage driver: %w", err)
		}
	}
	first := filepath.Join(filepath.Dir(d.Endpoint), "new.sock")
	if err := os.Remove(first); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("socket of the storage driver: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: first, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("socket of the storage driver: %w", err)
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(first, 0o600); err == nil {
		err = os.Rename(first, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket of the storage driver: %w", err), l.Close())
	}
	return l, nil
}

// guarded makes errors those of the contract. A panic of one call ends that call.
func guarded(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
	err = run.Catch("local storage: "+info.FullMethod, func() (err error) {
		answer, err = handler(ctx, req)
		return err
	})
	return answer, coded(err)
}

// coded gives an error the contract's code. Pure.
func coded(err error) error {
	if err == nil {
		return nil
	}
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	for _, c := range []struct {
		is   error
		code codes.Code
	}{
		{disk.ErrNotFound, codes.NotFound},
		{disk.ErrExists, codes.AlreadyExists},
		{disk.ErrNoSpace, codes.ResourceExhausted},
		{disk.ErrTooLarge, codes.OutOfRange},
		{disk.ErrTooMuch, codes.OutOfRange},
		{disk.ErrInUse, codes.FailedPrecondition},
		{disk.ErrPending, codes.FailedPrecondition},
		{disk.ErrBusy, codes.Aborted},
		{disk.ErrLimit, codes.InvalidArgument},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{context.Canceled, codes.Canceled},
	} {
		if errors.Is(err, c.is) {
			return status.Error(c.code, err.Error())
		}
	}
	return status.Error(codes.Internal, err.Error())
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// missing says which fields that must be there are not, as pairs of name and
// value.
func missing(fields ...string) error {
	for i := 0; i < len(fields); i += 2 {
		if fields[i+1] == "" {
			return invalid("%s missing in request", fields[i])
		}
	}
	return nil
}

// GetInfo tells the kubelet what registers.
func (d *Driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: Name, Endpoint: d.Endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus is how the kubelet says whether it has taken the driver.
func (d *Driver) NotifyRegistrationStatus(ctx context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !s.PluginRegistered {
		slog.WarnContext(ctx, "the kubelet does not take the storage driver", "driver", Name, "err", s.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}
