package audit

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

type kept struct{ events []*auditv1.Event }

func (k *kept) Process(ev *auditv1.Event) bool {
	k.events = append(k.events, ev)
	return true
}

// Bodies go first, and then the event; what others hold of it stays.
func TestTruncate(t *testing.T) {
	body := &runtime.Unknown{Raw: []byte(`"` + strings.Repeat("x", 1000) + `"`)}
	long := func(level auditv1.Level, note string) *auditv1.Event {
		return &auditv1.Event{Level: level, RequestObject: body, ResponseObject: body, Annotations: map[string]string{"a": note}}
	}
	for name, c := range map[string]struct {
		ev              *auditv1.Event
		dropped, marked bool
	}{
		"short enough":   {&auditv1.Event{Level: auditv1.LevelRequest}, false, false},
		"with bodies":    {long(auditv1.LevelRequestResponse, "b"), false, true},
		"even without":   {long(auditv1.LevelRequestResponse, strings.Repeat("b", 1000)), true, false},
		"only metadata":  {long(auditv1.LevelMetadata, "b"), true, false},
		"no annotations": {&auditv1.Event{Level: auditv1.LevelRequest, RequestObject: body}, false, true},
	} {
		to := &kept{}
		notes := len(c.ev.Annotations)
		if !(truncate{to, 900}).Process(c.ev) {
			t.Errorf("%s: refused", name)
		}
		if len(to.events) == 0 != c.dropped {
			t.Errorf("%s: %d events", name, len(to.events))
			continue
		}
		if c.dropped {
			continue
		}
		got := to.events[0]
		if c.marked != (got.Annotations[truncatedNote] == "true") || c.marked && (got.RequestObject != nil || got.ResponseObject != nil) {
			t.Errorf("%s: %v", name, got)
		}
		if len(c.ev.Annotations) != notes || c.marked && c.ev.RequestObject == nil {
			t.Errorf("%s: the event itself was changed", name)
		}
	}
}

// A throttled batch goes so often, and not more.
func TestThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		b := NewBatch(Batching{Buffer: 9, MaxSize: 1, Throttle: true, PerSecond: 1, Burst: 2}, func(context.Context, []*auditv1.Event) error {
			at = append(at, time.Since(began).Round(time.Second))
			return nil
		})
		for range 4 {
			b.Process(event("e"))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		b.Run(ctx, func(int) { t.Error("lost") })
		want := []time.Duration{0, 0, time.Second, 2 * time.Second}
		if len(at) != len(want) {
			t.Fatal(at)
		}
		for i := range want {
			if at[i] != want[i] {
				t.Errorf("batch %d went at %v, not %v", i, at[i], want[i])
			}
		}
	})
}

func TestSizes(t *testing.T) {
	good := Batching{Buffer: 1, MaxSize: 1, Throttle: true, PerSecond: 1, Burst: 1}
	for want, change := range map[string]func(*Batching){
		"invalid audit batch log buffer size 0, must be a positive number":     func(b *Batching) { b.Buffer = 0 },
		"invalid audit batch log max batch size -1, must be a positive number": func(b *Batching) { b.MaxSize = -1 },
		"invalid audit batch log throttle QPS 0, must be a positive number":    func(b *Batching) { b.PerSecond = 0 },
		"invalid audit batch log throttle burst 0, must be a positive number":  func(b *Batching) { b.Burst = 0 },
	} {
		b := good
		change(&b)
		if err := b.Validate("log"); err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
	for want, s := range map[string]Truncating{
		"invalid audit truncate webhook max event size 0, must be a positive number":               {MaxBatch: 1},
		"invalid audit truncate webhook max batch size 1, must be greater than max event size (2)": {MaxBatch: 1, MaxEvent: 2},
	} {
		if err := s.Validate("webhook"); err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}
