// Package prober asks containers whether they are alive, ready and started.
// It reads nothing but the answers of probes and writes nothing; it remembers
// the last verdict of each probe and reports when one changes.
package prober

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/internal/run"
)

// A Kind of probe.
type Kind int

// The three kinds.
const (
	Liveness Kind = iota
	Readiness
	Startup
	kinds
)

func (k Kind) String() string { return [...]string{"Liveness", "Readiness", "Startup"}[k] }

// A Verdict is the outcome of a probe after its thresholds.
type Verdict int

// Verdicts; Unknown until the first probe counted.
const (
	Unknown Verdict = iota
	Success
	Failure
)

// A Target is a running container to probe.
type Target struct {
	Pod         *corev1.Pod
	Container   *corev1.Container
	ContainerID string
	Started     time.Time
	PodIP       string
	// WasReady and WasStarted are what was known of the container before
	// this kubelet started; they hold until probed.
	WasReady, WasStarted bool
}

// Config is what a Manager works with.
type Config struct {
	// Exec runs a command in a container.
	Exec func(ctx context.Context, containerID string, command []string, timeout time.Duration) (output []byte, exitCode int32, err error)
	// Changed is called when a verdict of a container of that pod changed.
	Changed func(types.UID)
	// Event reports a failed probe.
	Event func(t Target, kind Kind, warning bool, message string)
}

// A Manager probes the containers it is given, one goroutine per probe, so that
// one that is slow to answer delays no other.
type Manager struct {
	Config
	ctx     context.Context
	metrics metrics
	wg      run.Group
	mu      sync.Mutex
	byID    map[string]*watched
}

type watched struct {
	target  Target
	cancel  context.CancelFunc
	started chan struct{} // closed once the startup probe has succeeded, or there is none
	verdict [kinds]Verdict
	probed  [kinds]bool // the verdict is that of a probe
	stopped [kinds]bool // not probed any more; what is known of it stays
}

// believe takes what was known before this kubelet started, which may be heard of late.
func (w *watched) believe(t Target) {
	if t.WasReady && !w.probed[Readiness] {
		w.verdict[Readiness] = Success
	}
	if t.WasStarted && !w.probed[Startup] {
		w.set(Startup, Success)
	}
}

// set takes a verdict. That of the startup probe lets the others begin.
func (w *watched) set(k Kind, v Verdict) {
	w.verdict[k] = v
	if k == Startup && v == Success {
		w.start()
	}
}

func (w *watched) start() {
	select {
	case <-w.started: // it had: before this kubelet started, or there is no startup probe
	default:
		close(w.started)
	}
}

// New returns a Manager whose probes end with ctx.
func New(ctx context.Context, c Config) *Manager {
	return &Manager{Config: c, ctx: ctx, metrics: newMetrics(), byID: map[string]*watched{}}
}

// Wait returns when all probes have ended.
func (m *Manager) Wait() { m.wg.Wait() }

func probesOf(c *corev1.Container) [kinds]*corev1.Probe {
	return [kinds]*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe}
}

// Watch starts probing the container unless it is probed already.
func (m *Manager) Watch(t Target) {
	probes := probesOf(t.Container)
	if probes == [kinds]*corev1.Probe{} {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.byID[t.ContainerID]; w != nil {
		w.target.PodIP = t.PodIP
		w.believe(t)
		return
	}
	ctx, cancel := context.WithCancel(m.ctx)
	w := &watched{target: t, cancel: cancel, started: make(chan struct{})}
	w.verdict[Liveness] = Success // innocent until proven otherwise
	w.verdict[Readiness] = Failure
	if probes[Startup] == nil {
		w.start()
	}
	w.believe(t)
	m.byID[t.ContainerID] = w
	for k, p := range probes {
		if p != nil {
			m.wg.Loop(ctx, "kubelet: probe", func(ctx context.Context) { m.run(ctx, w, Kind(k), p) })
		}
	}
}

// Forget stops probing a container and drops its verdicts.
func (m *Manager) Forget(containerID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.byID[containerID]; w != nil {
		w.cancel()
		delete(m.byID, containerID)
		m.metrics.forget(w.target)
	}
}

// StopLiveness ends liveness and startup probes of a container that is being
// stopped; readiness goes on, so that endpoints see it drain. Their verdicts stay:
// a container that has started is ready while its readiness probe says so, and one
// that has not is not asked whether it is ready. As upstream, a probe that is under
// way ends by itself, and counts.
func (m *Manager) StopLiveness(containerID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.byID[containerID]; w != nil {
		w.stopped[Liveness], w.stopped[Startup] = true, true
	}
}

// Verdict is the last outcome of a probe. ok is false for a container that has
// no such probe or is not probed.
func (m *Manager) Verdict(containerID string, k Kind) (v Verdict, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.byID[containerID]
	if w == nil || probesOf(w.target.Container)[k] == nil {
		return Unknown, false
	}
	return w.verdict[k], true
}

// schedule is what one probe does next.
type schedule struct {
	probe *corev1.Probe
	next  time.Time
	run   int
	last  bool
}

func secs(n int32) time.Duration { return time.Duration(n) * time.Second }

func period(p *corev1.Probe) time.Duration { return secs(max(p.PeriodSeconds, 1)) }

// first is in how long a container is probed for the first time that has run for old.
func first(k Kind, p *corev1.Probe, old time.Duration) time.Duration {
	delay := secs(p.InitialDelaySeconds)
	switch {
	case old <= period(p) || old <= delay:
		return delay - old
	case k == Readiness:
		return 0
	}
	// After a restart of the kubelet: not all containers at once.
	return rand.N(period(p))
}

// over says whether a probe is made no more. Where liveness or startup has failed the container
// is about to be stopped, and what its preStop hook does is not to be disturbed: the next
// question is to the next container.
func over(k Kind, v Verdict, stopped bool) bool {
	switch k {
	case Liveness:
		return stopped || v == Failure
	case Startup:
		return stopped || v != Unknown
	}
	return stopped
}

func (m *Manager) over(w *watched, k Kind) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return over(k, w.verdict[k], w.stopped[k])
}

// run makes one probe of a container, again and again. No other waits for its answer: a
// readiness probe that hangs keeps nobody from seeing that the container is dead.
func (m *Manager) run(ctx context.Context, w *watched, k Kind, p *corev1.Probe) {
	// From here on by the clock of this process, which nobody sets; a container that has
	// started in the future, as the clock was set back since, is as one of now.
	old := max(time.Since(w.target.Started), 0)
	s := schedule{probe: p, next: time.Now().Add(first(k, p, old))}
	if k != Startup {
		select {
		case <-ctx.Done():
			return
		case <-w.started:
		}
	}
	for timer := time.NewTimer(time.Until(s.next)); !m.over(w, k); timer.Reset(time.Until(s.next)) {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if m.over(w, k) {
			return // since it was set
		}
		m.once(ctx, w, k, &s)
		s.next = s.next.Add(period(p))
		if now := time.Now(); s.next.Before(now) {
			s.next = now.Add(period(p))
		}
	}
}

// maxTries is how often a probe is tried that gets no answer because of an error here, such
// as one of the runtime, before that counts for one of its period.
const maxTries = 3

// once probes and counts towards the thresholds.
func (m *Manager) once(ctx context.Context, w *watched, k Kind, s *schedule) {
	m.mu.Lock()
	t := w.target
	m.mu.Unlock()
	timeout := secs(max(s.probe.TimeoutSeconds, 1))
	began := time.Now()
	var r outcome
	for range maxTries {
		if r = m.probe(ctx, t, s.probe, timeout); ctx.Err() != nil {
			return
		}
		if r.err == nil {
			break
		}
	}
	m.count(w, k, r, time.Since(began))
	switch {
	case r.err != nil:
		m.Event(t, k, true, fmt.Sprintf("%s probe errored and resulted in %s state: %s", k, "unknown", r.err))
		return // an error of ours counts neither way
	case !r.ok:
		m.Event(t, k, false, fmt.Sprintf("%s probe failed: %s", k, r.output))
	case r.warning:
		m.Event(t, k, true, fmt.Sprintf("%s probe warning: %s", k, r.output))
	}
	if s.run > 0 && s.last == r.ok {
		s.run++
	} else {
		s.run, s.last = 1, r.ok
	}
	verdict := Success
	threshold := max(s.probe.SuccessThreshold, 1)
	if !r.ok {
		verdict, threshold = Failure, max(s.probe.FailureThreshold, 1)
	}
	if s.run < int(threshold) {
		return
	}
	m.mu.Lock()
	changed := w.verdict[k] != verdict
	w.probed[k] = true
	w.set(k, verdict)
	m.mu.Unlock()
	if changed {
		m.Changed(t.Pod.UID)
	}
}

type outcome struct {
	ok      bool
	warning bool
	output  string
	err     error
}

func (m *Manager) probe(ctx context.Context, t Target, p *corev1.Probe, timeout time.Duration) (r outcome) {
	defer func() {
		if e := recover(); e != nil {
			run.CountPanic("kubelet: probe")
			slog.Error("probe panicked", "pod", t.Pod.Name, "container", t.Container.Name, "panic", e, "stack", string(debug.Stack()))
			r = outcome{err: fmt.Errorf("panic: %v", e)}
		}
	}()
	switch {
	case p.Exec != nil:
		return m.exec(ctx, t, p.Exec, timeout)
	case p.HTTPGet != nil:
		return httpGet(ctx, t, p.HTTPGet, timeout)
	case p.TCPSocket != nil:
		return tcp(ctx, t, p.TCPSocket, timeout)
	case p.GRPC != nil:
		return grpcHealth(ctx, t, p.GRPC, timeout)
	}
	return outcome{err: fmt.Errorf("missing probe handler for %s:%s", t.Pod.Name, t.Container.Name)}
}
