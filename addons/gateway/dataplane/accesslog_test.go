package dataplane

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
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
	write := func(format string) {
		b.Reset()
		log := newAccessLog(&b, format)
		log.add(r)
		if err := log.flush(); err != nil {
			t.Fatal(err)
		}
	}
	write("json")
	var line map[string]any
	if err := json.Unmarshal(b.Bytes(), &line); err != nil {
		t.Fatalf("%s: %v", b.Bytes(), err)
	}
	for key, want := range map[string]any{"uri": "/a?b=\"c\"", "status": 200.0, "microseconds": 1500.0, "endpoint": "10.0.0.1:80", "userAgent": "x\"\n\ufffd", "client": "192.0.2.1"} {
		if line[key] != want {
			t.Errorf("%s: %v, want %v", key, line[key], want)
		}
	}
	write("common")
	if want := `192.0.2.1 - - [14/Nov/2023:22:13:20 +0000] "GET /a?b=\"c\" HTTP/1.1" 200 3 "-" "x\"\n\xff" "HTTPRoute default/r" "10.0.0.1:80" 0.002` + "\n"; b.String() != want {
		t.Errorf("%s, want %s", b.String(), want)
	}
	r.NoLog = true
	if write("json"); b.Len() > 0 {
		t.Errorf("a request of a rule without a log: %s", b.String())
	}
}

// No line breaks out of its own, whatever a client sends, and no terminal obeys it.
func TestLogInjection(t *testing.T) {
	bad := "a\r\nb\x1b[2J\u009b2J\u0085\x00\x7f\"\\\xff{}"
	r := &proxy.Record{Method: bad, Host: bad, Path: bad, Query: bad, Protocol: bad, UserAgent: bad, Referer: bad, Route: bad, Rule: bad, Backend: bad, Listener: bad}
	for format, line := range map[string][]byte{"json": appendJSON(nil, r), "common": appendCommon(nil, r)} {
		if n := bytes.Count(line, []byte{'\n'}); n != 1 || line[len(line)-1] != '\n' {
			t.Errorf("%s: %d lines: %q", format, n, line)
		}
		for _, c := range string(line[:len(line)-1]) {
			if c < 0x20 || c >= 0x7f && c < 0xa0 {
				t.Errorf("%s: %q has the control character %q", format, line, c)
			}
		}
		if format == "json" && !json.Valid(line) {
			t.Errorf("no JSON: %s", line)
		}
	}
}

// A disk that does not keep up costs lines, and no memory without bound.
func TestLogIsBounded(t *testing.T) {
	l := newAccessLog(io.Discard, "json")
	r := &proxy.Record{Path: "/" + strings.Repeat("x", 1<<20)}
	for range 10 {
		l.add(r)
	}
	if got := len(l.buf); got > maxLogBuffer+2<<20 || l.lost.Load() == 0 {
		t.Errorf("%d bytes are held, %d lines lost", got, l.lost.Load())
	}
}

// TestMetrics: routes that a Config has are labels, and nothing else is.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := newStats()
	registry.MustRegister(s)
	s.add(&proxy.Record{Counted: s.matched("r"), Status: 200, Duration: time.Second, Received: 3, Sent: 5})
	s.add(&proxy.Record{Counted: s.matched("r"), Status: 503, Duration: time.Hour})
	late := &proxy.Record{Counted: s.matched("gone"), Status: 200}
	s.matched("r")
	s.add(&proxy.Record{Status: 404})
	s.keep(&route.Config{Listeners: []route.Listener{{Routes: []*route.Route{{Name: "r"}}}}})
	s.add(late)
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
				text += fmt.Sprint(" ", m.GetCounter().GetValue()+m.GetGauge().GetValue())
			}
			got = append(got, text)
		}
	}
	slices.Sort(got)
	want := []string{
		"knarr_gateway_request_bytes_total route= 0",
		"knarr_gateway_request_bytes_total route=r 3",
		"knarr_gateway_request_duration_seconds route= 1 0",
		"knarr_gateway_request_duration_seconds route=r 2 3601",
		"knarr_gateway_requests_in_flight route= 0",
		"knarr_gateway_requests_in_flight route=r 1",
		"knarr_gateway_requests_total code=2xx route=r 1",
		"knarr_gateway_requests_total code=4xx route= 1",
		"knarr_gateway_requests_total code=5xx route=r 1",
		"knarr_gateway_response_bytes_total route= 0",
		"knarr_gateway_response_bytes_total route=r 5",
		"knarr_gateway_routes 1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// However many routes there are, few have labels of their own.
func TestLabelsAreBounded(t *testing.T) {
	s := newStats()
	for i := range 3 * maxRouteLabels {
		s.add(&proxy.Record{Counted: s.matched(fmt.Sprint("r", i)), Status: 200})
	}
	if got := s.other.codes[2].Load(); got != 2*maxRouteLabels {
		t.Errorf("%d requests are of other routes", got)
	}
	s.keep(&route.Config{})
	if s.matched("r1") == any(&s.other) {
		t.Error("there is no room once routes have gone")
	}
}
