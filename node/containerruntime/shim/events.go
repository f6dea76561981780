package shim

import (
	"context"
	"net"
	"time"

	events "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// maxEvents is how many wait while containerd does not answer. When it comes
	// back it asks for the state of each container, so that none is missed.
	maxEvents = 4096
	// eventLife is how long an event is tried.
	eventLife = 10 * time.Second
	// eventAgain is when one is tried again.
	eventAgain = 100 * time.Millisecond
)

// A publisher sends events to containerd, in order.
type publisher struct {
	address string
	queue   chan *types.Envelope
	client  *ttrpc.Client
}

func newPublisher(address string) *publisher {
	return &publisher{address: address, queue: make(chan *types.Envelope, maxEvents)}
}

// send never waits.
func (p *publisher) send(namespace, topic string, event any) {
	e, err := typeurl.MarshalAnyToProto(event)
	if err != nil {
		warn("encode event %s: %v", topic, err)
		return
	}
	select {
	case p.queue <- &types.Envelope{Timestamp: timestamppb.Now(), Namespace: namespace, Topic: topic, Event: e}:
	default:
		warn("event %s is lost: %d others wait", topic, maxEvents)
	}
}

// run sends what was queued until ctx ends.
func (p *publisher) run(ctx context.Context) {
	for {
		select {
		case e := <-p.queue:
			for p.forward(ctx, e) != nil && time.Since(e.Timestamp.AsTime()) < eventLife {
				select {
				case <-time.After(eventAgain):
				case <-ctx.Done():
					return
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

func (p *publisher) forward(ctx context.Context, e *types.Envelope) error {
	if p.client == nil {
		conn, err := net.DialTimeout("unix", p.address, time.Second)
		if err != nil {
			return err
		}
		p.client = ttrpc.NewClient(conn)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := events.NewTTRPCEventsClient(p.client).Forward(ctx, &events.ForwardRequest{Envelope: e})
	if err != nil {
		p.client.Close()
		p.client = nil
	}
	return err
}
