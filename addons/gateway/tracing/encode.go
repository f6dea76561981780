package tracing

import (
	"encoding/hex"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxText bounds each text of a span.
const maxText = 512

// appendSpan is a span in OTLP's JSON, with the attributes that OpenTelemetry's conventions
// have for a server's.
func appendSpan(b []byte, s *Span, r *Request) []byte {
	b = append(hex.AppendEncode(append(b, `{"traceId":"`...), s.Trace[:]), `","spanId":"`...)
	b = append(hex.AppendEncode(b, s.ID[:]), '"')
	if s.Parent != [8]byte{} {
		b = append(hex.AppendEncode(append(b, `,"parentSpanId":"`...), s.Parent[:]), '"')
	}
	b = appendText(append(b, `,"flags":1,"kind":2,"name":`...), r.Method+" "+r.Route)
	b = strconv.AppendInt(append(b, `,"startTimeUnixNano":"`...), r.Start.UnixNano(), 10)
	b = strconv.AppendInt(append(b, `","endTimeUnixNano":"`...), r.End.UnixNano(), 10)
	b = append(b, `","attributes":[`...)
	first := true
	key := func(name string) {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(append(append(b, `{"key":"`...), name...), `","value":{`...)
	}
	text := func(name, value string) {
		if value != "" {
			key(name)
			b = append(appendText(append(b, `"stringValue":`...), value), "}}"...)
		}
	}
	number := func(name string, value int64) {
		key(name)
		b = append(strconv.AppendInt(append(b, `"intValue":"`...), value, 10), `"}}`...)
	}
	text("http.request.method", r.Method)
	text("url.scheme", r.Scheme)
	text("server.address", r.Host)
	text("url.path", r.Path)
	text("network.protocol.version", r.Protocol)
	text("user_agent.original", r.UserAgent)
	if r.Client.IsValid() {
		text("client.address", r.Client.String())
	}
	if r.Endpoint.IsValid() {
		text("knarr.gateway.endpoint", r.Endpoint.String())
	}
	text("knarr.gateway.listener", r.Listener)
	text("knarr.gateway.route", r.Route)
	text("knarr.gateway.rule", r.Rule)
	text("knarr.gateway.backend", r.Backend)
	number("http.response.status_code", int64(r.Status))
	number("http.request.body.size", r.RequestSize)
	number("http.response.body.size", r.AnswerSize)
	if r.Attempts > 1 {
		number("http.request.resend_count", int64(r.Attempts-1))
	}
	b = append(b, `],"status":{`...)
	if r.Status >= 500 {
		b = append(b, `"code":2`...)
	}
	return append(b, "}}"...)
}

// appendText is a string of JSON, of which there is no more than maxText. Bytes that are no
// UTF-8 become U+FFFD.
func appendText(b []byte, s string) []byte {
	const digits = "0123456789abcdef"
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") // no rune is cut in two
	}
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < 0x20 || r >= 0x7f && r < 0xa0:
			b = append(b, '\\', 'u', '0', '0', digits[r>>4], digits[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
