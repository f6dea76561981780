package dataplane

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"knarr/addons/gateway/tracing"
)

// One request is a line of the log, numbers by its route, and a span of the trace that its
// client has begun and the backend is heard of.
func TestObserved(t *testing.T) {
	spans := make(chan string, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		spans <- r.URL.Path + " " + string(body)
	}))
	defer collector.Close()
	tracer, err := tracing.New(tracing.Config{Endpoint: collector.URL, Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "access.log")
	log, err := OpenLog(path)
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	f := newPlane(t, Options{AccessLog: log, Metrics: registry, Tracer: tracer})
	f.serve("b", func(w http.ResponseWriter, r *http.Request) {
		got, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, r.Header.Get("Traceparent"), " ", len(got))
	})
	f.apply(one("http", 80, "b"))
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	_, heard := f.send(80, "POST /b HTTP/1.1\r\nHost: h.example\r\nTraceparent: 00-"+trace+"-00f067aa0ba902b7-01\r\nContent-Length: 3\r\n\r\nabc")
	if !strings.HasPrefix(heard, "00-"+trace+"-") || strings.Contains(heard, "00f067aa0ba902b7") || !strings.HasSuffix(heard, "-01 3") {
		t.Errorf("the backend is heard %q", heard)
	}
	span := <-spans
	if id := heard[36:52]; !strings.HasPrefix(span, "/v1/traces {") || !strings.Contains(span, `"spanId":"`+id+`"`) || !strings.Contains(span, `"parentSpanId":"00f067aa0ba902b7"`) {
		t.Errorf("the collector is heard %s", span)
	}
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{
		`knarr_gateway_requests_total{code="2xx",route="Ingress default/b"} 1`, `knarr_gateway_request_bytes_total{route="Ingress default/b"} 3`,
		`knarr_gateway_requests_in_flight{route="Ingress default/b"} 0`, `knarr_gateway_request_duration_seconds_count{route="Ingress default/b"} 1`,
		`knarr_gateway_spans_total{result="sent"} `, `knarr_gateway_access_log_lost_total 0`, `knarr_gateway_routes 1`,
	} {
		if !strings.Contains(page.Body.String(), line) {
			t.Errorf("%s is not in\n%s", line, page.Body)
		}
	}
	f.end()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var line map[string]any
	if err := json.Unmarshal(bytes.TrimSpace(b), &line); err != nil || line["trace"] != trace || line["status"] != 200.0 || line["route"] != "Ingress default/b" || line["received"] != 3.0 {
		t.Errorf("%v: %s", err, b)
	}
}
