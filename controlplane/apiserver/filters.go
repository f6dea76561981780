package apiserver

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/audit"
	"knarr/controlplane/apiserver/fairness"
	"knarr/controlplane/apiserver/metrics"
	"knarr/controlplane/apiserver/overload"
	"knarr/controlplane/apiserver/request"
)

// requestSteps are what every request goes through before its handler, in this
// order. A step that answers the request itself returns false.
var requestSteps = [...]func(*requestState) bool{
	(*requestState).limitQueryMemory, // before anything understands a long query
	(*requestState).parse,            // what the request is about
	(*requestState).answerInTime,     // an expensive request gets a goroutine of its own
	(*requestState).limitWatchMemory,
	(*requestState).refuseDuringShutdown, // when the server shuts down
	(*requestState).setDeadline,
	(*requestState).authenticate,
	(*requestState).audit, // failed authentication too
	(*requestState).refuseUnknown,
	(*requestState).impersonate,
	(*requestState).takeSeat, // priority and fairness: users do not compete with unknown clients
	(*requestState).authorize,
	(*requestState).measure,
}

// A requestState is one request on its way through the steps.
type requestState struct {
	s        *Server
	filters  http.Handler // the one that runs the steps
	received time.Time
	separate bool // the request has a goroutine of its own

	w    http.ResponseWriter // steps wrap it
	r    *http.Request
	ctx  context.Context // the request's own context as of the latest step
	info *request.Info
	long bool // info says that the request is long-running

	user    user.Info // the impersonated one, from that step on
	authErr error     // of authentication
	trail   *audit.Trail
	class   fairness.Class
	call    *metrics.Call

	// What the steps took, to be given back; nil: nothing.
	releaseQuery, releaseWatch, leaveServer, leaveSeat func()
	cancel                                             context.CancelFunc
}

// chain is the handler that takes every request through the steps to next.
func (s *Server) chain(next http.Handler) http.Handler {
	var filters http.HandlerFunc
	filters = func(w http.ResponseWriter, r *http.Request) {
		defer recoverPanic(w, r)
		p := &requestState{s: s, filters: filters, received: time.Now(), separate: overload.Timed(w), w: w, r: r}
		// The last step is undone first, whatever becomes of the others.
		defer p.release()
		defer p.endAudit()
		defer p.releaseSeat()
		defer p.endMeasure()
		for _, step := range requestSteps {
			if !step(p) {
				return
			}
		}
		if p.long { // as long as its client wants, which the deadline of answers does not know
			_ = http.NewResponseController(p.w).SetWriteDeadline(time.Time{})
		}
		next.ServeHTTP(p.w, p.r)
	}
	return filters
}

// release gives back what was taken before the request was authenticated.
func (p *requestState) release() {
	for _, giveBack := range [...]func(){p.cancel, p.leaveServer, p.releaseWatch, p.releaseQuery} {
		if giveBack != nil {
			giveBack()
		}
	}
}

// endAudit is deferred by itself, since only so it learns of a panic.
func (p *requestState) endAudit() {
	fault := recover()
	if p.authErr == nil {
		p.trail.End(fault)
	}
	if fault != nil {
		panic(fault)
	}
}

func (p *requestState) releaseSeat() {
	if p.leaveSeat != nil {
		p.leaveSeat()
	}
}

func (p *requestState) endMeasure() {
	if p.call != nil {
		p.call.End()
	}
}
