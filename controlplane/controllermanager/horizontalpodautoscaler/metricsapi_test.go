package horizontalpodautoscaler

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// answers are bodies by the path and query they are for; what is put becomes
// the answer.
type answers map[string]string

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPut && a[r.URL.RequestURI()] != "refused" {
		sent, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		a[r.URL.RequestURI()] = string(sent)
	}
	body, ok := a[r.URL.RequestURI()]
	status := http.StatusOK
	if !ok {
		status, body = http.StatusNotFound, "404 page not found"
	}
	resp := &http.Response{StatusCode: status, Request: r, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}
	switch body {
	case "refused":
		resp.StatusCode = http.StatusForbidden
	case "hang":
		<-r.Context().Done()
		return nil, r.Context().Err()
	case "endless":
		resp.Body = io.NopCloser(endless{})
	}
	return resp, nil
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// discovery has pods, services and custom metrics of two versions.
func discovery(more answers) answers {
	all := answers{
		"/api/v1":                     `{"resources":[{"name":"pods/log","kind":"Pod"},{"name":"pods","kind":"Pod"},{"name":"namespaces","kind":"Namespace"}]}`,
		"/apis/networking.k8s.io":     `{"name":"networking.k8s.io","versions":[{"version":"v1"}],"preferredVersion":{"version":"v1"}}`,
		"/apis/networking.k8s.io/v1":  `{"resources":[{"name":"ingresses","kind":"Ingress"}]}`,
		"/apis/custom.metrics.k8s.io": `{"versions":[{"version":"v1beta2"},{"version":"v1beta1"}],"preferredVersion":{"version":"v1beta1"}}`,
	}
	for k, v := range more {
		all[k] = v
	}
	return all
}

func api(t *testing.T, a answers) *metricsAPI {
	t.Helper()
	cfg := &rest.Config{Host: "http://apiserver", Transport: a, QPS: -1}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMetricsAPI(cfg, newTargets(client.CoreV1().RESTClient()), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const podsPath = "/apis/metrics.k8s.io/v1beta1/namespaces/n/pods?labelSelector=app%3Dweb"

var web = labels.SelectorFromSet(labels.Set{"app": "web"})

func podsAnswer(containers ...string) string {
	items := make([]string, len(containers))
	for i, c := range containers {
		items[i] = fmt.Sprintf(`{"metadata":{"name":"p%d"},"timestamp":"2026-01-02T03:04:05Z","window":"30s","containers":%s}`, i, c)
	}
	return `{"items":[` + strings.Join(items, ",") + `]}`
}

func container(name, usage string) string {
	return fmt.Sprintf(`{"name":%q,"usage":{%s}}`, name, usage)
}

func TestResource(t *testing.T) {
	cpu := func(v string) string { return `"cpu":` + v }
	for _, tt := range []struct{ name, container, answer, want string }{
		{"sums", "", podsAnswer("["+container("a", cpu(`"100m"`))+","+container("b", cpu(`"1"`))+"]", "["+container("a", cpu(`"2"`))+"]"), "map[p0:1100 p1:2000]"},
		{"one container", "b", podsAnswer("["+container("a", cpu(`"100m"`))+","+container("b", cpu(`"1"`))+"]", "["+container("a", cpu(`"2"`))+"]"), "map[p0:1000]"},
		{"one of two is missing", "", podsAnswer("[" + container("a", cpu(`"100m"`)) + "," + container("b", `"memory":"1"`) + "]"), "map[]"},
		{"no containers", "", podsAnswer("[]"), "map[]"},
		{"no pods", "", podsAnswer(), "no metrics returned from resource metrics API"},
		{"below zero is not known", "", podsAnswer("["+container("a", cpu(`"-1"`))+"]", "["+container("a", cpu(`"1"`))+"]"), "map[p1:1000]"},
		{"null is not known", "", podsAnswer("[" + container("a", cpu(`null`)) + "]"), "map[]"},
		{"huge", "", podsAnswer("[" + container("a", cpu(`"9223372036854775807"`)) + "," + container("b", cpu(`"8E"`)) + "]"), "map[p0:9223372036854775807]"},
		{"no number", "", podsAnswer("[" + container("a", cpu(`"NaN"`)) + "]"), "unable to fetch metrics from resource metrics API: quantities must match"},
		{"an exponent that takes for ever", "", podsAnswer("[" + container("a", cpu(`"1e-999999999"`)) + "]"), `quantity "1e-999999999" is out of range`},
		{"another", "", podsAnswer("[" + container("a", cpu(`1E+99999999999999999999999`)) + "]"), "is out of range"},
		{"digits without end", "", podsAnswer("[" + container("a", cpu(`"`+strings.Repeat("9", 1000)+`"`)) + "]"), "quantity of 1002 characters"},
		{"no answer", "", "hang", "context deadline exceeded"},
		{"an answer without end", "", "endless", "http: request body too large"},
		{"not JSON", "", "<html>", "invalid character"},
		{"another kind", "", `{"kind":"Status"}`, "no metrics returned from resource metrics API"},
	} {
		synctest.Test(t, func(t *testing.T) {
			started := time.Now()
			all, err := api(t, answers{podsPath: tt.answer}).resource(context.Background(), "n", web, corev1.ResourceCPU, tt.container)
			values := map[string]int64{}
			for name, s := range all {
				values[name] = s.value
			}
			got := fmt.Sprint(values)
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, tt.want) {
				t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
			}
			if took := time.Since(started); took > answerTime {
				t.Errorf("%s: after %v", tt.name, took)
			}
		})
	}
	_, err := api(t, answers{}).resource(context.Background(), "n", web, corev1.ResourceCPU, "")
	if want := "unable to fetch metrics from resource metrics API: the server could not find the requested resource (get pods.metrics.k8s.io)"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestCustom(t *testing.T) {
	const root = "/apis/custom.metrics.k8s.io/v1beta1/namespaces/n/"
	a := discovery(answers{
		root + "pods/%2A/qps?labelSelector=app%3Dweb&metricLabelSelector=verb%3Dget": `{"items":[
			{"describedObject":{"name":"a"},"value":"1500m","window":20},{"describedObject":{"name":"b"},"value":"-2","windowSeconds":99999999},{"describedObject":{"name":"c"}}]}`,
		root + "ingresses.networking.k8s.io/front/qps": `{"items":[{"value":"7"}]}`,
		root + "metrics/qps":                           `{"items":[{"value":"8"}]}`,
		root + "ingresses.networking.k8s.io/two/qps":   `{"items":[{"value":"7"},{"value":"7"}]}`,
		root + "ingresses.networking.k8s.io/none/qps":  `{"items":[{}]}`,
	})
	m, ctx := api(t, a), context.Background()
	all, err := m.pods(ctx, "n", "qps", web, labels.SelectorFromSet(labels.Set{"verb": "get"}))
	if got := fmt.Sprint(all["a"].value, all["a"].window, all["b"].value, all["b"].window, len(all)); err != nil || got != "1500 20s -2000 1h0m0s 2" {
		t.Error(got, err)
	}
	for _, tt := range []struct{ version, kind, name, want string }{
		{"networking.k8s.io/v1", "Ingress", "front", "7000"},
		{"v1", "Namespace", "any", "8000"},
		{"networking.k8s.io/v1", "Ingress", "two", "unable to fetch metrics from custom metrics API: the custom metrics API server returned 2 results when we asked for exactly one"},
		{"networking.k8s.io/v1", "Ingress", "none", "unable to fetch metrics from custom metrics API: the custom metrics API server returned no value"},
		{"x.example.com/v1", "X", "x", `unable to fetch metrics from custom metrics API: unable to map kind X.x.example.com to resource: no matches for kind "X" in group "x.example.com"`},
		{"../v1", "X", "x", `may not be '..'`},
		{"networking.k8s.io/v1", "Ingress", "..", `may not be '..'`},
	} {
		n, err := m.object(ctx, "n", "qps", &autoscalingv2.CrossVersionObjectReference{APIVersion: tt.version, Kind: tt.kind, Name: tt.name}, labels.Everything())
		got := fmt.Sprint(n)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, tt.want) {
			t.Errorf("%v: %s", tt, got)
		}
	}
	for answer, want := range map[string]string{
		"": "no custom metrics API (custom.metrics.k8s.io) registered",
		`{"versions":[{"version":"v7"}],"preferredVersion":{"version":"v7"}}`: "no known available metric versions found",
	} {
		a := discovery(answers{"/apis/custom.metrics.k8s.io": answer})
		if answer == "" {
			delete(a, "/apis/custom.metrics.k8s.io")
		}
		if _, err := api(t, a).pods(ctx, "n", "qps", web, labels.Everything()); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Whatever a metrics API answers, the proposal is one that the bounds hold.
func TestPropose(t *testing.T) {
	const external = "/apis/external.metrics.k8s.io/v1beta1/namespaces/n/queue?labelSelector=of%3Dx"
	queue := autoscalingv2.MetricIdentifier{Name: "queue", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"of": "x"}}}
	q := func(s string) *resource.Quantity { return new(resource.MustParse(s)) }
	for _, tt := range []struct {
		name   string
		target autoscalingv2.MetricTarget
		answer string
		want   string // replicas, status, or the errors
	}{
		{"a value", autoscalingv2.MetricTarget{Value: q("10")}, `{"items":[{"value":"15"},{"value":"5"}]}`, "6 20 <nil>"},
		{"an average", autoscalingv2.MetricTarget{AverageValue: q("10")}, `{"items":[{"value":"65"}]}`, "7 <nil> 21667m"},
		{"huge values", autoscalingv2.MetricTarget{Value: q("1n")}, `{"items":[{"value":"9223372036854775807"},{"value":"8E"}]}`, "2147483647 9223372036854775807m <nil>"},
		{"a huge target", autoscalingv2.MetricTarget{Value: q("1e999999999")}, `{"items":[{"value":"5"}]}`, "1 5 <nil>"},
		{"below zero", autoscalingv2.MetricTarget{AverageValue: q("10")}, `{"items":[{"value":"-65"}]}`, "0 <nil> -21666m"},
		{"one value is missing", autoscalingv2.MetricTarget{Value: q("10")}, `{"items":[{"value":"15"},{}]}`, "failed to get queue external metric value: failed to get external metric queue: " +
			"unable to get external metric n/queue/&LabelSelector{MatchLabels:map[string]string{of: x,},MatchExpressions:[]LabelSelectorRequirement{},}: the external metrics API server returned no value"},
		{"none", autoscalingv2.MetricTarget{AverageValue: q("10")}, `{"items":[]}`, "failed to get queue external metric value: failed to get queue external metric: " +
			"unable to get external metric n/queue/&LabelSelector{MatchLabels:map[string]string{of: x,},MatchExpressions:[]LabelSelectorRequirement{},}: no metrics returned from external metrics API"},
		{"no target", autoscalingv2.MetricTarget{}, "", "failed to get queue external metric value: invalid external metric source: neither a value target nor an average value target was set"},
	} {
		m := &measuring{metricsAPI: api(t, answers{external: tt.answer}), namespace: "n", selector: web, calculation: calculate(3, pods(3, ""))}
		p := m.propose(context.Background(), &autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType,
			External: &autoscalingv2.ExternalMetricSource{Metric: queue, Target: tt.target}})
		got := ""
		if p.err != nil {
			got = p.err.Error()
		} else {
			got = fmt.Sprint(p.replicas, p.status.External.Current.Value, p.status.External.Current.AverageValue)
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	m := &measuring{}
	if p := m.propose(context.Background(), &autoscalingv2.MetricSpec{Type: "X"}); p.reason != "InvalidMetricSourceType" || p.err.Error() != `unknown metric source type "X"` {
		t.Error(p)
	}
}

func TestMeasurement(t *testing.T) {
	for in, want := range map[string]int64{
		`"1"`: 1000, `2`: 2000, `"1n"`: 1, `"9223372036854775807"`: math.MaxInt64, `"-9223372036854775807"`: math.MinInt64,
		`"99999999999999999999999999"`: math.MaxInt64, `"1e30"`: math.MaxInt64, `"-1e30"`: math.MinInt64, `"8E"`: math.MaxInt64, `"1Ki"`: 1024000,
	} {
		var m measurement
		if err := json.Unmarshal([]byte(in), &m); err != nil || m.milli != want || !m.given {
			t.Errorf("%s: %v %v", in, m, err)
		}
	}
}

func FuzzMeasurement(f *testing.F) {
	for _, s := range []string{`"1"`, `"1e5"`, `"1e-999999999"`, `-3`, `null`, `"1e+40"`, `"Ei"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var m measurement
		if err := json.Unmarshal([]byte(s), &m); err != nil || !m.given {
			return
		}
		var q resource.Quantity
		if err := json.Unmarshal([]byte(s), &q); err != nil || (q.Sign() > 0) != (m.milli > 0) || (q.Sign() < 0) != (m.milli < 0) {
			t.Errorf("%s is %d: %v", s, m.milli, err)
		}
	})
}
