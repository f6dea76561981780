package csi

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"knarr/node/kubelet/volume"
)

// A Call is one of a driver.
type Call struct {
	Driver, Method string
	// Migrated says that it is about a volume of a plugin within Kubernetes, from which
	// the driver has taken over.
	Migrated bool
	Took     time.Duration
	Err      error
}

// migrated marks the calls that are about a volume of such a plugin.
type migrated struct{}

func withMigrated(ctx context.Context, is bool) context.Context {
	if !is {
		return ctx
	}
	return context.WithValue(ctx, migrated{}, true)
}

// telling tells of each call to a driver.
func (m *Manager) telling(driver string) grpc.DialOption {
	return grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		began := time.Now()
		err := invoke(ctx, method, req, reply, conn, opts...)
		of, _ := ctx.Value(migrated{}).(bool)
		m.Called(Call{Driver: driver, Method: method, Migrated: of, Took: time.Since(began), Err: err})
		return err
	})
}

// did tells of an operation with a volume that began at a time.
func (m *Manager) did(name string, r record, began time.Time, err error) {
	m.Did(volume.Operation{Name: name, Plugin: volume.DriverPlugin(r.Driver), Migrated: r.Migrated, Took: time.Since(began), Err: err})
}

// Noted says what is wrong with what is noted of the volume in a directory.
func Noted(dir string) error {
	_, err := noted(dir)
	return err
}
