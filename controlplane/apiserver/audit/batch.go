package audit

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/util/flowcontrol"
)

// Batching is how events are gathered before they are sent.
type Batching struct {
	// Buffer is how many events may wait; more are dropped. MaxSize is how many
	// go at once, MaxWait how long the first of them waits.
	Buffer, MaxSize int
	MaxWait         time.Duration
	// Throttle bounds how many batches go: PerSecond, and Burst at once.
	Throttle  bool
	PerSecond float32
	Burst     int
}

// Validate names the first mistake; name is the flags' part for the sink.
func (b Batching) Validate(name string) error {
	switch {
	case b.Buffer <= 0:
		return fmt.Errorf("invalid audit batch %s buffer size %v, must be a positive number", name, b.Buffer)
	case b.MaxSize <= 0:
		return fmt.Errorf("invalid audit batch %s max batch size %v, must be a positive number", name, b.MaxSize)
	case b.Throttle && b.PerSecond <= 0:
		return fmt.Errorf("invalid audit batch %s throttle QPS %v, must be a positive number", name, b.PerSecond)
	case b.Throttle && b.Burst <= 0:
		return fmt.Errorf("invalid audit batch %s throttle burst %v, must be a positive number", name, b.Burst)
	}
	return nil
}

// A Batch is a Sink that sends events together, without anybody waiting.
type Batch struct {
	Batching
	send  func(context.Context, []*auditv1.Event) error
	queue chan *auditv1.Event
}

// NewBatch sends with send. Nothing is sent before Run.
func NewBatch(b Batching, send func(context.Context, []*auditv1.Event) error) *Batch {
	return &Batch{Batching: b, send: send, queue: make(chan *auditv1.Event, b.Buffer)}
}

// Process queues an event; it is dropped when too many wait.
func (b *Batch) Process(ev *auditv1.Event) bool {
	select {
	case b.queue <- ev:
		return true
	default:
		return false
	}
}

// lastTime bounds the sending of what is left at the end.
const lastTime = 5 * time.Second

// Run sends until ctx ends, and then once more what is left. lost is called with how
// many events could not be sent.
func (b *Batch) Run(ctx context.Context, lost func(int)) {
	var throttle flowcontrol.RateLimiter
	if b.Throttle {
		throttle = flowcontrol.NewTokenBucketRateLimiter(b.PerSecond, b.Burst)
	}
	send := func(ctx context.Context, events []*auditv1.Event) {
		if throttle != nil {
			_ = throttle.Wait(ctx) // it fails only when ctx ends
		}
		if err := b.send(ctx, events); err != nil {
			slog.ErrorContext(ctx, "send audit events", "events", len(events), "err", err)
			lost(len(events))
		}
	}
	for ctx.Err() == nil {
		if events := b.gather(ctx); len(events) > 0 {
			send(ctx, events)
		}
	}
	throttle = nil
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	for {
		events := b.left()
		if len(events) == 0 {
			return
		}
		send(last, events)
	}
}

// gather waits for one event, and then for as many as go at once.
func (b *Batch) gather(ctx context.Context) (events []*auditv1.Event) {
	var full <-chan time.Time
	for len(events) < b.MaxSize {
		select {
		case ev := <-b.queue:
			events = append(events, ev)
			if full == nil && b.MaxWait > 0 {
				timer := time.NewTimer(b.MaxWait)
				defer timer.Stop()
				full = timer.C
			}
		case <-full:
			return events
		case <-ctx.Done():
			return events
		}
	}
	return events
}

// left is what is in the queue, as much as goes at once.
func (b *Batch) left() (events []*auditv1.Event) {
	for len(events) < b.MaxSize {
		select {
		case ev := <-b.queue:
			events = append(events, ev)
		default:
			return events
		}
	}
	return events
}
