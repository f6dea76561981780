package audit

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"sync"

	upstreamtypes "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	upstream "k8s.io/apiserver/pkg/audit"
)

// The formats of a log.
const (
	JSON   = "json"
	Legacy = "legacy"
)

// A Log writes events as lines.
type Log struct {
	mu     sync.Mutex
	out    io.Writer
	format string
}

// NewLog writes to out, in a format.
func NewLog(out io.Writer, format string) *Log { return &Log{out: out, format: format} }

// Send writes several lines.
func (l *Log) Send(_ context.Context, events []*auditv1.Event) error {
	for _, ev := range events {
		if !l.Process(ev) {
			return errors.New("the log takes no more")
		}
	}
	return nil
}

// Process writes one line.
func (l *Log) Process(ev *auditv1.Event) bool {
	line, err := l.line(ev)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		_, err = l.out.Write(append(line, '\n'))
	}
	if err != nil {
		slog.Error("write the audit log", "audit-id", ev.AuditID, "err", err)
	}
	return err == nil
}

func (l *Log) line(ev *auditv1.Event) ([]byte, error) {
	if l.format != Legacy {
		return json.Marshal(ev)
	}
	var of upstreamtypes.Event
	err := auditv1.Convert_v1_Event_To_audit_Event(ev, &of, nil)
	return []byte(upstream.EventString(&of)), err
}
