package metrics

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"knarr/internal/run"
)

const (
	// scrapeTime bounds one node's answer.
	scrapeTime = 10 * time.Second
	// soon is when a node that has been measured once is measured again: from then
	// on its rate is known.
	soon = 5 * time.Second
	// maxScrapes is how many nodes are asked at once: nodes that hang keep this
	// many places at most.
	maxScrapes = 64
	// logAgain is how often the log has of a node that still fails.
	logAgain = 10 * time.Minute
	// minPause is between two looks at all nodes, however many of them change or
	// end meanwhile: their number times their number would be too many.
	minPause = 250 * time.Millisecond
)

// A turn is when a node is asked.
type turn struct {
	due    time.Time
	times  int       // that it answered
	busy   bool      // it is being asked
	logged time.Time // when the log was last told that it does not answer; zero: it does
}

// A schedule is every ready node's turn.
type schedule struct {
	mu    sync.Mutex
	queue map[string]*turn
}

// update keeps an entry for just these nodes, and takes those that are due. next is
// when one more is. Those without a place stay due.
func (s *schedule) update(nodes []string, now time.Time, places int) (due []string, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := make(map[string]bool, len(nodes))
	next = now.Add(period)
	for _, name := range nodes {
		there[name] = true
		t := s.queue[name]
		if t == nil {
			t = &turn{due: now}
			s.queue[name] = t
		}
		switch {
		case t.busy: // its end wakes
		case t.due.After(now):
			next = earlier(next, t.due)
		case places > 0:
			places--
			t.busy = true
			due = append(due, name)
		}
	}
	for name, t := range s.queue {
		if !there[name] && !t.busy {
			delete(s.queue, name)
		}
	}
	return due, next
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// done ends a node's turn, and says whether the log is to have it: that a node fails, again
// while it does, and that it answers again.
func (s *schedule) done(name string, began time.Time, err error) (report bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.queue[name]
	t.busy = false
	switch failed := !t.logged.IsZero(); {
	case err == nil:
		t.times++
		report, t.logged = failed, time.Time{}
	case !failed || began.Sub(t.logged) >= logAgain:
		report, t.logged = true, began
	}
	t.due = nextTurn(name, began)
	if err == nil && t.times == 1 {
		t.due = began.Add(soon)
	}
	return report
}

// nextTurn is the next of a node's times after now: one in each period, by its
// name, so that nodes are not all asked at once. Pure.
func nextTurn(name string, now time.Time) time.Time {
	h := fnv.New32a()
	_, _ = io.WriteString(h, name)
	phase := time.Duration(h.Sum32()) % period
	at := now.Truncate(period).Add(phase)
	for at.Sub(now) < period/2 {
		at = at.Add(period)
	}
	return at
}

// scrapeAll asks every ready node in its turn, until ctx ends.
func (s *Server) scrapeAll(ctx context.Context) {
	all := &schedule{queue: map[string]*turn{}}
	places := make(chan struct{}, maxScrapes)
	var wg run.Group
	defer wg.Wait()
	for ctx.Err() == nil {
		due, next := all.update(s.readyNodes(), time.Now(), maxScrapes-len(places))
		for _, name := range due {
			places <- struct{}{}
			wg.Go("metrics: scrape a node", func() {
				began := time.Now()
				err := run.Catch("metrics: scrape a node", func() error { return s.scrape(ctx, name) })
				switch report := all.done(name, began, err) && ctx.Err() == nil; {
				case report && err != nil:
					slog.WarnContext(ctx, "scrape metrics", "node", name, "err", err)
				case report:
					slog.InfoContext(ctx, "metrics are scraped again", "node", name)
				}
				<-places
				s.kick()
			})
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-timer.C:
		case <-s.wake:
		case <-ctx.Done():
		}
		timer.Stop()
		select {
		case <-time.After(minPause):
		case <-ctx.Done():
		}
	}
}

// readyNodes are those to be asked: none while somebody else serves the API.
func (s *Server) readyNodes() (names []string) {
	if !s.register.ours.Load() {
		s.store.clear()
		return nil
	}
	for _, o := range s.nodes.GetStore().List() {
		if n := o.(*corev1.Node); ready(n) {
			names = append(names, n.Name)
		}
	}
	s.store.keep(func(node string) bool { _, there, _ := s.nodes.GetStore().GetByKey(node); return there }, time.Now())
	return names
}

// scrape asks one node.
func (s *Server) scrape(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, scrapeTime)
	defer cancel()
	base, transport, err := s.cfg.Kubelet(ctx, node)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("/metrics/resource").String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	req.Header.Set("Accept-Encoding", "identity") // what is bounded is what is sent
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the kubelet answers %d", resp.StatusCode)
	}
	now := time.Now()
	b, err := decode(resp.Body, now)
	if err == nil {
		s.store.put(node, b, now)
	}
	return err
}
