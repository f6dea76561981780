package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"knarr/internal/logonce"
)

// refusedEvents is a sink that tells seldom of events which the API server refuses. A static
// pod may be of a namespace that is not there, and have events for as long as it runs;
// client-go logs each, as a whole. While there is no API server it waits for one: client-go
// would log each try and give an event up after two minutes, so that of an hour's thirty
// would be there afterwards, and not the thousand that it keeps.
type refusedEvents struct {
	sink record.EventSink
	ctx  context.Context // until its end it waits
	news *logonce.Filter

	mu  sync.Mutex
	all map[string]*refusal // by namespace
}

// A refusal is of the events of one namespace.
type refusal struct {
	delay delay
	again time.Time
	count int // since it was logged
}

const (
	refusalFirst = time.Minute
	refusalMost  = time.Hour
	// maxRefusals bounds the namespaces that are remembered: what a manifest says is free.
	maxRefusals = 1000
)

// refusedQuietly is an error that client-go drops an event for without a word.
var refusedQuietly = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status: metav1.StatusFailure, Message: "refused, and logged",
	Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}},
}}

func (r *refusedEvents) Create(e *corev1.Event) (*corev1.Event, error) {
	got, err := r.await(func() (*corev1.Event, error) { return r.sink.Create(e) })
	return got, r.quiet(e, err)
}

func (r *refusedEvents) Update(e *corev1.Event) (*corev1.Event, error) {
	got, err := r.await(func() (*corev1.Event, error) { return r.sink.Update(e) })
	return got, r.quiet(e, err)
}

// Patch leaves it to client-go to create an event that is gone.
func (r *refusedEvents) Patch(old *corev1.Event, data []byte) (*corev1.Event, error) {
	got, err := r.await(func() (*corev1.Event, error) { return r.sink.Patch(old, data) })
	if apierrors.IsNotFound(err) {
		return got, err
	}
	return got, r.quiet(old, err)
}

// await tries for as long as no server can be connected to. What else goes wrong may be due to
// the event, and is left to client-go, which goes on to the next one.
func (r *refusedEvents) await(try func() (*corev1.Event, error)) (*corev1.Event, error) {
	wait := delay{first: time.Second, most: 10 * time.Second}
	for {
		got, err := try()
		var dial *net.OpError
		if !errors.As(err, &dial) || dial.Op != "dial" {
			return got, err
		}
		if r.news.IsNew("events wait", dial.Err.Error()) {
			slog.Warn("events wait for an API server", "err", err)
		}
		if !sleep(r.ctx, wait.next(time.Now())) {
			return got, err
		}
	}
}

// quiet logs a refusal, if it is time to, and takes its place. What else went wrong is
// tried again.
func (r *refusedEvents) quiet(e *corev1.Event, err error) error {
	var status *apierrors.StatusError
	if !errors.As(err, &status) || apierrors.IsAlreadyExists(err) {
		return err
	}
	if n, ok := r.note(e.Namespace, time.Now()); ok {
		slog.Warn("the API server refuses events", "namespace", e.Namespace, "refused", n, "about", e.InvolvedObject.Name, "reason", e.Reason, "err", err)
	}
	return refusedQuietly
}

// note counts a refusal, and says how many there were if it is time to log it.
func (r *refusedEvents) note(namespace string, now time.Time) (int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.all[namespace]
	if f == nil {
		if r.all == nil || len(r.all) >= maxRefusals {
			r.all = map[string]*refusal{}
		}
		f = &refusal{delay: delay{first: refusalFirst, most: refusalMost}}
		r.all[namespace] = f
	}
	f.count++
	if now.Before(f.again) {
		return 0, false
	}
	n := f.count
	f.again, f.count = now.Add(f.delay.next(now)), 0
	return n, true
}
