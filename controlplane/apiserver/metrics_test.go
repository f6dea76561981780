package apiserver

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/authn"
)

func asRoot(s *Server, method, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer root")
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

// families is what path tells.
func families(t *testing.T, s *Server, path string) map[string]*dto.MetricFamily {
	t.Helper()
	w := asRoot(s, "GET", path, "")
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	p := expfmt.NewTextParser(model.LegacyValidation)
	all, err := p.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// labelsOf are the names of a family's labels.
func labelsOf(f *dto.MetricFamily) string {
	var names []string
	if len(f.Metric) > 0 {
		for _, l := range f.Metric[0].Label {
			names = append(names, l.GetName())
		}
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// value is the counter with those labels, 0 when there is none.
func value(all map[string]*dto.MetricFamily, name string, labels map[string]string) float64 {
	for _, m := range all[name].GetMetric() {
		fits := 0
		for _, l := range m.Label {
			if v, ok := labels[l.GetName()]; ok && v == l.GetValue() {
				fits++
			}
		}
		if fits == len(labels) {
			switch {
			case m.Counter != nil:
				return m.Counter.GetValue()
			case m.Gauge != nil:
				return m.Gauge.GetValue()
			case m.Histogram != nil:
				return float64(m.Histogram.GetSampleCount())
			}
		}
	}
	return 0
}

// absent are families of upstream's that are not here, by prefix, and why.
var absent = []struct{ prefix, why string }{
	{"aggregator_discovery_", "discovery is not gathered from peers here"},
	{"apiextensions_", "documents are made when asked for, not regenerated"},
	{"apiserver_admission_step_admission_duration_seconds_summary", "a summary takes a lock on every write; the histogram says the same"},
	{"apiserver_cache_list_", "the cache has no such indexes"},
	{"apiserver_current_inqueue_requests", "apiserver_flowcontrol_current_inqueue_requests says it by level"},
	{"apiserver_envelope_encryption_", "of upstream's way to keep keys"},
	{"apiserver_flowcontrol_current_r", "of upstream's fair queuing by virtual time"},
	{"apiserver_flowcontrol_demand_seats", "seats are lent at once here, not by demand of the last period"},
	{"apiserver_flowcontrol_priority_level_", "observations at the end of every nanosecond are upstream's sampling"},
	{"apiserver_flowcontrol_read_vs_write_current_requests", "the same"},
	{"apiserver_flowcontrol_request_execution_seconds", "two looks at the clock for every request"},
	{"apiserver_flowcontrol_seat_fair_frac", "as demand_seats"},
	{"apiserver_flowcontrol_target_seats", "as demand_seats"},
	{"apiserver_flowcontrol_watch_count_samples", "a write does not count its watchers"},
	{"apiserver_flowcontrol_work_estimated_seats", "every request takes one seat"},
	{"apiserver_impersonation_", "counted among authorisations"},
	{"apiserver_init_events_total", "no event is made to begin a watch"},
	{"apiserver_kube_aggregator_x509_", "Go refuses such certificates"},
	{"apiserver_webhooks_x509_", "Go refuses such certificates"},
	{"apiserver_nodeport_repair_", "nothing here needs such repairs"},
	{"apiserver_request_body_size_bytes", "bodies are bounded; their sizes are not kept"},
	{"apiserver_request_filter_duration_seconds", "a look at the clock for every filter of every request"},
	{"apiserver_request_timestamp_comparison_time", "of upstream's way to compare"},
	{"apiserver_requested_deprecated_apis", "a deprecated API warns its users"},
	{"apiserver_resource_size_estimate_bytes", "upstream estimates it for its seats"},
	{"apiserver_selfrequest_total", "this server does not ask itself"},
	{"apiserver_storage_", "of upstream's storage and its key envelopes"},
	{"apiserver_validation_", "of upstream's move to declarative validation"},
	{"apiserver_watch_cache_", "of upstream's caches; the revision is told"},
	{"apiserver_watch_list_duration_seconds", "of upstream's lists by watch"},
	{"authentication_token_cache_", "tokens are verified, not cached"},
	{"cardinality_enforcement_", "of upstream's library"},
	{"etcd_bookmark_total", "one watch feeds all caches"},
	{"etcd_lease_object_counts", "of upstream's reuse of leases"},
	{"field_validation_request_duration_seconds", "upstream never observes it"},
	{"grpc_client_", "there is no network between this and an embedded etcd"},
	{"kube_apiserver_clusterip_", "the address table is the Services themselves"},
	{"kube_apiserver_nodeport_", "the same"},
	{"node_authorizer_", "no graph is kept"},
	{"pod_security_", "refusals and warnings are in the audit log"},
	{"rest_client_", "counted by client-go only for who asks; nobody in this package does"},
	{"serviceaccount_", "of legacy tokens, which are not made"},
	{"version_info", "of upstream's emulated versions"},
	{"watch_cache_capacity", "logs are bounded by bytes, not by a capacity"},
	{"workqueue_", "the library wakes twice a second for every queue to tell; idle is to mean idle"},
}

// present are those with such a prefix that are here nevertheless.
var present = []string{"apiserver_storage_objects", "apiserver_storage_size_bytes", "apiserver_watch_cache_resource_version"}

func reason(name string) string {
	if slices.Contains(present, name) {
		return ""
	}
	for _, a := range absent {
		if strings.HasPrefix(name, a.prefix) {
			return a.why
		}
	}
	return ""
}

// What is told has upstream's names, types and labels; what is not, a reason.
func TestMetricsAreUpstreams(t *testing.T) { synctest.Test(t, metricsAreUpstreams) }

func metricsAreUpstreams(t *testing.T) {
	s, stop := newServer(t)
	defer stop()
	asRoot(s, "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"c"}}`)
	asRoot(s, "GET", "/api/v1/namespaces/default/configmaps/c", "")
	asRoot(s, "GET", "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1&resourceVersion=0", "")
	asRoot(s, "GET", "/readyz", "")
	here := families(t, s, "/metrics")
	want, err := os.ReadFile("testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(want)) {
		words := strings.Fields(line)
		if words[0] == "#" {
			continue
		}
		words = append(words, "")
		kind, name, labels := words[0], words[1], words[2]
		f := here[name]
		switch why := reason(name); {
		case why != "" && f != nil && strings.HasPrefix(name, "apiserver_") && len(f.Metric) > 0:
			t.Errorf("%s is here, but there is a reason why not: %s", name, why)
		case f == nil && why == "" && name != "apiserver_storage_size_bytes": // the memory store has none
			t.Errorf("%s is not here, and there is no reason why", name)
		case f != nil && why == "":
			if got := strings.ToLower(f.GetType().String()); got != kind {
				t.Errorf("%s is a %s, upstream's a %s", name, got, kind)
			}
			if got := labelsOf(f); got != labels {
				t.Errorf("%s has labels %q, upstream's %q", name, got, labels)
			}
		}
	}
}

// The life of a certificate counts where it is what its user is known by.
func TestMetricsOfCertificates(t *testing.T) {
	s, stop := newServer(t)
	defer stop()
	withCertificate := &http.Request{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{NotAfter: time.Now().Add(time.Hour)}}}}
	byCertificate := &user.DefaultInfo{Name: "u", Extra: map[string][]string{user.CredentialIDKey: {"X509SHA256=00"}}}
	byToken := &user.DefaultInfo{Name: "u", Extra: map[string][]string{user.CredentialIDKey: {"JTI=1"}}}
	for _, c := range []struct {
		r   *http.Request
		who user.Info
		err error
	}{
		{withCertificate, byCertificate, nil}, {withCertificate, byToken, nil}, {withCertificate, &user.DefaultInfo{Name: "u"}, nil},
		{withCertificate, nil, authn.ErrUnauthorized}, {&http.Request{}, byCertificate, nil}, {&http.Request{TLS: &tls.ConnectionState{}}, byCertificate, nil},
	} {
		s.countUser(c.r, c.who, c.err, time.Millisecond)
	}
	h := families(t, s, "/metrics")["apiserver_client_certificate_expiration_seconds"].Metric[0].Histogram
	within := map[float64]uint64{}
	for _, b := range h.Bucket {
		within[b.GetUpperBound()] = b.GetCumulativeCount()
	}
	if h.GetSampleCount() != 1 || within[1800] != 0 || within[3600] != 1 || h.GetSampleSum() < 3500 {
		t.Error(h)
	}
}

// A stranger's words do not become labels, and what was refused is not told
// as served.
func TestMetricsOfRequests(t *testing.T) {
	s, stop := newServer(t)
	defer stop()
	asRoot(s, "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"c"}}`)
	asRoot(s, "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"c"}}`)
	asRoot(s, "POST", "/api/v1/namespaces/default/configmaps?dryRun=All", `{"metadata":{"name":"d"}}`)
	asRoot(s, "GET", "/api/v1/configmaps", "")
	asRoot(s, "GET", "/api/v1/namespaces/default/configmaps", "")
	asRoot(s, "HEAD", "/api/v1/namespaces/default/configmaps/c", "")
	asRoot(s, "BREW", "/api/v1/namespaces/default/configmaps/c", "")
	asRoot(s, "GET", "/api/v1/namespaces/default/gibberish/c", "")
	asRoot(s, "GET", "/apis/gibber.ish/v1/gibberish", "")
	asRoot(s, "GET", "/gibberish", "")
	asRoot(s, "GET", "/api/v1/namespaces/default/pods/p/gibberish", "")
	all := families(t, s, "/metrics")
	for _, c := range []struct {
		labels map[string]string
		want   float64
	}{
		{map[string]string{"verb": "POST", "scope": "resource", "resource": "configmaps", "code": "201", "dry_run": ""}, 1},
		{map[string]string{"verb": "POST", "scope": "resource", "resource": "configmaps", "code": "409"}, 1},
		{map[string]string{"verb": "POST", "resource": "configmaps", "dry_run": "All", "code": "201"}, 1},
		{map[string]string{"verb": "LIST", "scope": "cluster", "resource": "configmaps", "code": "200"}, 1},
		{map[string]string{"verb": "LIST", "scope": "namespace", "resource": "configmaps", "code": "200"}, 1},
		{map[string]string{"verb": "GET", "scope": "resource", "resource": "configmaps", "code": "200"}, 1},
		{map[string]string{"verb": "other", "resource": "configmaps", "code": "405"}, 1},
	} {
		if got := value(all, "apiserver_request_total", c.labels); got != c.want {
			t.Errorf("%v: %v times, want %v", c.labels, got, c.want)
		}
	}
	for name, f := range all {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if strings.Contains(strings.ToLower(l.GetValue()), "gibber") || l.GetValue() == "BREW" {
					t.Errorf("%s has %s=%q", name, l.GetName(), l.GetValue())
				}
			}
		}
	}
	if got := value(all, "apiserver_resource_objects", map[string]string{"group": "", "resource": "configmaps"}); got < 1 {
		t.Errorf("%v configmaps", got)
	}
	if got := value(all, "apiserver_admission_controller_admission_duration_seconds",
		map[string]string{"name": "NamespaceLifecycle", "operation": "CREATE", "type": "admit", "rejected": "false"}); got < 2 {
		t.Errorf("NamespaceLifecycle was asked %v times", got)
	}
}
