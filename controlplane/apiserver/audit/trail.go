package audit

import (
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	upstreamtypes "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	counts "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"knarr/controlplane/apiserver/request"
)

type upstreamStage = upstreamtypes.Stage

const (
	longestID    = 64
	longestAgent = 1024
)

// A Trail is what is written down of one request. A nil Trail writes nothing.
type Trail struct {
	policy      *Policy
	event       auditv1.Event
	notes       *request.Audit
	omit        func(auditv1.Stage) bool
	omitManaged bool
	answer      *answer
}

// Begin starts the trail of a request by who, nil for somebody unknown: the
// answer is to be written to the writer it returns. Nil when the policy wants
// nothing of it; false when it could not be written down, so that it must not
// be served.
func (p *Policy) Begin(w http.ResponseWriter, r *http.Request, info *request.Info, who user.Info, received time.Time) (http.ResponseWriter, *Trail, bool) {
	level, omit, omitManaged := p.level(authorizer.AttributesRecord{
		User: who, Verb: info.Verb, Namespace: info.Namespace, APIGroup: info.Group, APIVersion: info.Version,
		Resource: info.Resource, Subresource: info.Subresource, Name: info.Name, ResourceRequest: info.IsResource, Path: info.Path,
	})
	counts.ObservePolicyLevel(r.Context(), upstreamtypes.Level(level))
	id := r.Header.Get(auditv1.HeaderAuditID)
	if id == "" {
		id = uuid.NewString()
	}
	id = id[:min(len(id), longestID)]
	w.Header().Set(auditv1.HeaderAuditID, id)
	if level == auditv1.LevelNone {
		return w, nil, true
	}
	agent := r.UserAgent()
	if len(agent) > longestAgent {
		agent = agent[:longestAgent] + "...TRUNCATED"
	}
	t := &Trail{policy: p, omit: omit, omitManaged: omitManaged, notes: &request.Audit{
		KeepRequest:  level == auditv1.LevelRequest || level == auditv1.LevelRequestResponse,
		KeepResponse: level == auditv1.LevelRequestResponse,
	}}
	t.event = auditv1.Event{
		TypeMeta: metav1.TypeMeta{Kind: "Event", APIVersion: auditv1.SchemeGroupVersion.String()},
		Level:    level, AuditID: types.UID(id), RequestURI: r.URL.RequestURI(), Verb: info.Verb, UserAgent: agent,
		RequestReceivedTimestamp: metav1.NewMicroTime(received),
	}
	if who != nil {
		t.event.User = userInfo(who)
	}
	for _, ip := range utilnet.SourceIPs(r) {
		t.event.SourceIPs = append(t.event.SourceIPs, ip.String())
	}
	if info.IsResource {
		t.event.ObjectRef = &auditv1.ObjectReference{
			Namespace: info.Namespace, Name: info.Name, Resource: info.Resource, Subresource: info.Subresource,
			APIGroup: info.Group, APIVersion: info.Version,
		}
	}
	if who != nil && !t.stage(auditv1.StageRequestReceived) {
		counts.ApiserverAuditDroppedCounter.Inc()
		return w, nil, false
	}
	t.answer = &answer{ResponseWriter: w, trail: t, long: info.IsLongRunning(), keep: t.notes.KeepResponse && info.IsResource && !info.IsLongRunning(), room: p.room}
	if t.answer.keep {
		r.Header.Del("Accept-Encoding") // what is kept must be readable
	}
	return t.answer, t, true
}

func userInfo(u user.Info) authenticationv1.UserInfo {
	out := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	for k, v := range u.GetExtra() {
		if out.Extra == nil {
			out.Extra = map[string]authenticationv1.ExtraValue{}
		}
		out.Extra[k] = v
	}
	return out
}

// Notes are what filters and handlers add to.
func (t *Trail) Notes() *request.Audit { return t.notes }

// Impersonated says who the user acts as, and by which constrained right.
func (t *Trail) Impersonated(u user.Info, by string) {
	if t != nil {
		who := userInfo(u)
		t.event.ImpersonatedUser = &who
		if by != "" {
			t.event.AuthenticationMetadata = &auditv1.AuthenticationMetadata{ImpersonationConstraint: by}
		}
	}
}

// Decided records the decision of authorisation.
func (t *Trail) Decided(allowed bool, reason string) {
	if t == nil {
		return
	}
	decision := "forbid"
	if allowed {
		decision = "allow"
	}
	t.notes.Annotate("authorization.k8s.io/decision", decision)
	t.notes.Annotate("authorization.k8s.io/reason", reason)
}

// Undecided says that nobody could tell whether the request is allowed.
func (t *Trail) Undecided() {
	if t != nil {
		t.notes.Annotate("authorization.k8s.io/reason", "internal error")
	}
}

// Unknown says that the request's credentials are not good. Its only event is
// that it was answered.
func (t *Trail) Unknown() {
	if t != nil {
		t.answer.long = true
	}
}

// End is called when the request has been answered, with the panic of its handler
// if there was one.
func (t *Trail) End(fault any) {
	if t == nil {
		return
	}
	if fault != nil {
		t.event.ResponseStatus = &metav1.Status{
			Code: http.StatusInternalServerError, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonInternalError, Message: fmt.Sprintf("APIServer panic'd: %v", fault),
		}
		t.stage(auditv1.StagePanic)
		return
	}
	if t.answer.code == 0 {
		t.event.ResponseStatus = &metav1.Status{Code: http.StatusOK, Status: metav1.StatusSuccess, Message: "Connection closed early"}
		if t.answer.long {
			t.stage(auditv1.StageResponseStarted)
		}
	}
	t.stage(auditv1.StageResponseComplete)
}

// stage writes the event as it is now.
func (t *Trail) stage(s auditv1.Stage) bool {
	if t.omit(s) {
		return true
	}
	ev := t.event
	ev.Stage = s
	ev.StageTimestamp = ev.RequestReceivedTimestamp
	if s != auditv1.StageRequestReceived {
		ev.StageTimestamp = metav1.NewMicroTime(time.Now())
		t.fill(&ev)
	}
	return t.policy.process(&ev)
}

// fill adds what was noted since the request came.
func (t *Trail) fill(ev *auditv1.Event) {
	ev.Annotations = t.notes.Annotations()
	sent, answered := t.notes.Bodies()
	if t.notes.KeepRequest {
		ev.RequestObject = document(sent, t.omitManaged)
	}
	if ref := t.notes.Object(); ev.ObjectRef != nil {
		to := *ev.ObjectRef
		for _, f := range []struct {
			to   *string
			from string
		}{{&to.Name, ref.Name}, {(*string)(&to.UID), ref.UID}, {&to.ResourceVersion, ref.ResourceVersion}} {
			if *f.to == "" {
				*f.to = f.from
			}
		}
		ev.ObjectRef = &to
	}
	if status, ok := answered.(*metav1.Status); ok && ev.ResponseStatus == nil {
		ev.ResponseStatus = &metav1.Status{Status: status.Status, Message: status.Message, Reason: status.Reason, Details: status.Details, Code: status.Code}
	}
	if t.answer == nil {
		return
	}
	if code := t.answer.code; code != 0 {
		status := metav1.Status{}
		if ev.ResponseStatus != nil {
			status = *ev.ResponseStatus
		}
		status.Code = int32(code)
		ev.ResponseStatus = &status
	}
	switch {
	case ev.Stage != auditv1.StageResponseComplete || !t.answer.keep:
	case t.answer.cut:
		*ev = short(*ev)
	default:
		ev.ResponseObject = t.answer.document(t.omitManaged)
	}
}
