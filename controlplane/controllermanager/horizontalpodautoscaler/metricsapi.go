package horizontalpodautoscaler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Bounds of what a metrics API may do to this process.
const (
	answerTime  = 15 * time.Second
	answerLimit = 32 << 20
)

const customMetrics = "custom.metrics.k8s.io"

// customVersions are those of custom.metrics.k8s.io that are understood.
var customVersions = []string{"v1beta2", "v1beta1"}

// defaultWindow is what a custom metric without a window was measured over.
const defaultWindow = time.Minute

// metricsAPI asks the three APIs of metrics, which other servers implement.
type metricsAPI struct {
	// clients are by group and version.
	clients map[schema.GroupVersion]rest.Interface
	targets *targets
	// period is how long the preferred version of custom metrics is believed.
	period time.Duration

	mu        sync.Mutex
	preferred schema.GroupVersion
	until     time.Time
}

var (
	resourceVersion = schema.GroupVersion{Group: "metrics.k8s.io", Version: "v1beta1"}
	externalVersion = schema.GroupVersion{Group: "external.metrics.k8s.io", Version: "v1beta1"}
)

func newMetricsAPI(kube *rest.Config, targets *targets, period time.Duration) (*metricsAPI, error) {
	versions := []schema.GroupVersion{resourceVersion, externalVersion}
	for _, v := range customVersions {
		versions = append(versions, schema.GroupVersion{Group: customMetrics, Version: v})
	}
	cfg := rest.CopyConfig(kube)
	cfg.APIPath, cfg.NegotiatedSerializer = "/apis", scheme.Codecs.WithoutConversion()
	cfg.Wrap(bounded)
	shared, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	m := &metricsAPI{clients: map[schema.GroupVersion]rest.Interface{}, targets: targets, period: period}
	for _, gv := range versions {
		cfg.GroupVersion = &gv
		client, err := rest.RESTClientForConfigAndClient(cfg, shared)
		if err != nil {
			return nil, err
		}
		m.clients[gv] = client
	}
	return m, nil
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// bounded reads no more of an answer than answerLimit.
func bounded(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if err == nil && resp.Body != nil {
			resp.Body = http.MaxBytesReader(nil, resp.Body, answerLimit)
		}
		return resp, err
	})
}

// read asks with all bounds.
func read(ctx context.Context, r *rest.Request, into any) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	raw, err := body(r.SetHeader("Accept", "application/json").Do(ctx))
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// A podMetrics is what is read of a PodMetrics.
type podMetrics struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Timestamp  metav1.Time     `json:"timestamp"`
	Window     metav1.Duration `json:"window"`
	Containers []struct {
		Name  string                              `json:"name"`
		Usage map[corev1.ResourceName]measurement `json:"usage"`
	} `json:"containers"`
}

// resource is what pods use of a resource, or one container of each.
func (m *metricsAPI) resource(ctx context.Context, namespace string, selector labels.Selector, name corev1.ResourceName, container string) (samples, error) {
	var list struct {
		Items []podMetrics `json:"items"`
	}
	request := m.clients[resourceVersion].Get().Namespace(namespace).Resource("pods")
	if err := read(ctx, selected(request, "labelSelector", selector), &list); err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from resource metrics API")
	}
	all := make(samples, len(list.Items))
	for i := range list.Items {
		pod := &list.Items[i]
		if used, ok := pod.usage(name, container); ok {
			all[pod.Metadata.Name] = sample{pod.Timestamp.Time, pod.Window.Duration, used}
		}
	}
	return all, nil
}

// usage is that of all containers, or of one; false if it is not known of each
// of them. Nothing uses less than nothing: who says so does not know.
func (p *podMetrics) usage(name corev1.ResourceName, container string) (total int64, known bool) {
	for _, c := range p.Containers {
		if container != "" && container != c.Name {
			continue
		}
		used := c.Usage[name]
		if !used.given || used.milli < 0 {
			return 0, false
		}
		total, known = sum(total, used.milli), true
	}
	return total, known
}

// A metricValue is what is read of a MetricValue of custom or external metrics,
// of any version.
type metricValue struct {
	DescribedObject struct {
		Name string `json:"name"`
	} `json:"describedObject"`
	Timestamp     metav1.Time `json:"timestamp"`
	Window        *int64      `json:"window"` // v1beta1
	WindowSeconds *int64      `json:"windowSeconds"`
	Value         measurement `json:"value"`
}

type metricValues struct {
	Items []metricValue `json:"items"`
}

// pods is a custom metric of each pod.
func (m *metricsAPI) pods(ctx context.Context, namespace, metric string, selector, metricSelector labels.Selector) (samples, error) {
	list, err := m.custom(ctx, namespace, schema.GroupKind{Kind: "Pod"}, "*", metric, selector, metricSelector)
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	if len(list) == 0 {
		return nil, errors.New("no metrics returned from custom metrics API")
	}
	all := make(samples, len(list))
	for _, v := range list {
		window := defaultWindow
		for _, seconds := range []*int64{v.Window, v.WindowSeconds} {
			if seconds != nil {
				window = time.Duration(min(max(*seconds, 0), int64(time.Hour/time.Second))) * time.Second
			}
		}
		if v.Value.given {
			all[v.DescribedObject.Name] = sample{v.Timestamp.Time, window, v.Value.milli}
		}
	}
	return all, nil
}

// object is a custom metric of one object of the namespace, or of the namespace.
func (m *metricsAPI) object(ctx context.Context, namespace, metric string, of *autoscalingv2.CrossVersionObjectReference, metricSelector labels.Selector) (int64, error) {
	kind := schema.FromAPIVersionAndKind(of.APIVersion, of.Kind).GroupKind()
	list, err := m.custom(ctx, namespace, kind, of.Name, metric, labels.Everything(), metricSelector)
	switch {
	case err != nil:
	case len(list) != 1:
		err = fmt.Errorf("the custom metrics API server returned %v results when we asked for exactly one", len(list))
	case !list[0].Value.given:
		err = errors.New("the custom metrics API server returned no value")
	default:
		return list[0].Value.milli, nil
	}
	return 0, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
}

func (m *metricsAPI) custom(ctx context.Context, namespace string, kind schema.GroupKind, name, metric string, selector, metricSelector labels.Selector) ([]metricValue, error) {
	gv, err := m.customVersion(ctx)
	if err != nil {
		return nil, err
	}
	request := m.clients[gv].Get().Namespace(namespace)
	if kind == (schema.GroupKind{Kind: "Namespace"}) {
		request = request.Resource("metrics").Name(metric)
	} else {
		resource, err := m.targets.qualified(ctx, kind)
		if err != nil {
			return nil, err
		}
		request = request.Resource(resource).Name(name).SubResource(metric)
	}
	var list metricValues
	request = selected(selected(request, "labelSelector", selector), "metricLabelSelector", metricSelector)
	if err := read(ctx, request, &list); err != nil {
		return nil, err
	}
	return list.Items, nil
}

// customVersion is the preferred version of custom metrics, or the first that is
// understood.
func (m *metricsAPI) customVersion(ctx context.Context) (schema.GroupVersion, error) {
	m.mu.Lock()
	preferred, until := m.preferred, m.until
	m.mu.Unlock()
	if time.Now().Before(until) {
		return preferred, nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var group metav1.APIGroup
	err := m.targets.ask(ctx, &group, "apis", customMetrics)
	if apierrors.IsNotFound(err) {
		return preferred, fmt.Errorf("no custom metrics API (%s) registered", customMetrics)
	}
	if err != nil {
		return preferred, err
	}
	versions := inOrder(&group)
	i := slices.IndexFunc(versions, func(v string) bool { return slices.Contains(customVersions, v) })
	if i < 0 {
		return preferred, errors.New("no known available metric versions found")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.preferred = schema.GroupVersion{Group: customMetrics, Version: versions[i]}
	m.until = time.Now().Add(m.period)
	return m.preferred, nil
}

// external is the sum of all series of an external metric.
func (m *metricsAPI) external(ctx context.Context, namespace, metric string, selector labels.Selector) (total int64, err error) {
	var list metricValues
	request := m.clients[externalVersion].Get().Namespace(namespace).Resource(metric)
	if err := read(ctx, selected(request, "labelSelector", selector), &list); err != nil {
		return 0, fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return 0, errors.New("no metrics returned from external metrics API")
	}
	for _, v := range list.Items {
		if !v.Value.given {
			return 0, errors.New("the external metrics API server returned no value")
		}
		total = sum(total, v.Value.milli)
	}
	return total, nil
}

func selected(r *rest.Request, param string, selector labels.Selector) *rest.Request {
	if s := selector.String(); s != "" {
		return r.Param(param, s)
	}
	return r
}
