package metrics

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"knarr/controlplane/apiserver/request"
	"knarr/internal/run"
)

// Requests counts those that were allowed, by what they asked for. Only
// resources and paths that are served have series, so that no stranger can
// fill the memory with others.
type Requests struct {
	// Served says that a resource, or its subresource, is.
	Served func(*request.Info) bool

	series            series[requestKey, requestCounts]
	reading, changing atomic.Int64
	// TLSErrors are handshakes that failed.
	TLSErrors atomic.Uint64
	calls     sync.Pool
}

type requestKey struct {
	verb, dryRun, group, version, resource, subresource, scope, component string
}

type requestCounts struct {
	codes     atomic.Pointer[[]*codeCount]
	mu        sync.Mutex // orders changes of codes
	active    atomic.Int64
	long      bool
	read      bool
	duration  histogram
	sli, size histogram
}

type codeCount struct {
	code int
	n    atomic.Uint64
}

var (
	durationBounds = []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60}
	sliBounds      = durationBounds[2:]
	sizeBounds     = prometheus.ExponentialBuckets(1000, 10, 7)

	resourceLabels = []string{"group", "version", "resource", "subresource", "scope", "component"}
	requestLabels  = slices.Concat([]string{"verb", "dry_run"}, resourceLabels)
	shortLabels    = slices.Concat([]string{"verb"}, resourceLabels)

	requestTotal    = desc("apiserver_request_total", "[STABLE] Requests served, by what they asked for and the status code of the answer.", append(slices.Clone(requestLabels), "code")...)
	requestDuration = desc("apiserver_request_duration_seconds", "[STABLE] Time from receiving a request to having answered it.", requestLabels...)
	requestSLI      = desc("apiserver_request_sli_duration_seconds", "[ALPHA] The same without the time spent in webhooks and in queues of priority levels.", shortLabels...)
	responseSizes   = desc("apiserver_response_sizes", "[STABLE] Sizes of the answers to reads in bytes.", shortLabels...)
	longRunning     = desc("apiserver_longrunning_requests", "[STABLE] Long-running requests being served.", shortLabels...)
	inflight        = desc("apiserver_current_inflight_requests", "[STABLE] Requests being served that are not long-running, reads and writes.", "request_kind")
	tlsErrors       = desc("apiserver_tls_handshake_errors_total", "[ALPHA] Connections dropped because the TLS handshake failed.")
)

func newRequests() *Requests {
	return &Requests{calls: sync.Pool{New: func() any { return new(Call) }}}
}

// A Call is one request being answered through it.
type Call struct {
	http.ResponseWriter
	all      *Requests
	info     *request.Info
	counts   *requestCounts
	received time.Time
	code     int
	written  int64
}

// Begin counts a request that came at received. The answer must be written to
// what it returns, and End be called on that; nil is a request that is not
// counted.
func (m *Requests) Begin(w http.ResponseWriter, r *http.Request, info *request.Info, received time.Time) *Call {
	key := keyOf(r, info)
	counts := m.series.find(key)
	if counts == nil {
		if info.IsResource && (m.Served == nil || !m.Served(info)) || !info.IsResource && key.subresource == "" {
			return nil
		}
		counts = m.series.get(key, func() *requestCounts {
			return &requestCounts{
				long: info.IsLongRunning(), read: !info.IsResource || info.Verb == "get" || info.Verb == "list" || info.Verb == "watch",
				duration: newHistogram(durationBounds), sli: newHistogram(sliBounds), size: newHistogram(sizeBounds),
			}
		})
	}
	c := m.calls.Get().(*Call)
	*c = Call{ResponseWriter: w, all: m, info: info, counts: counts, received: received}
	counts.active.Add(1)
	if !counts.long {
		m.kind(counts).Add(1)
	}
	return c
}

func (m *Requests) kind(c *requestCounts) *atomic.Int64 {
	if c.read {
		return &m.reading
	}
	return &m.changing
}

// End says that the request has been answered.
func (c *Call) End() {
	took := time.Since(c.received)
	m, n := c.all, c.counts
	n.active.Add(-1)
	if !n.long {
		m.kind(n).Add(-1)
	}
	n.count(c.code)
	n.duration.took(took)
	n.sli.took(max(0, took-c.info.Waited()))
	if n.read {
		n.size.size(c.written)
	}
	*c = Call{}
	m.calls.Put(c)
}

func (n *requestCounts) count(code int) {
	if n.add(code) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.add(code) {
		return
	}
	var codes []*codeCount
	if old := n.codes.Load(); old != nil {
		codes = slices.Clone(*old)
	}
	first := &codeCount{code: code}
	first.n.Store(1)
	codes = append(codes, first)
	n.codes.Store(&codes)
}

func (n *requestCounts) add(code int) bool {
	codes := n.codes.Load()
	if codes == nil {
		return false
	}
	for _, c := range *codes {
		if c.code == code {
			c.n.Add(1)
			return true
		}
	}
	return false
}

// keyOf is what upstream files a request under.
func keyOf(r *http.Request, info *request.Info) requestKey {
	if !info.IsResource {
		return pathKey(r, info)
	}
	k := requestKey{
		group: info.Group, version: info.Version, resource: info.Resource, subresource: info.Subresource,
		component: "apiserver", scope: "cluster", dryRun: dryRun(r.URL),
	}
	switch {
	case info.Name != "" || info.Verb == "create":
		k.scope = "resource"
	case info.Namespace != "":
		k.scope = "namespace"
	}
	switch info.Subresource {
	case "log", "exec", "portforward", "attach", "proxy":
		k.verb = "CONNECT"
		return k
	}
	switch info.Verb {
	case "watch":
		k.verb = "WATCH"
	case "get", "list":
		k.verb = "GET"
		if k.scope != "resource" {
			k.verb = "LIST"
		}
	default:
		k.verb = method(r)
	}
	return k
}

// paths are those outside the API that have series.
var paths = map[string]requestKey{
	"/healthz":    {subresource: "/healthz"},
	"/livez":      {subresource: "/livez"},
	"/readyz":     {subresource: "/readyz"},
	"/openapi/v3": {subresource: "openapi/v3"},
	"/api":        {subresource: "api", component: "apiserver"},
	"/apis":       {subresource: "apis", component: "apiserver"},
}

func pathKey(r *http.Request, info *request.Info) requestKey {
	k := paths[info.Path]
	if k.subresource == "" && strings.HasPrefix(info.Path, "/openapi/v3/") {
		k.subresource = "openapi/v3/"
	}
	k.verb = method(r)
	return k
}

// method is the verb in upstream's words; what nobody knows is other.
func method(r *http.Request) string {
	switch r.Method {
	case http.MethodHead:
		return http.MethodGet
	case http.MethodPatch:
		if r.Header.Get("Content-Type") == "application/apply-patch+yaml" {
			return "APPLY"
		}
		return r.Method
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete:
		return r.Method
	}
	return "other"
}

func dryRun(u *url.URL) string {
	if !strings.Contains(u.RawQuery, "dryRun") {
		return ""
	}
	asked := u.Query()["dryRun"]
	for _, s := range asked {
		if s != "All" {
			return "invalid"
		}
	}
	if len(asked) == 0 {
		return ""
	}
	return "All"
}

// Describe leaves the registry to find out.
func (m *Requests) Describe(chan<- *prometheus.Desc) {}

// Collect sends the counts.
func (m *Requests) Collect(out chan<- prometheus.Metric) {
	defer run.Recover("metrics of requests")
	out <- gauge(inflight, float64(m.reading.Load()), "readOnly")
	out <- gauge(inflight, float64(m.changing.Load()), "mutating")
	out <- counter(tlsErrors, m.TLSErrors.Load())
	m.series.each(func(k requestKey, n *requestCounts) {
		short := []string{k.verb, k.group, k.version, k.resource, k.subresource, k.scope, k.component}
		full := slices.Insert(slices.Clone(short), 1, k.dryRun)
		if codes := n.codes.Load(); codes != nil {
			for _, c := range *codes {
				out <- counter(requestTotal, c.n.Load(), append(slices.Clone(full), strconv.Itoa(c.code))...)
			}
			out <- n.duration.metric(requestDuration, nanoseconds, full...)
		}
		if k.dryRun != "" {
			return // upstream tells these of what is done, not of what is tried
		}
		if n.long {
			out <- gauge(longRunning, float64(n.active.Load()), short...)
		}
		if n.sli.count() > 0 {
			out <- n.sli.metric(requestSLI, nanoseconds, short...)
		}
		if (k.verb == "GET" || k.verb == "LIST") && n.size.count() > 0 {
			out <- n.size.metric(responseSizes, bytes, short...)
		}
	})
}
