package kubelet

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"knarr/node/kubelet/tracing"
)

// traced makes a span of every call to the runtime, within that of who makes it, and tells
// the runtime of it.
type traced struct {
	grpc.ClientConnInterface
	tracer *tracing.Tracer
}

// Invoke makes one call.
func (c traced) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if c.tracer == nil {
		return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	}
	name := strings.TrimPrefix(method, "/")
	service, call, _ := strings.Cut(name, "/")
	ctx, span := c.tracer.Start(ctx, tracing.OfCalls, name, tracing.Client,
		tracing.Text("rpc.system", "grpc"), tracing.Text("rpc.service", service), tracing.Text("rpc.method", call))
	defer span.End()
	err := c.ClientConnInterface.Invoke(tracing.Outgoing(ctx), method, args, reply, opts...)
	is := status.Convert(err)
	span.Set(tracing.Number("rpc.grpc.status_code", int64(is.Code())))
	if err != nil {
		span.Fail(is.Message())
	}
	return err
}

// spanNames are those of looks at a pod, by what its worker does for it.
var spanNames = map[string]string{stages[0]: "syncPod", stages[1]: "syncTerminatingPod", stages[2]: "syncTerminatedPod"}

// describe says of a span which look at the pod it was; what was begun then goes on beside
// it.
func (w *worker) describe(span *tracing.Span, kind string) {
	if span == nil || w.pod == nil {
		return
	}
	if name := spanNames[w.stage()]; name != "" {
		span.Rename(name)
	}
	span.Set(tracing.Text("k8s.pod.uid", string(w.pod.UID)), tracing.Text("k8s.pod", w.pod.Namespace+"/"+w.pod.Name), tracing.Text("k8s.pod.name", w.pod.Name),
		tracing.Text("k8s.pod.update_type", kind), tracing.Text("k8s.namespace.name", w.pod.Namespace))
}
