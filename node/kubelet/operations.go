package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"knarr/internal/run"
)

// An opKind is what an operation does.
type opKind int

const (
	opVolumes     opKind = iota // mount and refresh the volumes
	opDevices                   // give the containers their devices
	opSandbox                   // run a sandbox
	opStopSandbox               // stop a sandbox, by id
	opPull                      // make the image of a container present, by name
	opStart                     // create and start a container, by name
	opKill                      // end a container, by id
	opShorten                   // end a container sooner, by id and grace
	opResize                    // change the limits of running containers
	opReset                     // remove all containers, for all to begin anew
	opTrim                      // remove old containers and sandboxes
	opClean                     // stop sandboxes, take volumes and cgroup away
	opDelete                    // delete the pod from the API
	opRemove                    // remove what the runtime holds
	opStatus                    // write the status
)

var opNames = [...]string{"volumes", "devices", "sandbox", "stop sandbox", "pull", "start", "kill", "shorten", "resize", "reset", "trim", "clean", "delete", "remove", "status"}

// An opKey identifies an operation of a pod. What users name never meets what
// the kubelet names: only keys of the same kind compare by name or id.
type opKey struct {
	kind opKind
	// of is the name of the container, or the id of the container or sandbox, for
	// kinds of which there can be several at once.
	of string
	// grace distinguishes the shortenings of one container.
	grace int64
}

func (k opKey) String() string {
	if k.of == "" {
		return opNames[k.kind]
	}
	return fmt.Sprintf("%s %s", opNames[k.kind], k.of)
}

// An op is an operation that takes long, in a goroutine of its own.
type op struct {
	key    opKey
	cancel context.CancelFunc
	apply  func() // runs in the worker
}

// begin runs f in a goroutine of its own, once per key at a time. What f returns runs
// in the worker afterwards.
func (w *worker) begin(ctx context.Context, key opKey, f func(context.Context) func()) bool {
	if w.busy(key) {
		return false
	}
	ctx, cancel := context.WithCancel(ctx)
	o := &op{key: key, cancel: cancel}
	w.ops[key] = o
	began := time.Now()
	w.k.wg.Go("kubelet: pod operation", func() {
		defer func() { w.done <- o }()
		if run.Panicked("kubelet: pod operation", func() { o.apply = f(ctx) }) {
			slog.Error("pod operation panicked", "pod", w.uid, "op", key)
		}
		slog.Debug("pod operation", "pod", w.uid, "op", key, "took", time.Since(began))
	})
	return true
}

// collect ends an operation in the worker.
func (w *worker) collect(o *op) {
	delete(w.ops, o.key)
	defer o.cancel()
	defer func() { // the pod is looked at again, and what was not applied is done again
		if p := recover(); p != nil {
			w.logPanic(p, string(debug.Stack()))
		}
	}()
	if o.apply != nil {
		o.apply() // sees whether the operation was called off
	}
}

// busy says whether this very operation is under way.
func (w *worker) busy(key opKey) bool { return w.ops[key] != nil }

// anyBusy says whether an operation of one of the kinds is under way.
func (w *worker) anyBusy(kinds ...opKind) bool {
	for key := range w.ops {
		for _, kind := range kinds {
			if key.kind == kind {
				return true
			}
		}
	}
	return false
}

// A retry is when something that failed is tried again, and how long the next
// failure will make it wait.
type retry struct {
	delay delay
	at    time.Time
}

// retryLater sets when an operation that failed is tried again.
func (w *worker) retryLater(key opKey, first, most time.Duration) {
	r := w.retries[key]
	if r == nil {
		r = &retry{delay: delay{first: first, most: most}}
		w.retries[key] = r
	}
	now := time.Now()
	r.at = now.Add(r.delay.next(now))
}

// spreadRetry lets an operation that failed be tried later by up to a half, so that what
// fails on a whole node is not tried all at once.
func (w *worker) spreadRetry(key opKey) {
	if r := w.retries[key]; r != nil {
		r.at = r.at.Add(rand.N(r.delay.cur/2 + 1))
	}
}

// retryNow lets an operation be tried at once; its delay is not forgotten.
func (w *worker) retryNow(key opKey) {
	if r := w.retries[key]; r != nil {
		r.at = time.Time{}
	}
}

// retryIn is how long an operation that failed has to wait.
func (w *worker) retryIn(key opKey) time.Duration {
	r := w.retries[key]
	if r == nil {
		return 0
	}
	return max(time.Until(r.at), 0)
}

// succeeded forgets that an operation failed.
func (w *worker) succeeded(key opKey) { delete(w.retries, key) }
