package kubelet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"knarr/internal/logonce"
	"knarr/node/kubelet/podtest"
)

// answers is a sink that has one.
type answers struct{ err error }

func (a *answers) Create(e *corev1.Event) (*corev1.Event, error)          { return e, a.err }
func (a *answers) Update(e *corev1.Event) (*corev1.Event, error)          { return e, a.err }
func (a *answers) Patch(e *corev1.Event, _ []byte) (*corev1.Event, error) { return e, a.err }

// logged is what the log has after f.
func logged(t *testing.T, f func()) string {
	t.Helper()
	var b bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&b, nil)))
	defer slog.SetDefault(before)
	f()
	return b.String()
}

// TestRefusedEvents: that events are refused is told once, then at growing distances, for
// each namespace; what client-go does with other answers is left to it.
func TestRefusedEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "a")
		sink := &answers{gone}
		r := &refusedEvents{sink: sink}
		var at []time.Duration
		began := time.Now()
		for range 12 * 60 * 6 {
			text := logged(t, func() {
				if _, err := r.Create(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "a"}}); !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
					t.Fatalf("client-go would log %v", err)
				}
			})
			if text != "" {
				at = append(at, time.Since(began))
			}
			time.Sleep(10 * time.Second)
		}
		want := []time.Duration{0, 1 * time.Minute, 3 * time.Minute, 7 * time.Minute, 15 * time.Minute, 31 * time.Minute, 63 * time.Minute, 123 * time.Minute}
		if len(at) < len(want) || !slices.Equal(at[:len(want)], want) || len(at) > 18 {
			t.Errorf("logged %d times, at first at %v", len(at), at[:min(len(at), len(want))])
		}
		text := logged(t, func() { _, _ = r.Create(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "b"}}) })
		if !strings.Contains(text, "namespace=b refused=1") {
			t.Errorf("of another namespace: %q", text)
		}
		for range 2 * maxRefusals {
			r.note(time.Now().String(), time.Now())
			time.Sleep(time.Nanosecond)
		}
		if len(r.all) > maxRefusals {
			t.Errorf("%d namespaces remembered", len(r.all))
		}
		if _, err := r.Patch(&corev1.Event{}, nil); !errors.Is(err, gone) {
			t.Errorf("an event that is gone is not created: %v", err)
		}
		for _, err := range []error{nil, errors.New("no connection"), apierrors.NewAlreadyExists(schema.GroupResource{}, "e")} {
			sink.err = err
			if _, got := r.Create(&corev1.Event{}); !errors.Is(got, err) {
				t.Errorf("%v became %v", err, got)
			}
		}
	})
}

// away is a sink without an API server until a time, and counts the tries.
type away struct {
	until time.Time
	tries int
	err   error
}

func (a *away) answer(e *corev1.Event) (*corev1.Event, error) {
	if a.tries++; time.Now().Before(a.until) {
		return nil, a.err
	}
	return e, nil
}

func (a *away) Create(e *corev1.Event) (*corev1.Event, error)          { return a.answer(e) }
func (a *away) Update(e *corev1.Event) (*corev1.Event, error)          { return a.answer(e) }
func (a *away) Patch(e *corev1.Event, _ []byte) (*corev1.Event, error) { return a.answer(e) }

// TestEventsWait: an event outlives an hour without an API server, in few lines of the log; one
// on which a server ends the connection does not hold up others, and the end of the kubelet does
// not wait.
func TestEventsWait(t *testing.T) {
	refused := &url.Error{Op: "Post", URL: "https://s:6443/api/v1/namespaces/ns/events", Err: fmt.Errorf("reach a server: %w",
		errors.Join(&net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}))}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		sink := &away{until: time.Now().Add(time.Hour), err: refused}
		r := &refusedEvents{sink: sink, ctx: ctx, news: &logonce.Filter{}}
		text := logged(t, func() {
			if _, err := r.Create(&corev1.Event{}); err != nil {
				t.Error(err)
			}
		})
		if lines := strings.Count(text, "\n"); lines != 6 || sink.tries < 300 || sink.tries > 400 {
			t.Errorf("%d tries, %d lines", sink.tries, lines)
		}
		sink.until, sink.err = time.Now().Add(time.Hour), &url.Error{Op: "Post", Err: &net.OpError{Op: "read", Err: errors.New("connection reset")}}
		if _, err := r.Update(&corev1.Event{}); !errors.Is(err, sink.err) {
			t.Errorf("a broken connection: %v", err)
		}
		sink.err = refused
		time.AfterFunc(time.Minute, cancel)
		if _, err := r.Patch(&corev1.Event{}, nil); !errors.Is(err, refused) || time.Now().After(sink.until) {
			t.Errorf("at the end of the kubelet: %v", err)
		}
	})
}

// TestHiddenPods: the API is asked to show a static pod that it would not at growing
// distances, up to upstream's, and why it does not is told once.
func TestHiddenPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, p := &staticPods{}, podtest.Pod("p", "c")
		asked, lines := 0, ""
		for range 3600 {
			if st.mayMirror(p) {
				asked++
				lines += logged(t, func() { st.mirrored(p, errors.New("namespaces \"x\" not found")) })
			}
			time.Sleep(time.Second)
		}
		if asked < 60 || asked > 66 || strings.Count(lines, "\n") != 1 {
			t.Errorf("asked %d times in an hour, and told %q", asked, lines)
		}
		other := podtest.Pod("other", "c")
		other.UID = types.UID("other")
		if !st.mayMirror(other) {
			t.Error("another pod waits, too")
		}
		st.mirrored(p, nil)
		if !st.mayMirror(p) || len(st.hidden) > 0 {
			t.Error("one that is shown waits still")
		}
	})
}
