// Package tracing sends spans of the kubelet's work to a collector, by OTLP over gRPC as
// upstream's kubelet does. It reads the identifiers of spans from contexts, and writes to the
// collector alone.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	api "k8s.io/component-base/tracing/api/v1"
)

// The scopes that upstream's spans have.
const (
	OfKubelet = "k8s.io/kubernetes/pkg/kubelet"
	OfCalls   = "go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
)

// A Kind is what a span is of.
type Kind int

// The kinds, by OTLP's numbers.
const (
	Internal Kind = 1
	Client   Kind = 3
)

const (
	// defaultEndpoint is where a collector is unless the settings say otherwise.
	defaultEndpoint = "localhost:4317"
	// maxQueue and maxBatch are the spans that wait and that are sent at once; sendAfter is
	// how long one waits for others: upstream's figures.
	maxQueue, maxBatch = 2048, 512
	sendAfter          = 5 * time.Second
	sendTime           = 10 * time.Second
	million            = 1_000_000
)

// A Tracer sends spans; nil sends none.
type Tracer struct {
	host      string
	rate      int32 // of a million
	conn      *grpc.ClientConn
	sendAfter time.Duration

	mu      sync.Mutex
	queue   []*Span
	more    chan struct{}
	dropped atomic.Uint64
}

// New returns what sends spans as the settings say, of a node of that name; nil if they say
// nothing.
func New(c *api.TracingConfiguration, host string) (*Tracer, error) {
	if c == nil {
		return nil, nil
	}
	endpoint := defaultEndpoint
	if c.Endpoint != nil && *c.Endpoint != "" {
		endpoint = *c.Endpoint
	}
	t := &Tracer{host: host, more: make(chan struct{}, 1), sendAfter: sendAfter}
	if c.SamplingRatePerMillion != nil {
		t.rate = *c.SamplingRatePerMillion
	}
	var err error
	if t.conn, err = grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return nil, fmt.Errorf("tracing.endpoint: %w", err)
	}
	return t, nil
}

// place is where a span is in its trace.
type place struct {
	trace   [16]byte
	id      [8]byte
	sampled bool
}

type key struct{}

// A Span is a piece of work; nil is one that nobody is told of.
type Span struct {
	tracer      *Tracer
	at          place
	parent      [8]byte
	scope, name string
	kind        Kind
	start, end  time.Time
	attributes  []Attribute
	failure     string
	failed      bool
}

// An Attribute is what is said of a span; Number counts where Text is empty.
type Attribute struct {
	Key, Text string
	Number    int64
}

// Text and Number are attributes.
func Text(key, value string) Attribute         { return Attribute{Key: key, Text: value} }
func Number(key string, value int64) Attribute { return Attribute{Key: key, Number: value} }

// Start begins a span, within that of the context if there is one.
func (t *Tracer) Start(ctx context.Context, scope, name string, kind Kind, attributes ...Attribute) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	above, within := ctx.Value(key{}).(place)
	at := place{trace: above.trace, sampled: above.sampled}
	if !within {
		putRandom(at.trace[:])
		at.sampled = rand.Int32N(million) < t.rate
	}
	putRandom(at.id[:])
	ctx = context.WithValue(ctx, key{}, at)
	if !at.sampled {
		return ctx, nil
	}
	return ctx, &Span{tracer: t, at: at, parent: above.id, scope: scope, name: name, kind: kind, start: time.Now(), attributes: attributes}
}

// putRandom fills an identifier; it is never all zeros, which is none.
func putRandom(id []byte) {
	for i := range id {
		id[i] = byte(rand.Uint32())
	}
	id[len(id)-1] |= 1
}

// Rename gives a span the name that it turned out to have.
func (s *Span) Rename(name string) {
	if s != nil {
		s.name = name
	}
}

// Set says more of a span.
func (s *Span) Set(attributes ...Attribute) {
	if s != nil {
		s.attributes = append(s.attributes, attributes...)
	}
}

// Fail says that the work failed.
func (s *Span) Fail(message string) {
	if s != nil {
		s.failed, s.failure = true, message
	}
}

// End notes that the work is done.
func (s *Span) End() {
	if s == nil {
		return
	}
	s.end = time.Now()
	t := s.tracer
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) >= maxQueue {
		t.dropped.Add(1)
		return
	}
	t.queue = append(t.queue, s)
	if len(t.queue) == 1 || len(t.queue)%maxBatch == 0 {
		select {
		case t.more <- struct{}{}:
		default:
		}
	}
}

// Outgoing tells who is called which span the call is in.
func Outgoing(ctx context.Context) context.Context {
	at, within := ctx.Value(key{}).(place)
	if !within {
		return ctx
	}
	flags := "00"
	if at.sampled {
		flags = "01"
	}
	return metadata.AppendToOutgoingContext(ctx, "traceparent", fmt.Sprintf("00-%x-%x-%s", at.trace, at.id, flags))
}

// Run sends until ctx ends, and then what is left.
func (t *Tracer) Run(ctx context.Context) {
	if t == nil {
		return
	}
	defer t.conn.Close()
	failing := false
	for {
		select {
		case <-t.more:
		case <-ctx.Done():
		}
		t.gather(ctx)
		for batch := t.take(); len(batch) > 0; batch = t.take() {
			err := t.send(ctx, batch)
			if err != nil {
				t.dropped.Add(uint64(len(batch)))
			}
			if failing != (err != nil) { // once, not for each batch
				if failing = err != nil; failing {
					slog.Warn("kubelet: spans are not taken by the collector", "endpoint", t.conn.Target(), "err", err)
				} else {
					slog.Info("kubelet: the collector takes spans again", "endpoint", t.conn.Target(), "lost", t.dropped.Load())
				}
			}
			if err != nil && ctx.Err() != nil {
				return // the rest would wait as long
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// gather waits for more spans, unless there are enough or ctx ends.
func (t *Tracer) gather(ctx context.Context) {
	wait := time.NewTimer(t.sendAfter)
	defer wait.Stop()
	for {
		t.mu.Lock()
		enough := len(t.queue) >= maxBatch
		t.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-t.more:
		case <-wait.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (t *Tracer) take() []*Span {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := min(len(t.queue), maxBatch)
	batch := t.queue[:n:n]
	t.queue = t.queue[n:]
	if len(t.queue) == 0 {
		t.queue = nil
	}
	return batch
}

const export = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

func (t *Tracer) send(ctx context.Context, batch []*Span) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendTime) // also what is left at the end
	defer cancel()
	var answer []byte
	return t.conn.Invoke(ctx, export, request(t.host, batch), &answer, grpc.ForceCodec(encoded{}))
}
