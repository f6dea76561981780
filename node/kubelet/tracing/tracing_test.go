package tracing

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	api "k8s.io/component-base/tracing/api/v1"
)

// A collector takes spans over gRPC, as OpenTelemetry's does.
type collector struct {
	got    chan *trace.TracesData
	refuse chan error // what it answers with, if there is something
}

func collect(t *testing.T) (*collector, string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{got: make(chan *trace.TracesData, 16), refuse: make(chan error, 1)}
	srv := grpc.NewServer(grpc.ForceServerCodec(encoded{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		if m, _ := grpc.MethodFromServerStream(s); m != export {
			t.Errorf("called %s", m)
		}
		var b []byte
		if err := s.RecvMsg(&b); err != nil {
			return err
		}
		var d trace.TracesData // on the wire the same as the request
		if err := proto.Unmarshal(b, &d); err != nil {
			t.Error(err)
		}
		c.got <- &d
		select {
		case err := <-c.refuse:
			return err
		default:
			return s.SendMsg([]byte{})
		}
	}))
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(srv.Stop)
	return c, ln.Addr().String()
}

// tracer sends to an endpoint at once, until the returned function is called.
func tracer(t *testing.T, endpoint string, rate int32) (*Tracer, func()) {
	t.Helper()
	tr, err := New(&api.TracingConfiguration{Endpoint: &endpoint, SamplingRatePerMillion: &rate}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	tr.sendAfter = 0
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); tr.Run(ctx) }()
	return tr, func() { cancel(); <-done }
}

func valueOf(attributes []*common.KeyValue, key string) string {
	for _, a := range attributes {
		if a.Key == key {
			if s := a.Value.GetStringValue(); s != "" {
				return s
			}
			return "number"
		}
	}
	return ""
}

// TestSpans: a span and one within it arrive with who sends them, as upstream's do.
func TestSpans(t *testing.T) {
	c, endpoint := collect(t)
	tr, stop := tracer(t, endpoint, million)
	ctx, pod := tr.Start(t.Context(), OfKubelet, "a look", Internal, Text("k8s.pod.name", "p"))
	_, call := tr.Start(ctx, OfCalls, "runtime.v1.RuntimeService/RunPodSandbox", Client, Text("rpc.system", "grpc"))
	call.Set(Number("rpc.grpc.status_code", 14))
	call.Fail("gone")
	call.End()
	pod.Rename("syncPod")
	pod.End()
	stop()
	spans, scopes := map[string]*trace.Span{}, []string{}
	for range len(c.got) {
		for _, r := range (<-c.got).ResourceSpans {
			if valueOf(r.Resource.Attributes, "service.name") != "kubelet" || valueOf(r.Resource.Attributes, "host.name") != "n1" {
				t.Errorf("of %v", r.Resource)
			}
			for _, s := range r.ScopeSpans {
				scopes = append(scopes, s.Scope.Name)
				for _, span := range s.Spans {
					spans[span.Name] = span
				}
			}
		}
	}
	slices.Sort(scopes)
	if !slices.Equal(scopes, []string{OfCalls, OfKubelet}) {
		t.Errorf("scopes %v", scopes)
	}
	above, below := spans["syncPod"], spans["runtime.v1.RuntimeService/RunPodSandbox"]
	if above == nil || below == nil {
		t.Fatalf("%v", spans)
	}
	if string(below.TraceId) != string(above.TraceId) || string(below.ParentSpanId) != string(above.SpanId) || len(above.ParentSpanId) != 0 || len(above.TraceId) != 16 {
		t.Errorf("%v is not within %v", below, above)
	}
	if above.Kind != trace.Span_SPAN_KIND_INTERNAL || below.Kind != trace.Span_SPAN_KIND_CLIENT || above.Flags != 1 ||
		below.Status.GetCode() != trace.Status_STATUS_CODE_ERROR || below.Status.Message != "gone" || above.Status.GetCode() != 0 {
		t.Errorf("%v\n%v", above, below)
	}
	if valueOf(above.Attributes, "k8s.pod.name") != "p" || valueOf(below.Attributes, "rpc.grpc.status_code") != "number" {
		t.Errorf("%v\n%v", above.Attributes, below.Attributes)
	}
	if above.StartTimeUnixNano > below.StartTimeUnixNano || below.EndTimeUnixNano > above.EndTimeUnixNano || time.Since(time.Unix(0, int64(above.EndTimeUnixNano))) > time.Hour {
		t.Errorf("times: %v\n%v", above, below)
	}
}

// TestSampling: nothing of what is not sampled is sent, nor of what is within it, and the one
// who is called knows.
func TestSampling(t *testing.T) {
	tr, err := New(&api.TracingConfiguration{}, "n1") // as upstream: never, unless the settings say how often
	if err != nil {
		t.Fatal(err)
	}
	defer tr.conn.Close()
	ctx, span := tr.Start(t.Context(), OfKubelet, "syncPod", Internal)
	tr.rate = million
	within, call := tr.Start(ctx, OfCalls, "call", Client)
	if span != nil || call != nil {
		t.Error("sampled")
	}
	m, _ := metadata.FromOutgoingContext(Outgoing(within))
	if got := m.Get("traceparent"); len(got) != 1 || !strings.HasPrefix(got[0], "00-") || !strings.HasSuffix(got[0], "-00") || len(got[0]) != 55 {
		t.Errorf("%q", got)
	}
	sampled, span := tr.Start(t.Context(), OfKubelet, "syncPod", Internal)
	m, _ = metadata.FromOutgoingContext(Outgoing(sampled))
	if got := m.Get("traceparent"); span == nil || len(got) != 1 || !strings.HasSuffix(got[0], "-01") {
		t.Errorf("%v, %q", span, got)
	}
	if _, any := metadata.FromOutgoingContext(Outgoing(t.Context())); any {
		t.Error("a header of no span")
	}
}

// TestWithoutSettings: without settings nothing is noted, and nothing breaks.
func TestWithoutSettings(t *testing.T) {
	tr, err := New(nil, "n1")
	if tr != nil || err != nil {
		t.Fatal(tr, err)
	}
	ctx, span := tr.Start(t.Context(), OfKubelet, "syncPod", Internal)
	span.Rename("x")
	span.Set(Number("n", 1))
	span.Fail("no")
	span.End()
	tr.Run(ctx)
	if ctx != t.Context() {
		t.Error("a context of its own")
	}
}

// TestQueue: spans that nobody takes are dropped, the newest first, and sending goes on when
// the collector takes them again.
func TestQueue(t *testing.T) {
	c, endpoint := collect(t)
	tr, err := New(&api.TracingConfiguration{Endpoint: &endpoint, SamplingRatePerMillion: new(int32(million))}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	for range maxQueue + 7 {
		_, span := tr.Start(t.Context(), OfKubelet, "syncPod", Internal)
		span.End()
	}
	if got := tr.dropped.Load(); got != 7 || len(tr.queue) != maxQueue {
		t.Errorf("%d dropped, %d wait", got, len(tr.queue))
	}
	c.refuse <- errors.New("full")
	tr.sendAfter = 0
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); tr.Run(ctx) }()
	n := 0
	for n < maxQueue {
		for _, s := range (<-c.got).ResourceSpans[0].ScopeSpans {
			n += len(s.Spans)
		}
	}
	cancel()
	<-done
	if got := tr.dropped.Load(); got != 7+maxBatch {
		t.Errorf("%d dropped of those that were refused too", got)
	}
}
