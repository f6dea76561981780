package audit

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// Truncating is how long events may be.
type Truncating struct {
	Enabled bool
	// MaxEvent and MaxBatch are in bytes. Events go one by one from here, so
	// that the second only bounds the first.
	MaxEvent, MaxBatch int64
}

// Validate names the first mistake; name is the flags' part for the sink.
func (t Truncating) Validate(name string) error {
	switch {
	case t.MaxEvent <= 0:
		return fmt.Errorf("invalid audit truncate %s max event size %v, must be a positive number", name, t.MaxEvent)
	case t.MaxBatch < t.MaxEvent:
		return fmt.Errorf("invalid audit truncate %s max batch size %v, must be greater than max event size (%v)", name, t.MaxBatch, t.MaxEvent)
	}
	return nil
}

// truncate is a Sink that leaves out what was asked and answered of events that
// are too long, and drops those that are too long without.
type truncate struct {
	Sink
	max int64
}

const truncatedNote = "audit.k8s.io/truncated"

func (t truncate) Process(ev *auditv1.Event) bool {
	size, err := sizeOf(ev)
	if err == nil && size > t.max && (ev.Level == auditv1.LevelRequest || ev.Level == auditv1.LevelRequestResponse) {
		shorter := short(*ev)
		ev = &shorter
		size, err = sizeOf(ev)
	}
	if err == nil && size > t.max {
		err = fmt.Errorf("event is too large even after truncating")
	}
	if err != nil {
		failed.WithLabelValues("truncate").Inc()
		slog.Error("Error in audit plugin 'truncate' affecting 1 audit events", "audit-id", ev.AuditID, "err", err)
		return true
	}
	return t.Sink.Process(ev)
}

// short is an event without what was asked and answered.
func short(ev auditv1.Event) auditv1.Event {
	ev.RequestObject, ev.ResponseObject = nil, nil
	ev.Annotations = maps.Clone(ev.Annotations)
	if ev.Annotations == nil {
		ev.Annotations = map[string]string{}
	}
	ev.Annotations[truncatedNote] = "true"
	return ev
}

// sizeOf is an event's length as a line.
func sizeOf(ev *auditv1.Event) (int64, error) {
	line, err := json.Marshal(ev)
	return int64(len(line)) + 1, err
}
