package request

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"unicode"

	"k8s.io/apiserver/pkg/authentication/user"
)

type key int

const (
	infoKey key = iota
	userKey
	auditKey
	warningsKey
	startedKey
)

// WithInfo keeps the parsed request.
func WithInfo(ctx context.Context, info *Info) context.Context {
	return context.WithValue(ctx, infoKey, info)
}

// InfoFrom is the parsed request, nil when there is none.
func InfoFrom(ctx context.Context) *Info {
	info, _ := ctx.Value(infoKey).(*Info)
	return info
}

// WithUser keeps the authenticated user.
func WithUser(ctx context.Context, u user.Info) context.Context {
	return context.WithValue(ctx, userKey, u)
}

// UserFrom is the authenticated user, nil before authentication.
func UserFrom(ctx context.Context) user.Info {
	u, _ := ctx.Value(userKey).(user.Info)
	return u
}

// WithStarted keeps what is to be called once a watch has started.
func WithStarted(ctx context.Context, do func()) context.Context {
	return context.WithValue(ctx, startedKey, do)
}

// Started says that the watch has started.
func Started(ctx context.Context) {
	if do, ok := ctx.Value(startedKey).(func()); ok {
		do()
	}
}

// An Audit collects what the audit event of a request will say. All methods
// may be called at once, and on a nil Audit.
type Audit struct {
	mu          sync.Mutex
	annotations map[string]string
	request     any
	response    any
	object      ObjectRef
	proxied     bool

	// KeepRequest and KeepResponse say that the policy wants the bodies; without
	// them nobody need keep any.
	KeepRequest, KeepResponse bool
}

// ObjectRef names the object acted on where the URL alone does not.
type ObjectRef struct{ Name, UID, ResourceVersion string }

// Annotate adds an annotation; the first value of a key stays.
func (a *Audit) Annotate(key, value string) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.annotations == nil {
		a.annotations = map[string]string{}
	}
	if _, ok := a.annotations[key]; !ok {
		a.annotations[key] = value
	}
}

// Annotations is a copy of what was annotated.
func (a *Audit) Annotations() map[string]string {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[string]string, len(a.annotations))
	for k, v := range a.annotations {
		out[k] = v
	}
	return out
}

// SetRequest keeps the decoded request body; nobody may change it afterwards.
func (a *Audit) SetRequest(obj any) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.request = obj
}

// SetResponse keeps the object answered with.
func (a *Audit) SetResponse(obj any) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.response = obj
}

// Bodies are the request's and response's objects, nil when not kept.
func (a *Audit) Bodies() (request, response any) {
	if a == nil {
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.request, a.response
}

// SetObject names the object acted on.
func (a *Audit) SetObject(ref ObjectRef) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.object = ref
}

// Object is the object acted on, as far as it was set.
func (a *Audit) Object() ObjectRef {
	if a == nil {
		return ObjectRef{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.object
}

// SetProxied says that another server answers the request: what it says is not this
// one's to write down.
func (a *Audit) SetProxied() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.proxied = true
}

// Proxied says that another server answers.
func (a *Audit) Proxied() bool {
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.proxied
}

// WithAudit keeps the request's audit notes.
func WithAudit(ctx context.Context, a *Audit) context.Context {
	return context.WithValue(ctx, auditKey, a)
}

// AuditFrom is the request's audit notes; nil, which is usable, without any.
func AuditFrom(ctx context.Context) *Audit {
	a, _ := ctx.Value(auditKey).(*Audit)
	return a
}

// Warnings become Warning headers. They can be added until the first byte of
// the answer is written.
type Warnings struct {
	mu     sync.Mutex
	header http.Header
	seen   map[string]bool
	size   int
}

// maxWarnings bounds the bytes of all Warning headers of one answer.
const maxWarnings = 4 * 1024

// WithWarnings collects warnings into header.
func WithWarnings(ctx context.Context, header http.Header) context.Context {
	return context.WithValue(ctx, warningsKey, &Warnings{header: header})
}

// Warn adds a warning for the user to the answer; each text once.
func Warn(ctx context.Context, text string) {
	w, _ := ctx.Value(warningsKey).(*Warnings)
	if w == nil || text == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[text] || w.size+len(text) > maxWarnings {
		return
	}
	if w.seen == nil {
		w.seen = map[string]bool{}
	}
	w.seen[text] = true
	w.size += len(text)
	w.header.Add("Warning", warningHeader(text))
}

// HasWarnings says that ctx collects warnings.
func HasWarnings(ctx context.Context) bool {
	w, _ := ctx.Value(warningsKey).(*Warnings)
	return w != nil
}

// warningHeader is RFC 7234's form: 299, no agent, a quoted string of
// printable characters.
func warningHeader(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case unicode.IsControl(r):
			b.WriteByte(' ')
		default:
			b.WriteRune(r)
		}
	}
	return fmt.Sprintf(`299 - "%s"`, b.String())
}
