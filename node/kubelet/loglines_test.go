package kubelet

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
)

// logLines is what the log has while a kubelet runs.
type logLines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

// takeLog has the log until the end of the test.
func takeLog(t *testing.T) *logLines {
	l, before := &logLines{}, slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(l, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return l
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

// count is how many lines have all the words.
func (l *logLines) count(words ...string) (lines int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.all.String()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			lines++
		}
	}
	return lines
}
