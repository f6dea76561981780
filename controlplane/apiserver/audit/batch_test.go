package audit

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

func event(id string) *auditv1.Event { return &auditv1.Event{AuditID: types.UID(id)} }

// Events go together when there are enough of them or the first has waited;
// too many are dropped; the end sends the rest.
func TestBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := make(chan int, 8)
		b := NewBatch(Batching{Buffer: 4, MaxSize: 2, MaxWait: time.Minute}, func(_ context.Context, events []*auditv1.Event) error {
			sent <- len(events)
			return nil
		})
		sizes := func() (all []int) {
			for len(sent) > 0 {
				all = append(all, <-sent)
			}
			return all
		}
		for i, want := range []bool{true, true, true, true, false} {
			if got := b.Process(event("e")); got != want {
				t.Errorf("event %d: %v", i, got)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); b.Run(ctx, func(int) { t.Error("lost") }) }()
		synctest.Wait()
		b.Process(event("e"))
		synctest.Wait()
		if got := sizes(); !slices.Equal(got, []int{2, 2}) {
			t.Errorf("before the minute is over: %v", got)
		}
		<-time.After(time.Minute + time.Second)
		b.Process(event("e"))
		synctest.Wait()
		cancel()
		<-done
		if got := sizes(); !slices.Equal(got, []int{1, 1}) {
			t.Errorf("then: %v", got)
		}
	})
}

// A webhook that fails is asked again, one that refuses is not.
func TestWebhook(t *testing.T) {
	codes := []int{503, 200}
	var lists []auditv1.EventList
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var l auditv1.EventList
		if err := json.NewDecoder(r.Body).Decode(&l); err != nil {
			t.Error(err)
		}
		lists = append(lists, l)
		w.WriteHeader(codes[0])
		codes = codes[1:]
	}))
	defer srv.Close()
	w := &Webhook{client: srv.Client(), url: srv.URL, backoff: time.Nanosecond}
	if err := w.Send(t.Context(), []*auditv1.Event{event("a"), event("b")}); err != nil {
		t.Error(err)
	}
	if len(lists) != 2 || lists[1].Kind != "EventList" || len(lists[1].Items) != 2 || lists[1].Items[1].AuditID != "b" {
		t.Errorf("%+v", lists)
	}
	codes = []int{400, 200}
	if err := w.Send(t.Context(), []*auditv1.Event{event("a")}); err == nil || len(codes) != 1 {
		t.Errorf("%v, %v left", err, codes)
	}
}
