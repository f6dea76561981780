package audit

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"sync"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// A Log writes events as lines of JSON.
type Log struct {
	mu  sync.Mutex
	out io.Writer
}

// NewLog writes to out.
func NewLog(out io.Writer) *Log { return &Log{out: out} }

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
	line, err := json.Marshal(ev)
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
