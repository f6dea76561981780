// Package horizontalpodautoscaler is the horizontal-pod-autoscaler-controller.
// It reads HorizontalPodAutoscalers, pods, the scale of the targets, discovery
// and the APIs metrics.k8s.io, custom.metrics.k8s.io and
// external.metrics.k8s.io; it writes scales, the autoscalers' status, and
// events.
package horizontalpodautoscaler

import (
	"context"
	"fmt"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "horizontal-pod-autoscaler-controller"

// syncTime bounds what is asked of others for one autoscaler: so long does it
// keep a worker at most.
const syncTime = time.Minute

// minSyncPeriod bounds what is remembered: one recommendation per look.
const minSyncPeriod = time.Second

// Config is the controller's configuration.
type Config struct {
	// Workers is how many autoscalers are looked at at once. Default 5.
	Workers int
	// SyncPeriod is from one look at an autoscaler to the next. Default 15s.
	SyncPeriod time.Duration
	// DownscaleStabilization is how long a recommendation holds back removing
	// replicas. Default 5m.
	DownscaleStabilization time.Duration
	// CPUInitializationPeriod is how long after a pod's start its CPU usage may
	// be passed over. Default 5m.
	CPUInitializationPeriod time.Duration
	// InitialReadinessDelay is how long after a pod's start a change of its
	// readiness counts as the first. Default 30s.
	InitialReadinessDelay time.Duration
	// Tolerance is how far usage may be from its target before replicas change,
	// as a part of the target. Default 0.1.
	Tolerance float64
	// ScaleToZero is upstream's feature gate HPAScaleToZero: what this
	// controller scaled to zero it scales up again. Default off.
	ScaleToZero bool
}

// Validate says by the flags what cannot be.
func (c *Config) Validate() error {
	if c.Workers < 1 {
		return fmt.Errorf("--concurrent-horizontal-pod-autoscaler-syncs must be greater than 0, but got %d", c.Workers)
	}
	for flag, d := range map[string]time.Duration{"sync-period": c.SyncPeriod, "downscale-stabilization": c.DownscaleStabilization,
		"cpu-initialization-period": c.CPUInitializationPeriod, "initial-readiness-delay": c.InitialReadinessDelay} {
		if d < 0 || flag == "sync-period" && d < minSyncPeriod {
			return fmt.Errorf("--horizontal-pod-autoscaler-%s: %v is too short", flag, d)
		}
	}
	if !(c.Tolerance >= 0) {
		return fmt.Errorf("--horizontal-pod-autoscaler-tolerance: %v is below zero", c.Tolerance)
	}
	return nil
}

func orDefault[T comparable](value *T, otherwise T) {
	var zero T
	if *value == zero {
		*value = otherwise
	}
}

type reconciler struct {
	Config
	autoscalers, pods cache.Indexer
	client            kubernetes.Interface
	events            record.EventRecorder
	targets           *targets
	metrics           *metricsAPI
	selectors         *selectors
	failures          controller.Failures[cache.ObjectName]

	mu        sync.Mutex
	histories map[cache.ObjectName]*history
}

// New returns the controller, which reaches the API server through kube.
func New(f informers.SharedInformerFactory, kube *rest.Config, events record.EventRecorder, cfg Config) (*controller.Controller[cache.ObjectName], error) {
	orDefault(&cfg.Workers, 5)
	orDefault(&cfg.SyncPeriod, 15*time.Second)
	orDefault(&cfg.DownscaleStabilization, 5*time.Minute)
	orDefault(&cfg.CPUInitializationPeriod, 5*time.Minute)
	orDefault(&cfg.InitialReadinessDelay, 30*time.Second)
	orDefault(&cfg.Tolerance, 0.1)
	client, err := kubernetes.NewForConfig(kube)
	if err != nil {
		return nil, err
	}
	t := newTargets(client.CoreV1().RESTClient())
	metrics, err := newMetricsAPI(kube, t, cfg.SyncPeriod)
	if err != nil {
		return nil, err
	}
	autoscalers, pods := f.Autoscaling().V2().HorizontalPodAutoscalers().Informer(), f.Core().V1().Pods().Informer()
	r := &reconciler{
		Config: cfg, autoscalers: autoscalers.GetIndexer(), pods: pods.GetIndexer(), client: client, events: events,
		targets: t, metrics: metrics, selectors: newSelectors(), histories: map[cache.ObjectName]*history{},
		failures: controller.Failures[cache.ObjectName]{Name: Name},
	}
	return &controller.Controller[cache.ObjectName]{
		Name: Name, Workers: cfg.Workers,
		Sources:   []controller.Source[cache.ObjectName]{controller.Self(autoscalers), {Informer: pods}},
		Reconcile: r.reconcile,
	}, nil
}

// reconcile looks at an autoscaler once in a period, whatever happens to it
// meanwhile and whether the look failed: metrics are no fresher for it.
func (r *reconciler) reconcile(ctx context.Context, name cache.ObjectName) (time.Duration, error) {
	obj, ok, err := r.autoscalers.GetByKey(name.String())
	if err != nil {
		return 0, err
	}
	if !ok {
		r.failures.Forget(name)
		r.forget(name)
		return 0, nil
	}
	hpa := obj.(*autoscalingv2.HorizontalPodAutoscaler)
	h := r.history(name, hpa.UID)
	if wait := time.Until(h.due); wait > 0 {
		return wait, nil
	}
	defer func() { h.due = time.Now().Add(r.SyncPeriod) }()
	if err := r.sync(ctx, hpa, h); err == nil {
		r.failures.Forget(name)
	} else if ctx.Err() == nil {
		r.failures.Log(ctx, name, err)
	}
	return r.SyncPeriod, nil
}

// history is what is remembered of an autoscaler. A new one is first looked at
// after a period.
func (r *reconciler) history(name cache.ObjectName, uid types.UID) *history {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.histories[name]
	if h == nil || h.uid != uid {
		h = &history{uid: uid, due: time.Now().Add(r.SyncPeriod)}
		r.histories[name] = h
		number.Set(float64(len(r.histories)))
	}
	return h
}

func (r *reconciler) forget(name cache.ObjectName) {
	r.selectors.delete(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.histories, name)
	number.Set(float64(len(r.histories)))
	unobserve(name)
}

// sync scales the target and says in the status what came of it.
func (r *reconciler) sync(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, h *history) error {
	next := hpa.DeepCopy()
	began := time.Now()
	err := r.scale(ctx, next, h)
	observe(hpa, next, began, err)
	if apiequality.Semantic.DeepEqual(hpa.Status, next.Status) {
		return err
	}
	if _, err := r.client.AutoscalingV2().HorizontalPodAutoscalers(hpa.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
		r.events.Event(hpa, corev1.EventTypeWarning, "FailedUpdateStatus", err.Error())
		return fmt.Errorf("update the status: %w", err)
	}
	return err
}
