package kubelet

import (
	"net"
	"sync"
	"testing"

	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	api "k8s.io/component-base/tracing/api/v1"

	"knarr/node/kubelet/podtest"
)

// TestSpansOfAPod: where the settings say so, a collector gets spans of the looks at a pod, and
// within them those of calls to the runtime, also of what is begun then and goes on beside it.
func TestSpansOfAPod(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	spans := map[string]*trace.Span{} // by id
	srv := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		var d trace.TracesData // on the wire the same as the request
		if err := s.RecvMsg(&d); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, r := range d.ResourceSpans {
			for _, scope := range r.ScopeSpans {
				for _, span := range scope.Spans {
					spans[string(span.SpanId)] = proto.CloneOf(span)
				}
			}
		}
		return s.SendMsg(&emptypb.Empty{})
	}))
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(srv.Stop)
	n := newNode(t)
	n.config = func(c *Config) {
		c.Settings.Tracing = &api.TracingConfiguration{Endpoint: new(ln.Addr().String()), SamplingRatePerMillion: new(int32(1_000_000))}
	}
	stop := n.start()
	n.api.addPod(podtest.Use(podtest.Pod("web", "a")))
	n.until("ready", n.ready("web"))
	stop() // what is left is sent at the end
	mu.Lock()
	defer mu.Unlock()
	within := map[string]string{}
	for _, s := range spans {
		if s.Kind == trace.Span_SPAN_KIND_CLIENT {
			if above := spans[string(s.ParentSpanId)]; above != nil && within[s.Name] == "" {
				within[s.Name] = above.Name
			}
		}
	}
	for _, call := range []string{"RunPodSandbox", "CreateContainer", "StartContainer"} {
		if got := within["runtime.v1.RuntimeService/"+call]; got != "syncPod" {
			t.Errorf("%s is within %q of %v", call, got, within)
		}
	}
	named := false
	for _, s := range spans {
		if s.Name == "syncPod" {
			for _, a := range s.Attributes {
				named = named || a.Key == "k8s.pod.name" && a.Value.GetStringValue() == "web"
			}
		}
	}
	if !named {
		t.Error("no look says which pod it was at")
	}
}
