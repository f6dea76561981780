package horizontalpodautoscaler

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

const scalePath = "/apis/apps/v1/namespaces/n/deployments/web/scale"

// looking is a controller without an API server behind it: discovery, scale
// and metrics come from answers.
func looking(t *testing.T, a answers, cfg Config) (*reconciler, *record.FakeRecorder) {
	t.Helper()
	a["/apis/apps"] = `{"name":"apps","versions":[{"version":"v1"}],"preferredVersion":{"version":"v1"}}`
	a["/apis/apps/v1"] = `{"resources":[{"name":"deployments","kind":"Deployment"}]}`
	m := api(t, a)
	events := record.NewFakeRecorder(100)
	return &reconciler{Config: cfg, events: events, targets: m.targets, metrics: m, selectors: newSelectors(), histories: map[cache.ObjectName]*history{},
		pods: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}, events
}

func scaleOf(replicas int, selector string) string {
	return fmt.Sprintf(`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"web","namespace":"n","resourceVersion":"1"},
		"spec":{"replicas":%d},"status":{"replicas":%d,"selector":%q}}`, replicas, replicas, selector)
}

func following(least int32) *autoscalingv2.HorizontalPodAutoscaler {
	average := resource.MustParse("10")
	return &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "n"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		MinReplicas: &least, MaxReplicas: 6, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
		Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "queue"}, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &average}}}}}}
}

const queuePath = "/apis/external.metrics.k8s.io/v1beta1/namespaces/n/queue"

func reasons(h *autoscalingv2.HorizontalPodAutoscaler) string {
	var all []string
	for _, c := range h.Status.Conditions {
		all = append(all, fmt.Sprint(c.Type, "=", c.Status, ":", c.Reason))
	}
	return strings.Join(all, " ")
}

// Upstream's gate lets what was scaled to zero come back; without it a target
// at zero stays there.
func TestScaleToZero(t *testing.T) {
	for _, gate := range []bool{true, false} {
		a := answers{scalePath: scaleOf(2, "app=web"), queuePath: `{"items":[{"value":"0"}]}`}
		r, _ := looking(t, a, Config{ScaleToZero: gate, Tolerance: 0.1})
		hpa, h := following(0), &history{}
		look := func(want string, replicas int) {
			t.Helper()
			if err := r.scale(context.Background(), hpa, h); err != nil {
				t.Fatal(err)
			}
			if got := reasons(hpa); got != want || !strings.Contains(a[scalePath], fmt.Sprintf(`"spec":{"replicas":%d}`, replicas)) && replicas > 0 {
				t.Errorf("gate %v: %s, want %s; %s", gate, got, want, a[scalePath])
			}
		}
		able := "AbleToScale=True:SucceededRescale ScalingActive=True:ValidMetricFound ScalingLimited=False:DesiredWithinRange"
		if !gate {
			look(able, 0)
			a[scalePath] = scaleOf(0, "app=web")
			a[queuePath] = `{"items":[{"value":"25"}]}`
			look("AbleToScale=True:SucceededGetScale ScalingActive=False:ScalingDisabled ScalingLimited=False:DesiredWithinRange", 0)
			continue
		}
		look(able+" ScaledToZero=True:ScaledToZero", 0)
		a[scalePath] = scaleOf(0, "app=web")
		a[queuePath] = `{"items":[{"value":"25"}]}`
		look(able+" ScaledToZero=False:NotScaledToZero", 3)
	}
}

// Selectors that select nothing that can be counted are told.
func TestSelected(t *testing.T) {
	for selector, want := range map[string]string{
		"":          "ScalingActive=False:InvalidSelector Warning SelectorRequired selector is required",
		"cheddar c": "ScalingActive=False:InvalidSelector Warning InvalidSelector couldn't convert selector into a corresponding internal selector object: unable to parse requirement: found 'c', expected: in, notin, =, ==, !=, gt, lt",
	} {
		a := answers{scalePath: scaleOf(2, selector)}
		r, events := looking(t, a, Config{})
		hpa := following(1)
		err := r.scale(context.Background(), hpa, &history{})
		got := strings.TrimPrefix(reasons(hpa), "AbleToScale=True:SucceededGetScale ") + " " + <-events.Events
		if err == nil || got != want {
			t.Errorf("%q: %s, want %s; %v", selector, got, want, err)
		}
		if next := <-events.Events; !strings.HasPrefix(next, "Warning FailedComputeMetricsReplicas ") {
			t.Errorf("then %s", next)
		}
	}
}

// A target whose size cannot be written is told, and what was seen is in the
// status.
func TestFailedRescale(t *testing.T) {
	a := answers{scalePath: scaleOf(9, "app=web")}
	r, events := looking(t, a, Config{})
	hpa := following(1)
	target, err := r.targets.scale(context.Background(), "n", &hpa.Spec.ScaleTargetRef)
	if err != nil {
		t.Fatal(err)
	}
	target.resource.Resource = "nothing"
	hpa.Status.CurrentReplicas = 9
	a["/apis/apps/v1/namespaces/n/nothing/web/scale"] = "refused"
	err = r.resize(context.Background(), hpa, &history{}, target, decision{replicas: 6, reason: "because"})
	if err == nil || reasons(hpa) != "AbleToScale=False:FailedUpdateScale" || hpa.Status.LastScaleTime != nil {
		t.Errorf("%v: %s", err, reasons(hpa))
	}
	if e := <-events.Events; !strings.HasPrefix(e, corev1.EventTypeWarning+" FailedRescale New size: 6; reason: because; error: ") {
		t.Error(e)
	}
}

func TestValidate(t *testing.T) {
	good := Config{Workers: 5, SyncPeriod: 15 * time.Second, Tolerance: 0.1}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Config){
		"--concurrent-horizontal-pod-autoscaler-syncs must be greater than 0, but got 0": func(c *Config) { c.Workers = 0 },
		"--horizontal-pod-autoscaler-sync-period: 1ms is too short":                      func(c *Config) { c.SyncPeriod = time.Millisecond },
		"--horizontal-pod-autoscaler-downscale-stabilization: -1s is too short":          func(c *Config) { c.DownscaleStabilization = -time.Second },
		"--horizontal-pod-autoscaler-tolerance: NaN is below zero":                       func(c *Config) { c.Tolerance = math.NaN() },
	} {
		bad := good
		change(&bad)
		if err := bad.Validate(); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
