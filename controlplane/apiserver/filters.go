package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"knarr/controlplane/apiserver/audit"
	"knarr/controlplane/apiserver/authn"
	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/endpoints"
	"knarr/controlplane/apiserver/request"
)

// chain is what every request passes, outermost first: parse, authenticate,
// impersonate, limit, authorise. Nobody unknown takes the place of a user.
func (s *Server) chain(next http.Handler) http.Handler {
	var whole http.HandlerFunc
	whole = func(w http.ResponseWriter, r *http.Request) {
		received := time.Now()
		defer recovered(w, r)
		_, timed := w.(*timedWriter)
		understood, ok := s.scale.read(r, timed)
		if !ok {
			tooMany(w)
			return
		}
		info, err := request.ParseInfo(r)
		if err != nil {
			understood()
			endpoints.WriteStatus(w, r, apierrors.NewBadRequest(err.Error()))
			return
		}
		w.Header()["Cache-Control"] = noCache
		s.goaway(w, r)
		long := info.IsLongRunning()
		if !long && !timed && dear(r) {
			if timeout, err := s.timeout(r); err == nil {
				inTime(whole, understood, w, r, timeout)
				return
			}
		}
		defer understood()
		if long && len(r.URL.RawQuery) > dearQuery {
			done, ok := s.scale.watch(r)
			if !ok {
				tooMany(w)
				return
			}
			defer done()
		}
		leave, ok := s.enter(w, info.Path, long)
		if !ok {
			return
		}
		if leave != nil {
			defer leave()
		}
		parent := r.Context()
		if long {
			var cancel context.CancelFunc
			parent, cancel = untilEnd(parent)
			defer cancel()
		} else {
			timeout, err := s.timeout(r)
			if err != nil {
				endpoints.WriteStatus(w, r, err)
				return
			}
			var cancel context.CancelFunc
			parent, cancel = context.WithTimeout(parent, timeout)
			defer cancel()
			if slow := slowClient(info, r); slow != nil {
				defer slow(w, timeout)()
			}
		}
		ctx := request.WithWarnings(request.WithInfo(parent, info), w.Header())
		began := time.Now()
		who, err := s.authn.Authenticate(r)
		s.countUser(who, err, time.Since(began))
		var trail *audit.Trail
		if s.cfg.Audit != nil {
			var written bool
			if w, trail, written = s.cfg.Audit.Begin(w, r, info, who, received); !written {
				endpoints.WriteStatus(w, r, apierrors.NewInternalError(errors.New("failed to store audit event")))
				return
			}
			if trail != nil {
				ctx = request.WithAudit(ctx, trail.Notes())
				r = r.WithContext(ctx)
			}
			if err != nil {
				trail.Unknown()
			} else {
				defer trail.End()
			}
		}
		if err != nil {
			// Who is not known may not keep an HTTP/2 connection, whose
			// streams are cheap to open and dear to serve.
			if r.ProtoMajor == 2 {
				w.Header().Set("Connection", "close")
			}
			if !errors.Is(err, authn.ErrUnauthorized) {
				err = apierrors.NewInternalError(err)
			} else {
				if err != authn.ErrUnauthorized {
					slog.ErrorContext(ctx, "Unable to authenticate the request", "err", err)
				}
				if n := authn.Noted(nil); errors.As(err, &n) {
					n.Note(ctx)
				}
				err = apierrors.NewUnauthorized("Unauthorized")
			}
			endpoints.WriteStatus(w, r, err)
			return
		}
		if who.GetName() == user.Anonymous && r.ProtoMajor == 2 {
			w.Header().Set("Connection", "close")
		}
		if n, ok := who.(authn.Noted); ok {
			n.Note(ctx)
		}
		asked := who
		if impersonates(r.Header) {
			var by string
			if who, by, err = s.impersonators.impersonate(ctx, r.Header, who, info); err != nil {
				w.Header().Set("X-Content-Type-Options", "nosniff")
				endpoints.WriteStatus(w, r, err)
				return
			}
			if who != asked {
				trail.Impersonated(who, by)
			}
		}
		// Open paths bound themselves, lest strangers take the places of users.
		watch := info.Verb == "watch" && info.IsResource
		if (!long || watch) && (info.IsResource || s.cfg.Open[info.Path] == nil) {
			class := s.fairness.Classify(who, info)
			class.Query = r.URL.RawQuery
			seated := s.fairness.Enter(ctx, &class)
			info.Wait(class.Waited)
			h := w.Header()
			h[flowSchemaHeader], h[priorityLevelHeader] = class.SchemaUID, class.LevelUID
			if !seated {
				tooMany(w)
				return
			}
			leave := func() { s.fairness.Leave(&class) }
			if watch { // it costs nothing more once it has started
				leave = sync.OnceFunc(leave)
				ctx = request.WithStarted(ctx, func() { leave(); understood() })
			} else if r.ContentLength != 0 || info.Verb == "list" {
				waiting := ctx
				held := &seat{ctx: ctx, info: info, scale: s.scale, enter: func() bool { return s.fairness.Enter(waiting, &class) }, leave: leave}
				leave = yielding(held, r, info.Verb == "list")
				if info.Verb == "list" {
					w = &slowAnswer{ResponseWriter: w, seat: held}
				}
			}
			defer leave()
		}
		ctx = request.WithUser(ctx, who)
		r = r.WithContext(ctx)
		attrs := attributes(who, info)
		began = time.Now()
		decision, reason, err := s.authz.Authorize(ctx, attrs)
		s.countDecision(decision, err, time.Since(began))
		ok = decision == authorizer.DecisionAllow
		if !ok && err != nil {
			trail.Undecided()
			slog.ErrorContext(ctx, "authorize", "path", info.Path, "err", err)
			undecided(w, r, err)
			return
		}
		trail.Decided(ok, reason)
		if !ok && (info.IsResource || !openPath[info.Path] && s.cfg.Open[info.Path] == nil) {
			w.Header().Set("X-Content-Type-Options", "nosniff")
			endpoints.WriteStatus(w, r, denied(attrs, reason))
			return
		}
		if call := s.metrics.Requests.Begin(w, r, info, received); call != nil {
			defer call.End()
			w = call
		}
		next.ServeHTTP(w, r)
	}
	return whole
}

var noCache = []string{"no-cache, private"}

// openPath are the paths that everybody may ask for, before there are roles.
var openPath = map[string]bool{"/livez": true, "/readyz": true, "/healthz": true}

// recovered answers 500 when a handler panics: one request must not end the
// server, nor go without an answer.
func recovered(w http.ResponseWriter, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler {
		panic(p)
	}
	slog.ErrorContext(r.Context(), "panic serving a request", "method", r.Method, "path", r.URL.Path,
		"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	endpoints.WriteStatus(w, r, apierrors.NewInternalError(fmt.Errorf("panic serving the request: %s %s", r.Method, r.URL.Path)))
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
// drop by drop from holding a place for ever: deadlines on its connection. Nil
// for requests that have nothing long to send either way.
func slowClient(info *request.Info, r *http.Request) func(http.ResponseWriter, time.Duration) func() {
	body := r.ContentLength != 0
	long := info.Verb == "list" || body && dear(r)
	if !body && !long {
		return nil
	}
	return func(w http.ResponseWriter, timeout time.Duration) func() {
		c := http.NewResponseController(w)
		if body {
			_ = c.SetReadDeadline(time.Now().Add(timeout))
		}
		if !long {
			return func() {}
		}
		_ = c.SetWriteDeadline(time.Now().Add(timeout + grace))
		return func() { _ = c.SetWriteDeadline(time.Time{}) } // the connection lives on
	}
}

// What tells a client how its request was classified.
const (
	flowSchemaHeader    = "X-Kubernetes-Pf-Flowschema-Uid"
	priorityLevelHeader = "X-Kubernetes-Pf-Prioritylevel-Uid"
)

func tooMany(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
}

func isHealth(path string) bool {
	for _, p := range []string{"/livez", "/readyz", "/healthz"} {
		if path == p || strings.HasPrefix(path, p+"/") {
			return true
		}
	}
	return false
}

func attributes(who user.Info, info *request.Info) *authz.Attributes {
	return &authz.Attributes{
		User: who, Verb: info.Verb, Namespace: info.Namespace, Group: info.Group, Version: info.Version,
		Resource: info.Resource, Subresource: info.Subresource, Name: info.Name,
		IsResource: info.IsResource, Path: info.Path, FieldSelector: info.FieldSelector, LabelSelector: info.LabelSelector,
	}
}

// neutral takes from a text what a browser could take for HTML.
var neutral = strings.NewReplacer(`&`, "&amp;", `<`, "&lt;", `>`, "&gt;")

// undecided is the 500, in upstream's words, of a request that could not be
// authorised.
func undecided(w http.ResponseWriter, r *http.Request, err error) {
	http.Error(w, neutral.Replace(fmt.Sprintf("Internal Server Error: %q: %v", r.RequestURI, err)), http.StatusInternalServerError)
}

// denied is the 403 in upstream's words.
func denied(a *authz.Attributes, reason string) error {
	if a.IsResource {
		return apierrors.NewForbidden(schema.GroupResource{Group: a.Group, Resource: a.Resource}, a.Name, errors.New(a.Denied(reason)))
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: a.Denied(reason), Details: &metav1.StatusDetails{},
	}}
}
