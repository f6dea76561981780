package tracing

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"knarr/internal/version"
)

const (
	sendTime  = 10 * time.Second
	sendAfter = time.Second // that a span waits for others
	maxBatch  = 512         // spans that are sent at once
	maxQueue  = 4 << 20     // bytes of spans that wait
)

// End notes what became of the request of a span.
func (t *Tracer) End(s *Span, r *Request) {
	if !s.Sampled {
		return
	}
	span := appendSpan(nil, s, r)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.size+len(span) > maxQueue {
		t.dropped.Add(1)
		return
	}
	t.queue, t.size = append(t.queue, span), t.size+len(span)
	if len(t.queue) == 1 || len(t.queue)%maxBatch == 0 {
		select {
		case t.more <- struct{}{}:
		default:
		}
	}
}

// Run sends until ctx ends, and then what is left.
func (t *Tracer) Run(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		select {
		case <-t.more:
		case <-ctx.Done():
		}
		t.gather(ctx)
		for batch := t.take(); len(batch) > 0; batch = t.take() {
			err := t.send(ctx, batch)
			if err != nil {
				t.dropped.Add(uint64(len(batch)))
			} else {
				t.sent.Add(uint64(len(batch)))
			}
			if err != nil && ctx.Err() != nil {
				return // the rest would wait as long
			}
			if failing != (err != nil) { // once, not for each batch
				if failing = err != nil; failing {
					slog.Warn("gateway: spans are not taken by the collector", "url", t.url, "err", err)
				} else {
					slog.Info("gateway: the collector takes spans again", "url", t.url)
				}
			}
		}
	}
}

// gather waits for more spans, unless there are enough for a batch.
func (t *Tracer) gather(ctx context.Context) {
	timer := time.NewTimer(sendAfter)
	defer timer.Stop()
	for {
		t.mu.Lock()
		enough := len(t.queue) >= maxBatch
		t.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-t.more:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (t *Tracer) take() (batch [][]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := min(len(t.queue), maxBatch)
	batch = t.queue[:n:n]
	for _, span := range batch {
		t.size -= len(span)
	}
	if t.queue = t.queue[n:]; len(t.queue) == 0 {
		t.queue = nil
	}
	return batch
}

// send sends a batch; the last ones may be sent once ctx has ended.
func (t *Tracer) send(ctx context.Context, batch [][]byte) error {
	b := appendText([]byte(`{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"knarr-gateway"}},{"key":"service.version","value":{"stringValue":`), version.Version)
	b = appendText(append(b, `}},{"key":"k8s.node.name","value":{"stringValue":`...), t.cfg.Node)
	b = append(b, `}}]},"scopeSpans":[{"scope":{"name":"knarr/gateway"},"spans":[`...)
	for i, span := range batch {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, span...)
	}
	b = append(b, "]}]}]}"...)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, bytes.NewReader(b))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := t.cfg.Client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 64<<10)) // so that the connection can be used again
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return fmt.Errorf("the collector answers %s", answer.Status)
	}
	return nil
}
