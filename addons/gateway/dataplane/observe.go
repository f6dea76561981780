package dataplane

import (
	"strings"

	"knarr/addons/gateway/proxy"
	"knarr/addons/gateway/tracing"
)

// ended counts a request, logs it, and ends its span.
func (s *stats) ended(r *proxy.Record) {
	s.add(r)
	if s.log != nil {
		s.log.add(r)
	}
	if s.tracer != nil && r.Span.Sampled {
		s.tracer.End(&r.Span, &tracing.Request{
			Start: r.Start, End: r.Start.Add(r.Duration), Method: r.Method, Scheme: r.Scheme, Host: r.Host, Path: r.Path, Protocol: strings.TrimPrefix(r.Protocol, "HTTP/"),
			Route: r.Route, Rule: r.Rule, Backend: r.Backend, Listener: r.Listener, UserAgent: r.UserAgent, Client: r.Client, Endpoint: r.Endpoint,
			Status: r.Status, Attempts: r.Attempts, RequestSize: r.Received, AnswerSize: r.Sent,
		})
	}
}
