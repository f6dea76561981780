package dataplane

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"knarr/addons/gateway/proxy"
)

// maxLogBuffer bounds the lines that wait to be written: those over are lost, and counted,
// since no request waits for a disk.
const maxLogBuffer = 4 << 20

// An accessLog writes a line for each request.
type accessLog struct {
	to     io.Writer
	common bool
	more   chan struct{}

	mu         sync.Mutex
	buf, spare []byte
	lost       atomic.Uint64
}

func newAccessLog(to io.Writer, format string) *accessLog {
	if to == nil {
		return nil
	}
	return &accessLog{to: to, common: format == "common", more: make(chan struct{}, 1)}
}

func (l *accessLog) add(r *proxy.Record) {
	if r.NoLog {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.buf) > maxLogBuffer {
		l.lost.Add(1)
		return
	}
	empty := len(l.buf) == 0
	if l.common {
		l.buf = appendCommon(l.buf, r)
	} else {
		l.buf = appendJSON(l.buf, r)
	}
	if empty {
		select {
		case l.more <- struct{}{}:
		default:
		}
	}
}

// run writes until ctx ends, and then what is left.
func (l *accessLog) run(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		select {
		case <-l.more:
		case <-ctx.Done():
		}
		err := l.flush()
		if failing != (err != nil) { // once, not for each line
			if failing = err != nil; failing {
				slog.Warn("gateway: the access log cannot be written", "err", err)
			}
		}
	}
}

// flush writes what there is.
func (l *accessLog) flush() error {
	l.mu.Lock()
	lines := l.buf
	l.buf, l.spare = l.spare[:0], nil
	l.mu.Unlock()
	_, err := l.to.Write(lines)
	if err != nil {
		l.lost.Add(uint64(bytes.Count(lines, []byte{'\n'})))
	}
	l.mu.Lock()
	if cap(lines) <= maxLogBuffer/4 {
		l.spare = lines
	}
	l.mu.Unlock()
	return err
}

func uri(r *proxy.Record) string {
	if r.Query == "" {
		return r.Path
	}
	return r.Path + "?" + r.Query
}

// appendCommon is the combined log format, as Apache and nginx write it, with the route
// and the time that the request took.
func appendCommon(b []byte, r *proxy.Record) []byte {
	endpoint := ""
	if r.Endpoint.IsValid() {
		endpoint = r.Endpoint.String()
	}
	quoted := func(s string) string {
		if s == "" {
			return `"-"`
		}
		return strconv.QuoteToASCII(s)
	}
	return fmt.Appendf(b, "%s - - [%s] %s %d %d %s %s %s %s %.3f\n", r.Client, r.Start.Format("02/Jan/2006:15:04:05 -0700"),
		strconv.QuoteToASCII(r.Method+" "+uri(r)+" "+r.Protocol), r.Status, r.Sent, quoted(r.Referer), quoted(r.UserAgent), quoted(r.Route), quoted(endpoint), r.Duration.Seconds())
}

func appendJSON(b []byte, r *proxy.Record) []byte {
	text := func(key, value string) {
		if value != "" {
			b = append(append(append(b, `,"`...), key...), `":`...)
			b = appendQuoted(b, value)
		}
	}
	number := func(key string, value int64) {
		b = append(append(append(b, `,"`...), key...), `":`...)
		b = strconv.AppendInt(b, value, 10)
	}
	b = append(b, `{"time":"`...)
	b = r.Start.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, '"')
	text("client", r.Client.String())
	text("method", r.Method)
	text("host", r.Host)
	text("uri", uri(r))
	text("protocol", r.Protocol)
	number("status", int64(r.Status))
	number("received", r.Received)
	number("sent", r.Sent)
	number("microseconds", r.Duration.Microseconds())
	text("listener", r.Listener)
	text("route", r.Route)
	text("rule", r.Rule)
	text("backend", r.Backend)
	if r.Endpoint.IsValid() {
		text("endpoint", r.Endpoint.String())
	}
	number("attempts", int64(r.Attempts))
	text("trace", r.Span.TraceID())
	text("userAgent", r.UserAgent)
	text("referer", r.Referer)
	return append(b, "}\n"...)
}

// appendQuoted is a string of JSON. Bytes that are no UTF-8 become U+FFFD.
func appendQuoted(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < 0x20 || r >= 0x7f && r < 0xa0: // terminals obey those too
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			b = append(b, string(r)...)
		}
	}
	return append(b, '"')
}
