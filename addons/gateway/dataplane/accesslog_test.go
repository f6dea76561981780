package dataplane

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"knarr/addons/gateway/proxy"
	"knarr/addons/gateway/route"
)

func TestAccessLog(t *testing.T) {
	r := &proxy.Record{Start: time.Unix(1700000000, 0).UTC(), Duration: 1500 * time.Microsecond, Client: netip.MustParseAddr("192.0.2.1"), Method: "GET", Host: "h.example",
		Path: "/a", Query: "b=\"c\"", Protocol: "HTTP/1.1", UserAgent: "x\"\n\xff", Status: 200, Sent: 3, Route: "HTTPRoute default/r", Endpoint: netip.MustParseAddrPort("10.0.0.1:80"), Attempts: 1}
	var b bytes.Buffer
	log := observer(newStats(), newAccessLog(&b, "json"))
	log(r)
	var line map[string]any
	if err := json.Unmarshal(b.Bytes(), &line); err != nil {
		t.Fatalf("%s: %v", b.Bytes(), err)
	}
	for key, want := range map[string]any{"uri": "/a?b=\"c\"", "status": 200.0, "microseconds": 1500.0, "endpoint": "10.0.0.1:80", "userAgent": "x\"\n\ufffd", "client": "192.0.2.1"} {
		if line[key] != want {
			t.Errorf("%s: %v, want %v", key, line[key], want)
		}
	}
	b.Reset()
	observer(newStats(), newAccessLog(&b, "common"))(r)
	if want := `192.0.2.1 - - [14/Nov/2023:22:13:20 +0000] "GET /a?b=\"c\" HTTP/1.1" 200 3 "-" "x\"\n\xff" "HTTPRoute default/r" "10.0.0.1:80" 0.002` + "\n"; b.String() != want {
		t.Errorf("%s, want %s", b.String(), want)
	}
	b.Reset()
	r.NoLog = true
	if log(r); b.Len() > 0 {
		t.Errorf("a request of a rule without a log: %s", b.String())
	}
}

// TestMetrics: routes that a Config has are labels, and nothing else is.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := newStats()
	registry.MustRegister(s)
	s.add(&proxy.Record{Route: "r", Status: 200, Duration: time.Second})
	s.add(&proxy.Record{Route: "r", Status: 503, Duration: time.Hour})
	s.add(&proxy.Record{Route: "gone", Status: 200})
	s.add(&proxy.Record{Status: 404})
	s.keep(&route.Config{Listeners: []route.Listener{{Routes: []route.Route{{Name: "r"}}}}})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			text := f.GetName()
			for _, l := range m.GetLabel() {
				text += " " + l.GetName() + "=" + l.GetValue()
			}
			if h := m.GetHistogram(); h != nil {
				text += fmt.Sprint(" ", h.GetSampleCount(), " ", h.GetSampleSum())
			} else {
				text += fmt.Sprint(" ", m.GetCounter().GetValue())
			}
			got = append(got, text)
		}
	}
	slices.Sort(got)
	want := []string{
		"knarr_gateway_request_duration_seconds route= 1 0",
		"knarr_gateway_request_duration_seconds route=r 2 3601",
		"knarr_gateway_requests_total code=2xx route=r 1",
		"knarr_gateway_requests_total code=4xx route= 1",
		"knarr_gateway_requests_total code=5xx route=r 1",
		"knarr_gateway_response_bytes_total route= 0",
		"knarr_gateway_response_bytes_total route=r 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
