package apiserver

import (
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"knarr/controlplane/apiserver/authn"
	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/endpoints"
	"knarr/controlplane/apiserver/overload"
	"knarr/controlplane/apiserver/request"
	"knarr/internal/headerlimit"
)

// openPath are the paths that everybody may ask for, before there are roles.
var openPath = map[string]bool{"/livez": true, "/readyz": true, "/healthz": true}

// authenticate finds the request's user. A failure is answered after it has been
// audited, by refuseUnknown.
func (p *requestState) authenticate() bool {
	began := time.Now()
	p.user, p.authErr = p.s.authn.Authenticate(p.r)
	p.s.countUser(p.r, p.user, p.authErr, time.Since(began))
	if p.authErr == nil && p.user.GetName() != user.Anonymous {
		headerlimit.Known(p.r)
		if p.long && p.r.ContentLength != 0 {
			_ = http.NewResponseController(p.w).SetReadDeadline(time.Time{}) // it may take as long as it likes
		}
	}
	return true
}

// audit starts the request's audit trail.
func (p *requestState) audit() bool {
	if p.s.cfg.Audit == nil {
		return true
	}
	w, trail, written := p.s.cfg.Audit.Begin(p.w, p.r, p.info, p.user, p.received)
	if p.w = w; !written {
		endpoints.WriteStatus(p.w, p.r, apierrors.NewInternalError(errors.New("failed to store audit event")))
		return false
	}
	if p.trail = trail; trail != nil {
		p.ctx = request.WithAudit(p.ctx, trail.Notes())
		p.r = p.r.WithContext(p.ctx)
	}
	if p.authErr != nil {
		trail.Unknown()
	}
	return true
}

// refuseUnknown answers a request that could not be authenticated.
func (p *requestState) refuseUnknown() bool {
	// An unknown client may not keep an HTTP/2 connection, whose streams are
	// cheap to open and expensive to serve.
	if (p.authErr != nil || p.user.GetName() == user.Anonymous) && p.r.ProtoMajor == 2 {
		p.w.Header().Set("Connection", "close")
	}
	err := p.authErr
	if err == nil {
		if n, ok := p.user.(authn.Noted); ok {
			n.Note(p.ctx)
		}
		return true
	}
	headerlimit.Refused(p.w, p.r)
	if !errors.Is(err, authn.ErrUnauthorized) {
		endpoints.WriteStatus(p.w, p.r, apierrors.NewInternalError(err))
		return false
	}
	if err != authn.ErrUnauthorized {
		slog.ErrorContext(p.ctx, "Unable to authenticate the request", "err", err)
	}
	if n := authn.Noted(nil); errors.As(err, &n) {
		n.Note(p.ctx)
	}
	endpoints.WriteStatus(p.w, p.r, apierrors.NewUnauthorized("Unauthorized"))
	return false
}

// impersonate makes the request one of the user that it asks to act as.
func (p *requestState) impersonate() bool {
	if !impersonates(p.r.Header) {
		return true
	}
	acting, by, err := p.s.impersonators.impersonate(p.ctx, p.r.Header, p.user, p.info)
	if err != nil {
		p.w.Header().Set("X-Content-Type-Options", "nosniff")
		endpoints.WriteStatus(p.w, p.r, err)
		return false
	}
	if acting != p.user {
		p.trail.Impersonated(acting, by)
	}
	p.user = acting
	return true
}

// The headers that name the flow schema and priority level of a request.
const (
	flowSchemaHeader    = "X-Kubernetes-Pf-Flowschema-Uid"
	priorityLevelHeader = "X-Kubernetes-Pf-Prioritylevel-Uid"
)

// takeSeat waits for a seat of the request's priority level. Long-running requests
// need none, except for watches, which have one until they have started. Neither
// do the open paths, which bound themselves: unknown clients must not take the
// seats of users.
func (p *requestState) takeSeat() bool {
	watch := p.info.Verb == "watch" && p.info.IsResource
	if p.long && !watch || !p.info.IsResource && p.s.cfg.Open[p.info.Path] != nil {
		return true
	}
	fair := p.s.fairness
	p.class = fair.Classify(p.user, p.info)
	p.class.Query = p.r.URL.RawQuery
	seated := fair.Enter(p.ctx, &p.class)
	p.info.Wait(p.class.Waited)
	h := p.w.Header()
	h[flowSchemaHeader], h[priorityLevelHeader] = p.class.SchemaUID, p.class.LevelUID
	if !seated {
		tooMany(p.w)
		return false
	}
	leave := func() { fair.Leave(&p.class) }
	if watch {
		leave = sync.OnceFunc(leave)
		p.leaveSeat = leave
		p.ctx = request.WithStarted(p.ctx, func() { leave(); p.releaseQuery() })
		return true
	}
	waiting := p.ctx
	seat := overload.NewSeat(waiting, p.info, p.s.memory, func() bool { return fair.Enter(waiting, &p.class) }, leave)
	p.leaveSeat = seat.Track(p.r, p.info.Verb == "list")
	p.w = seat.Writer(p.w)
	return true
}

// authorize asks whether the user may do what the request is for.
func (p *requestState) authorize() bool {
	p.ctx = request.WithUser(p.ctx, p.user)
	p.r = p.r.WithContext(p.ctx)
	attrs := attributes(p.user, p.info)
	began := time.Now()
	decision, reason, err := p.s.authz.Authorize(p.ctx, attrs)
	p.s.countDecision(decision, err, time.Since(began))
	ok := decision == authorizer.DecisionAllow
	if !ok && err != nil {
		p.trail.Undecided()
		slog.ErrorContext(p.ctx, "authorize", "path", p.info.Path, "err", err)
		undecided(p.w, p.r, err)
		return false
	}
	p.trail.Decided(ok, reason)
	if !ok && (p.info.IsResource || !openPath[p.info.Path] && p.s.cfg.Open[p.info.Path] == nil) {
		p.w.Header().Set("X-Content-Type-Options", "nosniff")
		endpoints.WriteStatus(p.w, p.r, denied(attrs, reason))
		return false
	}
	return true
}

// measure counts the request and its answer.
func (p *requestState) measure() bool {
	if p.call = p.s.metrics.Requests.Begin(p.w, p.r, p.info, p.received); p.call != nil {
		p.w = p.call
	}
	return true
}

func attributes(who user.Info, info *request.Info) *authz.Attributes {
	return &authz.Attributes{
		User: who, Verb: info.Verb, Namespace: info.Namespace, Group: info.Group, Version: info.Version,
		Resource: info.Resource, Subresource: info.Subresource, Name: info.Name,
		IsResource: info.IsResource, Path: info.Path, FieldSelector: info.FieldSelector, LabelSelector: info.LabelSelector,
	}
}
