package controllermanager

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serveMetrics makes the API server itself serve a resource of an API of
// metrics, as custom objects.
func (c *cluster) serveMetrics(group, plural, kind string) {
	c.Helper()
	schema := &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
	c.no(c.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &apiextensionsv1.CustomResourceDefinition{
		TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group,
			Annotations: map[string]string{"api-approved.kubernetes.io": "unapproved, for a test"}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1beta1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: schema}}}}}))
}

// measured writes one metric, in place of the one of that name.
func (c *cluster) measured(path, name, body string) {
	c.Helper()
	client := c.client.CoreV1().RESTClient()
	c.until(path+" is served", func() (bool, error) {
		_, err := client.Delete().AbsPath(path, name).Do(c.ctx).Raw()
		_, err2 := client.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(c.ctx).Raw()
		return err2 == nil, fmt.Errorf("%w, %w", err, err2)
	})
}

// startAll does what a kubelet does to pods that have run for a while.
func (c *cluster) startAll() {
	c.Helper()
	c.makeReady()
	for _, p := range c.pods() {
		if p.Status.StartTime == nil && p.DeletionTimestamp == nil {
			p.Status.StartTime = &metav1.Time{Time: time.Now().Add(-time.Hour)}
			_, err := c.client.CoreV1().Pods("default").UpdateStatus(c.ctx, &p, metav1.UpdateOptions{})
			c.no(err)
		}
	}
}

// useCPU says what every pod uses.
func (c *cluster) useCPU(amount string) {
	c.Helper()
	for _, p := range c.pods() {
		c.measured("/apis/metrics.k8s.io/v1beta1/namespaces/default/pods", p.Name, fmt.Sprintf(`{"apiVersion":"metrics.k8s.io/v1beta1","kind":"PodMetrics",
			"metadata":{"name":%q,"labels":{"app":"web"}},"timestamp":%q,"window":"15s","containers":[{"name":"c","usage":{"cpu":%q}}]}`,
			p.Name, time.Now().UTC().Format(time.RFC3339), amount))
	}
}

func condition(h *autoscalingv2.HorizontalPodAutoscaler, kind autoscalingv2.HorizontalPodAutoscalerConditionType) string {
	for _, c := range h.Status.Conditions {
		if c.Type == kind {
			return string(c.Status) + " " + c.Reason
		}
	}
	return ""
}

// autoscaled waits until the autoscaler is as wanted.
func (c *cluster) autoscaled(name, what string, ok func(h *autoscalingv2.HorizontalPodAutoscaler) bool) *autoscalingv2.HorizontalPodAutoscaler {
	c.Helper()
	var last *autoscalingv2.HorizontalPodAutoscaler
	c.until(what, func() (bool, error) {
		h, err := c.client.AutoscalingV2().HorizontalPodAutoscalers("default").Get(c.ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		last = h
		return ok(h), fmt.Errorf("status %+v", h.Status)
	})
	return last
}

func (c *cluster) deployOf(replicas int32) {
	c.Helper()
	web := *template.DeepCopy()
	web.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	_, err := c.client.AppsV1().Deployments("default").Create(c.ctx, &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: selector, Template: web}}, metav1.CreateOptions{})
	c.no(err)
	c.until("the pods are there", func() (bool, error) { return len(c.pods()) == int(replicas), nil })
	c.startAll()
}

func (c *cluster) replicas() int32 {
	c.Helper()
	d, err := c.client.AppsV1().Deployments("default").Get(c.ctx, "web", metav1.GetOptions{})
	c.no(err)
	return *d.Spec.Replicas
}

var autoscaling = []string{"horizontal-pod-autoscaler-controller", "deployment-controller", "replicaset-controller", "serviceaccount-controller"}

// An autoscaler of autoscaling/v1 follows CPU usage up at once, and down when
// its window is over. Its name is not its Deployment's: events of one instant,
// which there are many of in a bubble, would have the same name.
func TestHorizontalPodAutoscaler(t *testing.T) {
	inCluster(t, autoscaling, func(c *cluster) {
		c.deployOf(2)
		_, err := c.client.AutoscalingV1().HorizontalPodAutoscalers("default").Create(c.ctx, &autoscalingv1.HorizontalPodAutoscaler{ObjectMeta: meta("of-web"),
			Spec: autoscalingv1.HorizontalPodAutoscalerSpec{MinReplicas: new(int32(1)), MaxReplicas: 10, TargetCPUUtilizationPercentage: new(int32(50)),
				ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}}, metav1.CreateOptions{})
		c.no(err)
		h := c.autoscaled("of-web", "no metrics are served", func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
			return condition(h, autoscalingv2.ScalingActive) == "False FailedGetResourceMetric"
		})
		if want := "the HPA was unable to compute the replica count: failed to get cpu utilization: unable to get metrics for resource cpu: " +
			"unable to fetch metrics from resource metrics API: the server could not find the requested resource (get pods.metrics.k8s.io)"; h.Status.Conditions[1].Message != want {
			t.Errorf("message %q", h.Status.Conditions[1].Message)
		}
		if got := condition(h, autoscalingv2.AbleToScale); got != "True SucceededGetScale" || h.Status.CurrentReplicas != 2 {
			t.Errorf("%s, %+v", got, h.Status)
		}
		c.serveMetrics("metrics.k8s.io", "pods", "PodMetrics")
		c.useCPU("200m")
		h = c.autoscaled("of-web", "scaled up", func(h *autoscalingv2.HorizontalPodAutoscaler) bool { return h.Status.DesiredReplicas == 4 })
		if condition(h, autoscalingv2.ScalingLimited) != "True ScaleUpLimit" || condition(h, autoscalingv2.AbleToScale) != "True SucceededRescale" ||
			condition(h, autoscalingv2.ScalingActive) != "True ValidMetricFound" || h.Status.LastScaleTime == nil || c.replicas() != 4 ||
			*h.Status.CurrentMetrics[0].Resource.Current.AverageUtilization != 200 {
			t.Errorf("status %+v", h.Status)
		}
		c.until("four pods", func() (bool, error) { return len(c.pods()) == 4, nil })
		c.startAll()
		c.useCPU("10m")
		up := h.Status.LastScaleTime.Time
		c.autoscaled("of-web", "held back", func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
			return condition(h, autoscalingv2.AbleToScale) == "True ScaleDownStabilized"
		})
		time.Sleep(4 * time.Minute)
		h = c.autoscaled("of-web", "scaled down", func(h *autoscalingv2.HorizontalPodAutoscaler) bool { return h.Status.DesiredReplicas == 1 })
		if held := h.Status.LastScaleTime.Sub(up); held < 5*time.Minute || c.replicas() != 1 {
			t.Errorf("after %v: %+v", held, h.Status)
		}
		c.rescaleEvents("New size: 4; reason: cpu resource utilization (percentage of request) above target", "New size: 1; reason: All metrics below target")
	})
}

// rescaleEvents waits for these among the events, which are written after the status.
func (c *cluster) rescaleEvents(want ...string) {
	c.Helper()
	c.until("the events of rescaling", func() (bool, error) {
		events, err := c.client.CoreV1().Events("default").List(c.ctx, metav1.ListOptions{})
		c.no(err)
		var messages []string
		for _, e := range events.Items {
			if e.Reason == "SuccessfulRescale" {
				messages = append(messages, e.Message)
			}
		}
		for _, w := range want {
			if !strings.Contains(strings.Join(messages, "\n"), w) {
				return false, fmt.Errorf("no %q in %q", w, messages)
			}
		}
		return true, nil
	})
}

func (c *cluster) autoscale(name, kind, target string, change ...func(*autoscalingv2.HorizontalPodAutoscalerSpec)) {
	c.Helper()
	h := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: meta(name), Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 6,
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: kind, Name: target}}}
	for _, f := range change {
		f(&h.Spec)
	}
	_, err := c.client.AutoscalingV2().HorizontalPodAutoscalers("default").Create(c.ctx, h, metav1.CreateOptions{})
	c.no(err)
}

// eventOf waits for an object's event of that reason, and gives its message.
func (c *cluster) eventOf(object, reason string) (message string) {
	c.Helper()
	c.until(reason+" of "+object, func() (bool, error) {
		events, err := c.client.CoreV1().Events("default").List(c.ctx, metav1.ListOptions{})
		c.no(err)
		for _, e := range events.Items {
			if e.InvolvedObject.Name == object && e.Reason == reason {
				message = e.Message
			}
		}
		return message != "", fmt.Errorf("%d events", len(events.Items))
	})
	return message
}

// What keeps an autoscaler from working is in its conditions and events.
func TestUnableAutoscalers(t *testing.T) {
	inCluster(t, autoscaling, func(c *cluster) {
		c.deployOf(2)
		c.autoscale("kind", "Nothing", "web")
		c.autoscale("name", "Deployment", "nobody")
		c.autoscale("one", "Deployment", "web")
		active, able := autoscalingv2.ScalingActive, autoscalingv2.AbleToScale
		for name, want := range map[string]string{
			"kind": `no matches for kind "Nothing" in group "apps"`,
			"name": `deployments.apps "nobody" not found`,
		} {
			h := c.autoscaled(name, "no scale", func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
				return condition(h, able) == "False FailedGetScale"
			})
			if got := h.Status.Conditions[0].Message; got != "the HPA controller was unable to get the target's current scale: "+want {
				t.Errorf("%s: %q", name, got)
			}
			if got := c.eventOf(name, "FailedGetScale"); got != want {
				t.Errorf("%s: event %q", name, got)
			}
		}
		c.autoscaled("one", "no metrics", func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
			return condition(h, active) == "False FailedGetResourceMetric"
		})
		c.autoscale("two", "Deployment", "web")
		const ambiguous = "pods by selector app=web are controlled by multiple HPAs: [default/one default/two]"
		for _, name := range []string{"one", "two"} {
			h := c.autoscaled(name, "two of them", func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
				return condition(h, active) == "False AmbiguousSelector"
			})
			if got := c.eventOf(name, "AmbiguousSelector"); h.Status.Conditions[1].Message != ambiguous || got != ambiguous {
				t.Errorf("%s: %+v, event %q", name, h.Status.Conditions, got)
			}
		}
		c.no(c.client.AutoscalingV2().HorizontalPodAutoscalers("default").Delete(c.ctx, "two", metav1.DeleteOptions{}))
		c.autoscaled("one", "one of them", func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
			return condition(h, active) == "False FailedGetResourceMetric"
		})

		// Outside of its bounds it needs no metrics, and what is at zero stays.
		c.patch("web", `{"spec":{"replicas":9}}`)
		c.autoscaled("one", "too many", func(h *autoscalingv2.HorizontalPodAutoscaler) bool { return h.Status.DesiredReplicas == 6 })
		c.rescaleEvents("New size: 6; reason: Current number of replicas above Spec.MaxReplicas")
		c.patch("web", `{"spec":{"replicas":0}}`)
		h := c.autoscaled("one", "disabled", func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
			return condition(h, active) == "False ScalingDisabled"
		})
		if h.Status.DesiredReplicas != 0 || c.replicas() != 0 {
			t.Errorf("status %+v", h.Status)
		}
	})
}

// An external metric is followed within the bounds, whatever it says.
func TestExternalMetric(t *testing.T) {
	inCluster(t, autoscaling, func(c *cluster) {
		c.deployOf(2)
		c.serveMetrics("external.metrics.k8s.io", "queues", "Queue")
		waiting := func(n string) {
			c.measured("/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queues", "q",
				fmt.Sprintf(`{"apiVersion":"external.metrics.k8s.io/v1beta1","kind":"Queue","metadata":{"name":"q"},"value":%s}`, n))
		}
		waiting(`"0"`)
		average := resource.MustParse("10")
		c.autoscale("web", "Deployment", "web", func(s *autoscalingv2.HorizontalPodAutoscalerSpec) {
			s.MinReplicas = new(int32(1))
			s.Metrics = []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "queues"}, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &average}}}}
			s.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32)}}
		})
		size := func(what string, n int32) *autoscalingv2.HorizontalPodAutoscaler {
			c.Helper()
			h := c.autoscaled("web", what, func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
				return h.Status.DesiredReplicas == n && h.Status.LastScaleTime != nil
			})
			if c.replicas() != n {
				t.Errorf("%s: %d replicas", what, c.replicas())
			}
			return h
		}
		size("nothing waits", 1)
		waiting(`"35"`)
		if h := size("some wait", 4); h.Status.CurrentMetrics[0].External == nil {
			t.Errorf("status %+v", h.Status)
		}
		// An answer that is no number, or none, changes nothing.
		waiting(`"NaN"`)
		c.autoscaled("web", "no number", func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
			return condition(h, autoscalingv2.ScalingActive) == "False FailedGetExternalMetric"
		})
		size("no number", 4)
		waiting(`"9e18"`)
		size("huge", 6)
		waiting(`"-9e18"`)
		size("below zero", 1)
	})
}
