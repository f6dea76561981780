package dataplane

import (
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"knarr/addons/gateway/proxy"
)

// An accessLog writes a line for each request.
type accessLog struct {
	mu     sync.Mutex
	to     io.Writer
	common bool
	buf    []byte
}

func newAccessLog(to io.Writer, format string) *accessLog {
	if to == nil {
		return nil
	}
	return &accessLog{to: to, common: format == "common"}
}

// observer counts and logs requests.
func observer(s *stats, log *accessLog) func(*proxy.Record) {
	if log == nil {
		return s.add
	}
	return func(r *proxy.Record) {
		s.add(r)
		if !r.NoLog {
			log.write(r)
		}
	}
}

func (l *accessLog) write(r *proxy.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.common {
		l.buf = appendCommon(l.buf[:0], r)
	} else {
		l.buf = appendJSON(l.buf[:0], r)
	}
	if _, err := l.to.Write(l.buf); err != nil {
		slog.Debug("access log", "err", err)
	}
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
		case r < 0x20 || r == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			b = append(b, string(r)...)
		}
	}
	return append(b, '"')
}
