package kubelet

import (
	"bytes"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestNews: what fails again and again is a line in ten minutes, whatever else fails
// meanwhile, and not all of it is remembered.
func TestNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, lines := &news{}, 0
		for range 6 * 60 {
			for _, text := range []string{"one", "other"} {
				if n.isNew("p", text) {
					lines++
				}
			}
			time.Sleep(10 * time.Second)
		}
		if lines != 12 {
			t.Errorf("%d lines in an hour, want one of each in ten minutes", lines)
		}
		if !n.isNew("q", "one") {
			t.Error("the same about another is not new")
		}
		lines = 0
		for i := range 100 {
			if n.isNew("other words each time", strconv.Itoa(i)) {
				lines++
			}
		}
		if lines != maxTexts {
			t.Errorf("%d lines about one thing, want %d", lines, maxTexts)
		}
		for i := range 3 * maxNews {
			n.isNew("p", strconv.Itoa(i))
		}
		if len(n.last) > maxNews {
			t.Errorf("%d texts are remembered", len(n.last))
		}
	})
}

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
