// Package tracing makes spans of the gateway's requests. It reads and writes the header
// traceparent of the W3C's Trace Context, and sends spans to a collector by OTLP over HTTP,
// in JSON.
package tracing

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// A Config is what a Tracer is made with.
type Config struct {
	// Endpoint is the collector's URL; without a path /v1/traces is asked.
	Endpoint string
	// Ratio of the traces that begin here are sampled, from 0 to 1.
	Ratio float64
	// Node names this one.
	Node string
	// Client sends. Default: one of its own.
	Client *http.Client
}

// Check says what is wrong with an endpoint and a ratio.
func (c Config) Check() error {
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
		return fmt.Errorf("%q is no URL of a collector, such as http://127.0.0.1:4318", c.Endpoint)
	}
	if math.IsNaN(c.Ratio) || c.Ratio < 0 || c.Ratio > 1 {
		return errors.New("a ratio is from 0 to 1")
	}
	return nil
}

// followed is how many spans a second are sampled because a client says so, beyond the
// ratio: anyone can say so.
const followed = 100

// A Tracer makes spans and sends those that are sampled. Its methods may be called at once.
type Tracer struct {
	cfg   Config
	url   string
	below uint64 // the traces whose last eight bytes are below it are sampled

	mu     sync.Mutex
	second int64 // whose spans are counted
	asked  int
	queue  [][]byte // encoded spans
	size   int      // of them, in bytes
	more   chan struct{}

	sent, dropped atomic.Uint64
}

// New starts nothing.
func New(cfg Config) (*Tracer, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	u, _ := url.Parse(cfg.Endpoint) // it was checked
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	if cfg.Client == nil {
		cfg.Client = &http.Client{Timeout: sendTime, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	t := &Tracer{cfg: cfg, url: u.String(), more: make(chan struct{}, 1)}
	if cfg.Ratio == 1 {
		t.below = math.MaxUint64
	} else {
		t.below = uint64(cfg.Ratio * float64(math.MaxUint64))
	}
	return t, nil
}

// A Span is one request's part of a trace.
type Span struct {
	Trace      [16]byte
	ID, Parent [8]byte // Parent is zero where the trace begins
	Sampled    bool
}

// TraceID is the trace's name; "" without one.
func (s *Span) TraceID() string {
	if s.Trace == [16]byte{} {
		return ""
	}
	return hex.EncodeToString(s.Trace[:])
}

const header = "Traceparent"

// Begin is the span of a request with these headers, which are changed so that what is
// asked next becomes a part of it.
func (t *Tracer) Begin(h http.Header) (s Span) {
	lines := h[header]
	parent, ok := Span{}, false
	if len(lines) == 1 {
		parent, ok = parse(lines[0])
	}
	if ok {
		s.Trace, s.Parent = parent.Trace, parent.ID
	} else {
		put(s.Trace[:8], rand.Uint64())
		put(s.Trace[8:], rand.Uint64()|1) // not all zero
		delete(h, "Tracestate")           // it belongs to a parent
	}
	put(s.ID[:], rand.Uint64()|1)
	s.Sampled = get(s.Trace[8:]) < t.below || t.below == math.MaxUint64 || ok && parent.Sampled && t.mayFollow()
	h[header] = []string{s.header()}
	return s
}

// mayFollow says whether one more span is sampled because its parent is.
func (t *Tracer) mayFollow() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now().Unix(); now != t.second {
		t.second, t.asked = now, 0
	}
	t.asked++
	return t.asked <= followed
}

// header is the span as a parent.
func (s *Span) header() string {
	b := append(make([]byte, 0, 55), "00-"...)
	b = append(hex.AppendEncode(b, s.Trace[:]), '-')
	b = append(hex.AppendEncode(b, s.ID[:]), "-00"...)
	if s.Sampled {
		b[len(b)-1] = '1'
	}
	return string(b)
}

// parse reads a header of version 00, or of a later one, whose beginning is the same.
func parse(text string) (s Span, ok bool) {
	const length = len("00-00000000000000000000000000000000-0000000000000000-00")
	if len(text) < length || len(text) > length && (text[:2] == "00" || text[length] != '-') || text[2] != '-' || text[35] != '-' || text[52] != '-' || text[:2] == "ff" {
		return s, false
	}
	var version, flags [1]byte
	for _, part := range []struct {
		into []byte
		from string
	}{{version[:], text[:2]}, {s.Trace[:], text[3:35]}, {s.ID[:], text[36:52]}, {flags[:], text[53:55]}} {
		for i := 0; i < len(part.from); i++ {
			if c := part.from[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return Span{}, false
			}
		}
		if _, err := hex.Decode(part.into, []byte(part.from)); err != nil {
			return Span{}, false
		}
	}
	s.Sampled = flags[0]&1 != 0
	return s, s.Trace != [16]byte{} && s.ID != [8]byte{}
}

func put(into []byte, v uint64) {
	for i := range 8 {
		into[i] = byte(v >> (56 - 8*i))
	}
}

func get(from []byte) (v uint64) {
	for i := range 8 {
		v = v<<8 | uint64(from[i])
	}
	return v
}

// A Request is what there is to say of one that was served.
type Request struct {
	Start, End              time.Time
	Method, Scheme          string
	Host, Path, Protocol    string
	Route, Rule, Backend    string
	Listener, UserAgent     string
	Client                  netip.Addr
	Endpoint                netip.AddrPort
	Status, Attempts        int
	RequestSize, AnswerSize int64
}

// Counts are how many spans were sent, and how many were not since the collector did not
// take them or they were too many.
func (t *Tracer) Counts() (sent, dropped uint64) { return t.sent.Load(), t.dropped.Load() }
