package controller

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
)

// logged is what f writes into the log.
func logged(t *testing.T, f func()) string {
	t.Helper()
	var mu sync.Mutex
	var out bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(writer(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return out.Write(b)
	}), nil)))
	defer slog.SetDefault(before)
	f()
	mu.Lock()
	defer mu.Unlock()
	return out.String()
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// TestFailuresAreLoggedOnce: a key that fails for one reason is a line at first and one
// in ten minutes; another reason, and one after it went well, are lines at once.
func TestFailuresAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var why atomic.Pointer[string]
		var tries atomic.Int32
		say := func(text string) { why.Store(&text) }
		say("no account")
		c := &Controller[string]{
			Name: "test", RetryDelay: [2]time.Duration{time.Second, time.Second},
			Feeds: []func(context.Context, func(), func(string)) error{func(ctx context.Context, ready func(), add func(string)) error {
				add("a/b")
				ready()
				<-ctx.Done()
				return nil
			}},
			Reconcile: func(context.Context, string) (time.Duration, error) {
				tries.Add(1)
				if text := *why.Load(); text != "" {
					return 0, errors.New(text)
				}
				return time.Second, nil
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		text := logged(t, func() {
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			time.Sleep(11 * time.Minute)
			say("no room")
			time.Sleep(time.Minute)
			say("")
			time.Sleep(time.Minute)
			say("no room")
			time.Sleep(time.Minute)
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		var got []string
		for line := range strings.Lines(text) {
			_, line, _ = strings.Cut(line, "level=")
			got = append(got, strings.TrimSpace(line))
		}
		const line = `WARN msg="reconcile failed, trying again" controller=test key=a/b err=`
		want := []string{line + `"no account"`, line + `"no account" tries=600`, line + `"no room" tries=60`, line + `"no room"`}
		if tries.Load() < 800 || len(got) != len(want) {
			t.Fatalf("%d tries, and in the log:\n%s", tries.Load(), text)
		}
		for i := range want {
			if g, _, _ := strings.Cut(got[i], " tries="); g != strings.Split(want[i], " tries=")[0] {
				t.Errorf("line %d: %s, want %s", i, got[i], want[i])
			}
		}
	})
}

// TestWorkersOnDemand: there are as many workers as there is to do, and Workers at most.
func TestWorkersOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 5
		adds := make(chan string)
		var busy, highest atomic.Int32
		c := &Controller[string]{
			Name: "test", Workers: most,
			Feeds: []func(context.Context, func(), func(string)) error{func(ctx context.Context, ready func(), add func(string)) error {
				ready()
				for key := range adds {
					add(key)
				}
				<-ctx.Done()
				return nil
			}},
			Reconcile: func(context.Context, string) (time.Duration, error) {
				n := busy.Add(1)
				defer busy.Add(-1)
				for h := highest.Load(); n > h && !highest.CompareAndSwap(h, n); h = highest.Load() {
				}
				time.Sleep(time.Second)
				return 0, nil
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		for range 3 { // one after the other needs one at a time
			adds <- "a"
			time.Sleep(2 * time.Second)
		}
		if n := highest.Load(); n != 1 {
			t.Errorf("%d keys at once", n)
		}
		for key := range strings.SplitSeq("a b c d e f g h i j", " ") {
			adds <- key
		}
		synctest.Wait()
		if n := busy.Load(); n != most {
			t.Errorf("%d of many keys at once, want %d", n, most)
		}
		time.Sleep(time.Minute)
		if n := busy.Load(); n != 0 {
			t.Errorf("%d are still going on", n)
		}
		cancel()
		close(adds)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestDelay: events of a source that waits are one key at the end of the delay.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := workqueue.NewTypedDelayingQueue[string]()
		defer queue.ShutDown()
		h := enqueue(queue, func(o metav1.Object) []string { return []string{o.GetName()} }, time.Second)
		for range 3 {
			h.OnAdd(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, false)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(600 * time.Millisecond)
		synctest.Wait()
		if n := queue.Len(); n != 0 {
			t.Errorf("%d keys before the delay is over", n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := queue.Len(); n != 1 {
			t.Errorf("%d keys after it, want 1", n)
		}
	})
}

// TestRetryDelay: a key that fails for long is tried again as often as the controller says,
// also while many fail.
func TestRetryDelay(t *testing.T) {
	for name, tt := range map[string]struct {
		delay          [2]time.Duration
		first, longest time.Duration
	}{
		"the default's": {[2]time.Duration{}, 5 * time.Millisecond, 1000 * time.Second},
		"the longest":   {[2]time.Duration{0, time.Minute}, 5 * time.Millisecond, time.Minute},
		"both":          {[2]time.Duration{time.Second, time.Minute}, time.Second, time.Minute},
	} {
		l := (&Controller[int]{RetryDelay: tt.delay}).limiter()
		first, longest := l.When(0), time.Duration(0)
		for key := range 50 {
			for range 30 {
				longest = l.When(key)
			}
		}
		if first != tt.first || longest != tt.longest {
			t.Errorf("%s: %s to %s, want %s to %s", name, first, longest, tt.first, tt.longest)
		}
	}
}
