package tracing

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// A request's span belongs to the trace that the client names, if that has a form that
// counts, and what is asked next is below it.
func TestBegin(t *testing.T) {
	for text, follows := range map[string]bool{
		parent: true, strings.TrimSuffix(parent, "1") + "0": true,
		"cc" + parent[2:] + "-what-the-future-will-be": true,
		parent + "-00": false, "ff" + parent[2:]: false, strings.ToUpper(parent): false, parent[:54]: false, "": false,
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01": false, "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01": false,
		strings.Replace(parent, "4b", "g4", 1): false, strings.Replace(parent, "-00f", "x00f", 1): false,
	} {
		tracer, err := New(Config{Endpoint: "http://collector.example:4318"})
		if err != nil {
			t.Fatal(err)
		}
		h := http.Header{"Tracestate": {"a=b"}}
		if text != "" {
			h[header] = []string{text}
		}
		s := tracer.Begin(h)
		if (s.TraceID() == "4bf92f3577b34da6a3ce929d0e0e4736") != follows || (s.Parent != [8]byte{}) != follows || (h["Tracestate"] != nil) != follows {
			t.Errorf("%q: %+v, %v", text, s, h)
		}
		next, ok := parse(h.Get(header))
		if !ok || next.Trace != s.Trace || next.ID != s.ID || next.Sampled != s.Sampled || s.Sampled != (follows && text[54] == '1') {
			t.Errorf("%q: what is asked next is %q", text, h.Get(header))
		}
	}
}

// Of the traces that begin here the ratio is sampled; clients have only so many sampled.
func TestSampling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for ratio, within := range map[float64][2]int{0: {0, 0}, 0.25: {2000, 3000}, 1: {10000, 10000}} {
			tracer, err := New(Config{Endpoint: "http://collector.example", Ratio: ratio})
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for range 10000 {
				if s := tracer.Begin(http.Header{}); s.Sampled {
					n++
				}
			}
			if n < within[0] || n > within[1] {
				t.Errorf("%v: %d of 10000", ratio, n)
			}
		}
		tracer, _ := New(Config{Endpoint: "http://collector.example"})
		n := 0
		for second := range 3 {
			for range 1000 {
				if s := tracer.Begin(http.Header{header: {parent}}); s.Sampled {
					n++
				}
			}
			if n != (second+1)*followed {
				t.Errorf("%d are sampled after %d seconds since a client says so", n, second+1)
			}
			time.Sleep(time.Second)
		}
	})
}

func TestCheck(t *testing.T) {
	for endpoint, ok := range map[string]bool{"http://127.0.0.1:4318": true, "https://c.example/v1/traces": true, "127.0.0.1:4318": false, "grpc://c:4317": false, "http://": false, "http://u:p@c": false} {
		if err := (Config{Endpoint: endpoint}).Check(); (err == nil) != ok {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
	for _, ratio := range []float64{-0.1, 1.1} {
		if (Config{Endpoint: "http://c", Ratio: ratio}).Check() == nil {
			t.Errorf("a ratio of %v is taken", ratio)
		}
	}
}

// A collector is one that answers as told, without a network.
type collector func(url, body string) int

func (c collector) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	return &http.Response{StatusCode: c(r.URL.String(), string(body)), Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

// Spans reach the collector in OTLP's form, and the last ones when the tracer ends; those
// that it does not take are counted.
func TestSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var bodies []string
		code := 200
		answer := func(with int) {
			mu.Lock()
			defer mu.Unlock()
			code = with
		}
		tracer, err := New(Config{Endpoint: "http://collector.example", Ratio: 1, Node: "n1", Client: &http.Client{Transport: collector(func(url, body string) int {
			if url != "http://collector.example/v1/traces" {
				t.Errorf("%s is asked", url)
			}
			mu.Lock()
			defer mu.Unlock()
			bodies = append(bodies, body)
			return code
		})}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { tracer.Run(ctx); close(done) }()
		start := time.Now()
		end := func() {
			s := tracer.Begin(http.Header{header: {parent}})
			tracer.End(&s, &Request{Start: start, End: start.Add(time.Millisecond), Method: "GET", Host: "a\"\x1b.example", Path: "/" + strings.Repeat("é", 400), Route: "Ingress default/i", Status: 502, Attempts: 2})
		}
		end()
		end()
		time.Sleep(2 * sendAfter)
		mu.Lock()
		all := bodies
		mu.Unlock()
		if len(all) != 1 {
			t.Fatalf("%d are sent", len(all))
		}
		var got struct {
			ResourceSpans []struct {
				ScopeSpans []struct {
					Spans []struct {
						TraceID, SpanID, ParentSpanID, Name string
						Kind                                int
						StartTimeUnixNano, EndTimeUnixNano  string
						Status                              struct{ Code int }
						Attributes                          []struct {
							Key   string
							Value struct{ StringValue, IntValue string }
						}
					}
				}
			}
		}
		if err := json.Unmarshal([]byte(all[0]), &got); err != nil {
			t.Fatalf("%v: %s", err, all[0])
		}
		spans := got.ResourceSpans[0].ScopeSpans[0].Spans
		if s := spans[0]; len(spans) != 2 || s.TraceID != parent[3:35] || s.ParentSpanID != parent[36:52] || len(s.SpanID) != 16 || s.Kind != 2 || s.Status.Code != 2 || s.Name != "GET Ingress default/i" {
			t.Errorf("%+v", spans)
		}
		values := map[string]string{}
		for _, a := range spans[0].Attributes {
			values[a.Key] = a.Value.StringValue + a.Value.IntValue
		}
		if values["server.address"] != "a\"\x1b.example" || values["http.response.status_code"] != "502" || values["http.request.resend_count"] != "1" || len(values["url.path"]) > maxText || strings.Contains(values["url.path"], "\ufffd") {
			t.Errorf("%q", values)
		}
		answer(503)
		end()
		time.Sleep(2 * sendAfter)
		answer(200)
		end()
		cancel()
		<-done
		if sent, dropped := tracer.Counts(); sent != 3 || dropped != 1 || len(bodies) != 3 {
			t.Errorf("%d sent, %d dropped, %d times", sent, dropped, len(bodies))
		}
	})
}

// A collector that does not answer costs spans, and no memory without bound.
func TestQueueIsBounded(t *testing.T) {
	tracer, _ := New(Config{Endpoint: "http://collector.example", Ratio: 1})
	s := tracer.Begin(http.Header{})
	for range 20000 {
		tracer.End(&s, &Request{Path: "/" + strings.Repeat("x", 1000)})
	}
	if _, dropped := tracer.Counts(); tracer.size > maxQueue || dropped == 0 {
		t.Errorf("%d bytes are held, %d spans dropped", tracer.size, dropped)
	}
}

// Whatever a client sends, the header that goes on is one that counts.
func FuzzBegin(f *testing.F) {
	f.Add(parent)
	f.Add("cc" + parent[2:] + "-x")
	f.Add("")
	tracer, err := New(Config{Endpoint: "http://collector.example", Ratio: 0.5})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h := http.Header{header: {text}}
		s := tracer.Begin(h)
		if next, ok := parse(h.Get(header)); !ok || next.ID != s.ID || next.Trace != s.Trace {
			t.Errorf("%q becomes %q", text, h.Get(header))
		}
	})
}
