package apiserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"knarr/controlplane/apiserver/endpoints"
	"knarr/controlplane/apiserver/overload"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/transport"
)

// limitQueryMemory waits until a long query may be understood.
func (p *requestState) limitQueryMemory() (ok bool) {
	if p.releaseQuery, ok = p.s.memory.ReserveQuery(p.r, p.separate); !ok {
		tooMany(p.w)
	}
	return ok
}

func (p *requestState) parse() bool {
	var err error
	if p.info, err = request.ParseInfo(p.r); err != nil {
		p.releaseQuery()
		endpoints.WriteStatus(p.w, p.r, apierrors.NewBadRequest(err.Error()))
		return false
	}
	p.long = p.info.IsLongRunning()
	p.w.Header()["Cache-Control"] = noCache
	p.s.goaway(p.w, p.r)
	return true
}

var noCache = []string{"no-cache, private"}

// answerInTime has an expensive request take all steps in another goroutine, so
// that its client has an answer when its time is over.
func (p *requestState) answerInTime() bool {
	if p.long || p.separate || !overload.Expensive(p.r) {
		return true
	}
	timeout, err := p.s.timeout(p.r)
	if err != nil {
		return true // setDeadline says so
	}
	release := p.releaseQuery
	p.releaseQuery = nil
	overload.AnswerInTime(p.filters, timedOut, release, p.w, p.r, timeout)
	return false
}

func (p *requestState) limitWatchMemory() (ok bool) {
	if !p.long || !overload.ExpensiveQuery(p.r) {
		return true
	}
	if p.releaseWatch, ok = p.s.memory.ReserveWatch(p.r); !ok {
		tooMany(p.w)
	}
	return ok
}

func (p *requestState) refuseDuringShutdown() (ok bool) {
	p.leaveServer, ok = p.s.enter(p.w, p.info.Path, p.long)
	return ok
}

// setDeadline bounds the request's time. A long-running request ends with the
// server.
func (p *requestState) setDeadline() bool {
	parent := p.r.Context()
	if p.long {
		parent, p.cancel = transport.UntilShutdown(parent)
	} else {
		timeout, err := p.s.timeout(p.r)
		if err != nil {
			endpoints.WriteStatus(p.w, p.r, err)
			return false
		}
		parent, p.cancel = context.WithTimeout(parent, timeout)
		if slow := slowClient(p.info, p.r); slow != nil {
			slow(p.w, timeout)
		}
	}
	p.ctx = request.WithWarnings(request.WithInfo(parent, p.info), p.w.Header())
	return true
}

// timeout is how long the request may take: the client's word, but no longer
// than the server's.
func (s *Server) timeout(r *http.Request) (time.Duration, error) {
	if !strings.Contains(r.URL.RawQuery, "timeout=") {
		return s.cfg.RequestTimeout, nil
	}
	asked := r.URL.Query().Get("timeout")
	if asked == "" {
		return s.cfg.RequestTimeout, nil
	}
	d, err := time.ParseDuration(asked)
	switch {
	case err != nil:
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid timeout specified in the request URL - %v", err))
	case d <= 0:
		return s.cfg.RequestTimeout, nil
	}
	return min(d, s.cfg.RequestTimeout), nil
}

// slowClient is what keeps a client that sends its body or takes a long answer
// drop by drop from holding a place for longer than it says: deadlines on its
// connection. Nil for requests that have nothing long to send either way. The
// server's own deadline bounds every other answer.
func slowClient(info *request.Info, r *http.Request) func(http.ResponseWriter, time.Duration) {
	body := r.ContentLength != 0
	long := info.Verb == "list" || body && overload.Expensive(r)
	if !body && !long {
		return nil
	}
	return func(w http.ResponseWriter, timeout time.Duration) {
		c := http.NewResponseController(w)
		if body {
			_ = c.SetReadDeadline(time.Now().Add(timeout))
		}
		if long {
			_ = c.SetWriteDeadline(time.Now().Add(timeout + transport.Grace))
		}
	}
}

// enter is false for a request that came too late and has been refused. leave
// is to be called once the request has been answered; nil: it need not.
func (s *Server) enter(w http.ResponseWriter, path string, long bool) (leave func(), ok bool) {
	if !s.cfg.ShutdownSendRetryAfter || isHealth(path) || path == "/metrics" {
		return nil, true
	}
	if !s.inFlight.Enter(!long) { // those that are long end by themselves
		w.Header().Set("Connection", "close")
		w.Header().Set("Retry-After", "5")
		http.Error(w, "The apiserver is shutting down, please try again later.", http.StatusTooManyRequests)
		return nil, false
	}
	if long {
		return nil, true
	}
	return s.inFlight.Leave, true
}

// goaway ends some HTTP/2 connections after their request.
func (s *Server) goaway(w http.ResponseWriter, r *http.Request) {
	if s.cfg.GoawayChance > 0 && r.ProtoMajor == 2 && rand.Float64() < s.cfg.GoawayChance {
		w.Header().Set("Connection", "close")
	}
}
