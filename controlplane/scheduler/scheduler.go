// Package scheduler assigns pods to nodes. It reads Pods, Nodes, Namespaces,
// Services, the controllers of pods, PodDisruptionBudgets and storage; it
// writes bindings of pods and volumes, the node that a claim's volume is to be
// provisioned for, and the PodScheduled condition and nominated node of pods
// that fit no node. It deletes pods to make room for more important ones, and
// writes Events and, where several schedulers run, the Lease
// kube-system/kube-scheduler.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"knarr/controlplane/scheduler/framework"
	"knarr/controlplane/scheduler/plugins"
	"knarr/internal/leader"
)

// Config is what the scheduler needs to know.
type Config struct {
	// Kube reaches the API server as system:kube-scheduler.
	Kube *rest.Config
	// LeaderElect makes schedulers of one cluster take turns.
	LeaderElect bool
	// Election are its settings. Default: upstream's.
	Election leader.Times
	// QPS and Burst are how many requests a second are sent, and how many at once.
	// Default: as many as the API server answers.
	QPS   float32
	Burst int
	// Identity names this scheduler in the Lease. Default: host name and a random id.
	Identity string
	// Names are the spec.schedulerName of the pods to schedule. Default
	// default-scheduler.
	Names []string
	// Writes is the most requests on their way at one time. Default 64.
	Writes int
}

// A Scheduler gives pods nodes.
type Scheduler struct {
	cfg  Config
	pods atomic.Pointer[cache.Indexer] // the term's; nil: there is none
	// filling says that a term has begun and its caches are not filled yet.
	filling atomic.Bool
}

// New checks cfg.
func New(cfg Config) (*Scheduler, error) {
	if cfg.Kube == nil {
		return nil, fmt.Errorf("scheduler: no API server given")
	}
	if len(cfg.Names) == 0 {
		cfg.Names = []string{corev1.DefaultSchedulerName}
	}
	if cfg.Writes == 0 {
		cfg.Writes = 64
	}
	register()
	cfg.Kube = leader.Fenced(cfg.Kube)
	cfg.Kube.QPS, cfg.Kube.RateLimiter = -1, nil // the server has its own ways to be fair
	if cfg.QPS > 0 {
		cfg.Kube.QPS, cfg.Kube.Burst = cfg.QPS, cfg.Burst
	}
	return &Scheduler{cfg: cfg}, nil
}

// Run schedules until ctx ends; with leader election only while it leads.
func (s *Scheduler) Run(ctx context.Context) error {
	if s.cfg.LeaderElect {
		return leader.Run(ctx, leader.Config{Kube: s.cfg.Kube, Lease: "kube-scheduler", Identity: s.cfg.Identity, Times: s.cfg.Election}, s.term)
	}
	return s.term(ctx)
}

// HandlersSynced is an error while this scheduler leads and does not know the cluster yet.
func (s *Scheduler) HandlersSynced() error {
	if s.filling.Load() {
		return errors.New("handlers are not fully synchronized")
	}
	return nil
}

// A term is one time in office: everything it knows ends with it.
type term struct {
	Config
	client kubernetes.Interface
	events map[string]events.EventRecorder // by schedulerName
	writes *writes
	// poke says that there may be a pod to try.
	poke chan struct{}
	ctx  context.Context

	mu      sync.Mutex // guards all below
	core    *core
	cluster *framework.Cluster
	queue   *queue
	observe *observer
	// assumed are the placed pods whose binding has not been seen yet.
	assumed   map[*framework.Pod]*queued
	selectors *selectors
	storage   *storage
	binding   *plugins.VolumeBinding
	// attachings are placed pods that wait for volumes.
	attachings map[*attaching]struct{}
	budgets    cache.Indexer
}

func (s *Scheduler) term(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client, err := kubernetes.NewForConfig(s.cfg.Kube)
	if err != nil {
		return fmt.Errorf("scheduler's client: %w", err)
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("events: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trim))
	t := &term{
		Config: s.cfg, client: client, writes: newWrites(s.cfg.Writes), poke: make(chan struct{}, 1), ctx: ctx,
		events:  map[string]events.EventRecorder{},
		cluster: framework.NewCluster(), assumed: map[*framework.Pod]*queued{}, attachings: map[*attaching]struct{}{},
	}
	t.selectors = newSelectors(factory)
	t.budgets = factory.Policy().V1().PodDisruptionBudgets().Informer().GetIndexer()
	for _, name := range s.cfg.Names {
		t.events[name] = broadcaster.NewRecorder(scheme.Scheme, name)
	}
	if t.storage, err = newStorage(factory); err != nil {
		return err
	}
	table := plugins.Table(t.cluster, t.selectors, t.storage)
	for _, e := range table {
		if b, ok := e.Plugin.(*plugins.VolumeBinding); ok {
			t.binding = b
		}
	}
	t.core = newCore(t.cluster, table)
	t.queue, t.observe = newQueue(t.core.less), newObserver(t.core)
	t.queue.entered = t.observe.entered
	defer running.enter(t)()

	s.filling.Store(true)
	defer s.filling.Store(false)
	known, err := t.listen(factory)
	if err != nil {
		return err
	}
	defer s.know(factory.Core().V1().Pods().Informer().GetIndexer())()
	factory.StartWithContext(ctx)
	defer t.stopTimers()
	defer t.writes.wg.Wait()
	defer factory.Shutdown()
	defer cancel()
	for _, k := range known {
		select {
		case <-k.Done():
		case <-ctx.Done():
			return nil
		}
	}
	s.filling.Store(false)
	slog.DebugContext(ctx, "scheduling", "names", s.cfg.Names)
	t.loop(ctx)
	return nil
}

func (s *term) stopTimers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range s.attachings {
		if a.timer != nil {
			a.timer.Stop()
		}
	}
	clear(s.attachings)
}

// loop tries one pod after another, and sleeps while there is none.
func (s *term) loop(ctx context.Context) {
	alarm := time.NewTimer(time.Hour)
	alarm.Stop()
	defer alarm.Stop()
	for ctx.Err() == nil {
		tried, wake := s.step(ctx)
		if tried {
			continue
		}
		if !wake.IsZero() {
			alarm.Reset(time.Until(wake))
		}
		select {
		case <-ctx.Done():
		case <-s.poke:
		case <-alarm.C:
		}
		alarm.Stop()
	}
}

// step tries the next pod, if there is one.
func (s *term) step(ctx context.Context) (tried bool, wake time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, wake := s.queue.pop(time.Now())
	if q == nil {
		return false, wake
	}
	if safely(ctx, func() { s.try(ctx, q) }) && q.where == inFlight && s.queue.pods[q.UID] == q {
		s.errored(q, time.Now())
	}
	return true, time.Time{}
}

// wake has the loop look again.
func (s *term) wake() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// try finds a node for the pod and assumes it there while it is being bound.
func (s *term) try(ctx context.Context, q *queued) {
	node, why := s.core.decide(q.Pod)
	cycle, profile := &s.core.cycle, q.Pod.Pod.Spec.SchedulerName
	now, search := cycle.began, cycle.at.Sub(cycle.began)
	q.began, q.sampled = now, cycle.sampled()
	if node == nil {
		s.refused(ctx, q, why, now)
		s.observe.decided(profile, cycle.at.Sub(now))
		return
	}
	plan, err := s.reserve(q, node)
	s.observe.decided(profile, search)
	if err != nil {
		slog.WarnContext(ctx, "volumes", "pod", q.FullName(), "err", err)
		s.errored(q, now)
		return
	}
	elsewhere := q.nominated != "" && q.nominated != node.Name
	s.unnominate(q)
	delete(s.queue.pods, q.UID)
	s.assumed[q.Pod] = q
	s.cluster.Place(q.Pod, node.Name)
	s.happened(&framework.Event{Action: framework.PodPlaced, Pod: q.Pod}, now)
	if elsewhere { // the room it made is free for others
		s.happened(&framework.Event{Action: framework.PodGone, Pod: q.Pod}, now)
	}
	pod, name := q.Pod.Pod, node.Name
	if plan != nil {
		a := &attaching{VolumePlan: plan, q: q, pod: pod, node: name, seen: map[string]bool{}, began: time.Now()}
		s.writes.do(ctx, q.UID, func(ctx context.Context) { s.bindVolumes(ctx, a) })
		return
	}
	s.writes.do(ctx, q.UID, func(ctx context.Context) { s.bind(ctx, q, pod, name) })
}

// reserve keeps the volumes on the node for the pod.
func (s *term) reserve(q *queued, node *framework.Node) (*plugins.VolumePlan, error) {
	plan := s.binding.Plan(q.Pod, node)
	if plan != nil {
		if err := s.storage.assume(plan, node.Name); err != nil {
			volumeErrors.WithLabelValues("assume").Inc()
			s.storage.forget(plan)
			s.core.cycle.end(reserve, framework.Error)
			return nil, err
		}
	}
	s.core.cycle.end(reserve, framework.Success)
	return plan, nil
}

// errored puts a pod back whose attempt ended in an error.
func (s *term) errored(q *queued, now time.Time) {
	attempted(q.Pod.Pod.Spec.SchedulerName, failed, time.Since(q.began))
	s.queue.errored(q, now)
}

func (s *term) refused(ctx context.Context, q *queued, why *refusal, now time.Time) {
	reason := corev1.PodReasonUnschedulable
	var nominate *string
	switch {
	case why.err:
		reason = corev1.PodReasonSchedulerError
	case why.nodes == 0: // Unschedulable all the same, for autoscalers act on that
		nominate = new("")
	default:
		nominate = s.makeRoom(q, why)
	}
	if why.err {
		s.errored(q, now)
	} else {
		attempted(q.Pod.Pod.Spec.SchedulerName, unschedulable, s.core.cycle.at.Sub(q.began))
		s.queue.refused(q, why.plugins, now)
	}
	pod, message := q.Pod.Pod, why.String()
	s.writes.do(ctx, q.UID, func(ctx context.Context) { s.refuse(ctx, pod, reason, message, nominate) })
}

// bindFailed takes an assumed pod back.
func (s *term) bindFailed(ctx context.Context, q *queued, node string, err error, gone bool) {
	if s.assumed[q.Pod] != q {
		attempted(q.Pod.Pod.Spec.SchedulerName, failed, time.Since(q.began))
		return // deleted, or seen bound after all
	}
	delete(s.assumed, q.Pod)
	now := time.Now()
	s.cluster.Displace(q.Pod)
	s.happened(&framework.Event{Action: framework.PodGone, Pod: q.Pod}, now)
	if gone {
		attempted(q.Pod.Pod.Spec.SchedulerName, failed, time.Since(q.began))
		s.cluster.Release(q.Pod)
		s.wake()
		return
	}
	slog.WarnContext(ctx, "bind", "pod", q.FullName(), "node", node, "err", err)
	s.queue.pods[q.UID] = q
	s.errored(q, now)
	pod, message := q.Pod.Pod, err.Error()
	s.writes.do(ctx, q.UID, func(ctx context.Context) {
		s.refuse(ctx, pod, corev1.PodReasonSchedulerError, message, nil)
	})
	s.wake()
}

// happened wakes pods that an event may help.
func (s *term) happened(e *framework.Event, now time.Time) {
	if s.queue.happened(e, s.core.hint, now) {
		s.wake()
	}
}

// ours reports whether this scheduler is asked for.
func (s *term) ours(pod *corev1.Pod) bool { return slices.Contains(s.Names, pod.Spec.SchedulerName) }

func (s *term) nominate(q *queued, node string) {
	s.unnominate(q)
	if node != "" {
		s.cluster.Nominate(q.Pod, node)
		q.nominated = node
	}
}

func (s *term) unnominate(q *queued) {
	if q.nominated != "" {
		s.cluster.Unnominate(q.Pod, q.nominated)
		q.nominated = ""
	}
}
