package kubelet

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podtest"
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

// TestOutageIsFewLines: an hour in which the API server or the runtime does not answer 110 pods
// is some lines of the log, and what is wrong with one pod is not lost among them.
func TestOutageIsFewLines(t *testing.T) {
	log := takeLog(t)
	k := admitting(t)
	synctest.Test(t, func(t *testing.T) {
		var all []*worker
		for i := range 110 {
			w := newWorker(k, podtest.Pod(fmt.Sprint("p", i)))
			w.pod = w.inbox.pod
			all = append(all, w)
		}
		away := func(p *corev1.Pod) error {
			return &url.Error{Op: "Patch", URL: "https://10.0.0.1:6443/api/v1/namespaces/ns/pods/" + p.Name, Err: errors.New("connection refused")}
		}
		for range 360 {
			for i, w := range all {
				w.warn("patch pod status", away(w.pod))
				w.warn("kill container", status.Error(codes.DeadlineExceeded, "context deadline exceeded"), "container", "c")
				if i%50 == 7 {
					w.warn("kill container", errors.New("is in an uninterruptible state"), "container", "c")
				}
			}
			time.Sleep(10 * time.Second)
		}
	})
	for _, c := range []struct {
		words []string
		want  int
	}{
		{[]string{"patch pod status"}, 6}, {[]string{"kill container", "deadline"}, 6}, {[]string{"kill container", "uninterruptible", "p57_ns", "container=c"}, 6}, {[]string{"uninterruptible"}, 18},
	} {
		if got := log.count(c.words...); got != c.want {
			t.Errorf("%q: %d lines, want %d", c.words, got, c.want)
		}
	}
}
