package smoke

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const grpcManifest = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: grpc, namespace: smoke}
spec:
  gatewayClassName: knarr
  listeners: [{name: grpc, port: 50051, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: health, namespace: smoke}
spec:
  parentRefs: [{name: grpc}]
  rules:
  - matches: [{method: {service: grpc.health.v1.Health}}]
    backendRefs: [{name: health, port: 50051}]
---
apiVersion: v1
kind: Service
metadata: {name: health, namespace: smoke}
spec:
  ports: [{name: grpc, port: 50051}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: health, namespace: smoke, labels: {kubernetes.io/service-name: health}}
addressType: IPv4
ports: [{name: grpc, port: %d}]
endpoints: [{addresses: [%q]}]
`

// grpcRoute leads gRPC through a Gateway to a server of the test's own: one question and its
// answer, a status and a trailer, a stream whose answers come one by one, and a method that
// has no route.
func grpcRoute(t *testing.T, c *cluster) {
	address := c.nodeAddress(t)
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	served := health.NewServer()
	served.SetServingStatus("smoke", grpc_health_v1.HealthCheckResponse_SERVING)
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x-last", "after the answer"))
		return handle(ctx, request)
	}))
	grpc_health_v1.RegisterHealthServer(server, served)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(l) }()
	defer func() { server.Stop(); <-ended }()
	c.wait("the class of Gateways", 30*time.Second, func(context.Context) (bool, error) {
		out, err := c.try("get", "gatewayclass", "knarr")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err == nil, err
	})
	manifest := fmt.Sprintf(grpcManifest, l.Addr().(*net.TCPAddr).Port, address)
	c.apply(manifest)
	c.kubectl("-n", "smoke", "wait", "gateway/grpc", "--for=condition=Programmed", "--timeout=30s")
	conn, err := grpc.NewClient(c.kubectl("-n", "smoke", "get", "gateway", "grpc", "-o", "jsonpath={.status.addresses[0].value}")+":50051", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := grpc_health_v1.NewHealthClient(conn)
	var trailer metadata.MD
	check := func(ctx context.Context, service string) (*grpc_health_v1.HealthCheckResponse, error) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		return client.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service}, grpc.Trailer(&trailer))
	}
	c.wait("an answer by gRPC", 30*time.Second, func(ctx context.Context) (bool, error) {
		answer, err := check(ctx, "smoke")
		return err == nil && answer.Status == grpc_health_v1.HealthCheckResponse_SERVING, err
	})
	if got := trailer.Get("x-last"); len(got) != 1 || got[0] != "after the answer" {
		t.Errorf("the trailer is %v", trailer)
	}
	if _, err := check(t.Context(), "none"); status.Code(err) != codes.NotFound || status.Convert(err).Message() != "unknown service" {
		t.Errorf("of a service that is not there it is said: %v", err)
	}
	stream, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "smoke"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []grpc_health_v1.HealthCheckResponse_ServingStatus{grpc_health_v1.HealthCheckResponse_SERVING, grpc_health_v1.HealthCheckResponse_NOT_SERVING, grpc_health_v1.HealthCheckResponse_SERVING} {
		served.SetServingStatus("smoke", want)
		if answer, err := stream.Recv(); err != nil || answer.Status != want {
			t.Fatalf("the stream says %v, %v, want %v", answer, err, want)
		}
	}
	if err := conn.Invoke(t.Context(), "/other.Service/Method", &grpc_health_v1.HealthCheckRequest{}, &grpc_health_v1.HealthCheckResponse{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("without a route: %v", err)
	}
	c.kubectl("-n", "smoke", "delete", "gateway/grpc", "grpcroute/health", "service/health", "endpointslice/health")
	c.wait("the Gateway's Service to go", 15*time.Second, func(ctx context.Context) (bool, error) {
		_, err := c.client.CoreV1().Services("smoke").Get(ctx, "grpc-knarr", metav1.GetOptions{})
		if err == nil {
			err = errors.New("it is still there")
			return false, err
		}
		return true, nil
	})
}

func (c *cluster) nodeAddress(t *testing.T) string {
	node, err := c.client.CoreV1().Nodes().Get(t.Context(), "smoke", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	t.Fatal("the node has no address")
	return ""
}
