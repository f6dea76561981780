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

// A Manager probes the containers it is given, one goroutine per container
// that has probes.
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
		w.verdict[Startup] = Success
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
	w := &watched{target: t, cancel: cancel}
	w.verdict[Liveness] = Success // innocent until proven otherwise
	w.verdict[Readiness] = Failure
	w.believe(t)
	m.byID[t.ContainerID] = w
	m.wg.Loop(ctx, "kubelet: probe", func(ctx context.Context) { m.run(ctx, w, probes) })
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

func (m *Manager) run(ctx context.Context, w *watched, probes [kinds]*corev1.Probe) {
	var s [kinds]schedule
	for k, p := range probes {
		if p != nil {
			// From here on by the clock of this process, which nobody sets; a container that has
			// started in the future, as the clock was set back since, is as one of now.
			old := max(time.Since(w.target.Started), 0)
			s[k] = schedule{probe: p, next: time.Now().Add(secs(p.InitialDelaySeconds) - old)}
			if old > secs(max(p.PeriodSeconds, 1)) && old > secs(p.InitialDelaySeconds) {
				// After a restart of the kubelet: not all containers at once.
				s[k].next = time.Now().Add(time.Duration(rand.Int64N(int64(secs(max(p.PeriodSeconds, 1))))))
				if Kind(k) == Readiness {
					s[k].next = time.Now()
				}
			}
		}
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		started := probes[Startup] == nil || m.get(w, Startup) == Success
		next := Kind(-1)
		for k := range s {
			if s[k].probe == nil || started == (Kind(k) == Startup) {
				continue // nothing but startup until started; no startup after
			}
			if next < 0 || s[k].next.Before(s[next].next) {
				next = Kind(k)
			}
		}
		if next < 0 {
			return
		}
		timer.Reset(time.Until(s[next].next))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if m.stopped(w, next) {
			s[next].probe = nil
			continue
		}
		m.once(ctx, w, next, &s[next])
		if next != Readiness && m.get(w, next) == Failure {
			// The container is about to be stopped, and what its preStop hook does is not
			// to be disturbed: the next question is to the next container.
			s[next].probe = nil
			continue
		}
		period := secs(max(s[next].probe.PeriodSeconds, 1))
		s[next].next = s[next].next.Add(period)
		if now := time.Now(); s[next].next.Before(now) {
			s[next].next = now.Add(period)
		}
		if next == Startup && m.get(w, Startup) == Success && s[Readiness].probe != nil {
			if now := time.Now(); s[Readiness].next.Before(now) || s[Readiness].probe.InitialDelaySeconds == 0 {
				s[Readiness].next = now
			}
		}
	}
}

func (m *Manager) stopped(w *watched, k Kind) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return w.stopped[k]
}

func (m *Manager) get(w *watched, k Kind) Verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	return w.verdict[k]
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
	w.verdict[k], w.probed[k] = verdict, true
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
