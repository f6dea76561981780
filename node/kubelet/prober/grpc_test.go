package prober

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
)

// expiring is a context whose deadline is when over is closed, so that no test waits for one.
type expiring struct {
	context.Context
	over chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.over }

func (e expiring) Err() error {
	select {
	case <-e.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// health answers with a status, or hangs until it has passed the client's deadline.
type health struct {
	healthpb.UnimplementedHealthServer
	answer healthpb.HealthCheckResponse_ServingStatus
	over   chan struct{} // the client's deadline, nil for one that answers
}

func (h health) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if h.over != nil {
		close(h.over)
		<-ctx.Done()
	}
	return &healthpb.HealthCheckResponse{Status: h.answer}, nil
}

// TestGRPC: what is told of a gRPC probe is in upstream's words, which tell a server that cannot
// be reached from one that takes too long to answer.
func TestGRPC(t *testing.T) {
	serve := func(h healthpb.HealthServer) func(net.Listener, chan struct{}) {
		return func(l net.Listener, _ chan struct{}) {
			s := grpc.NewServer()
			if h != nil {
				healthpb.RegisterHealthServer(s, h)
			}
			go func() { _ = s.Serve(l) }()
			t.Cleanup(s.Stop)
		}
	}
	for name, c := range map[string]struct {
		server func(l net.Listener, over chan struct{})
		want   string
	}{
		"serves":     {serve(health{answer: healthpb.HealthCheckResponse_SERVING}), "service healthy"},
		"is unwell":  {serve(health{answer: healthpb.HealthCheckResponse_NOT_SERVING}), `service unhealthy (responded with "NOT_SERVING")`},
		"has no RPC": {serve(nil), "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service grpc.health.v1.Health"},
		"hangs": {func(l net.Listener, over chan struct{}) { serve(health{over: over})(l, over) },
			"timeout: health rpc did not complete within 1h0m0s"},
		"is silent": {func(l net.Listener, over chan struct{}) {
			go func() {
				if conn, err := l.Accept(); err == nil {
					t.Cleanup(func() { conn.Close() })
				}
				close(over)
			}()
		}, `timeout: failed to connect service "ADDRESS" within 1h0m0s: `},
		"is not there": {func(l net.Listener, over chan struct{}) {
			l.Close()
			time.AfterFunc(10*time.Millisecond, func() { close(over) })
		}, `timeout: failed to connect service "ADDRESS" within 1h0m0s: `},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			over := make(chan struct{})
			c.server(l, over)
			port := l.Addr().(*net.TCPAddr).Port
			r := grpcHealth(expiring{t.Context(), over}, Target{PodIP: "127.0.0.1"}, &corev1.GRPCAction{Port: int32(port)}, time.Hour)
			want := strings.Replace(c.want, "ADDRESS", l.Addr().String(), 1)
			if r.err != nil || r.ok != (name == "serves") || r.output != want && !(strings.HasSuffix(want, ": ") && strings.HasPrefix(r.output, want)) {
				t.Errorf("%+v, want %q", r, want)
			}
		})
	}
}
