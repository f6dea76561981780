package metrics

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"knarr/internal/run"
)

// Access counts who came and whether he might.
type Access struct {
	users         series[string, atomic.Uint64]
	authenticated [3]outcome
	authorized    [4]outcome
	certificates  histogram
}

type outcome struct {
	n  atomic.Uint64
	in histogram
}

// What became of an attempt to authenticate.
const (
	Known = iota
	Unknown
	Failed
)

// What became of an attempt to authorise.
const (
	Allowed = iota
	Denied
	NoOpinion
	Undecided
)

var (
	attemptResults  = [...]string{Known: "success", Unknown: "failure", Failed: "error"}
	decisionResults = [...]string{Allowed: "allowed", Denied: "denied", NoOpinion: "no-opinion", Undecided: "error"}
	// Half an hour, one, two, six, twelve; one day, two, four, seven; one month, three, six; a year.
	expirationBounds = []float64{0, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 345600, 604800, 2592000, 7776000, 15552000, 31104000}
	accessBounds     = prometheus.ExponentialBuckets(0.001, 2, 15)

	userRequests  = desc("authenticated_user_requests", "[ALPHA] Requests by authenticated users, by the kind of their name.", "username")
	authnAttempts = desc("authentication_attempts", "[ALPHA] Attempts to authenticate, by what became of them.", "result")
	authnDuration = desc("authentication_duration_seconds", "[ALPHA] Time that authentication took.", "result")
	expiration    = desc("apiserver_client_certificate_expiration_seconds", "[ALPHA] How long the certificates that users are known by are still valid, at each request.")
	authzAttempts = desc("authorization_attempts_total", "[ALPHA] Decisions about requests, by what was decided.", "result")
	authzDuration = desc("authorization_duration_seconds", "[ALPHA] Time that these decisions took.", "result")
)

func newAccess() *Access {
	a := &Access{certificates: newHistogram(expirationBounds)}
	for i := range a.authenticated {
		a.authenticated[i].in = newHistogram(accessBounds)
	}
	for i := range a.authorized {
		a.authorized[i].in = newHistogram(accessBounds)
	}
	return a
}

// ObserveAuthentication counts an attempt by name, empty when nobody is known by it.
func (a *Access) ObserveAuthentication(result int, name string, took time.Duration) {
	a.authenticated[result].n.Add(1)
	a.authenticated[result].in.took(took)
	if result == Known {
		a.users.get(kindOfName(name), func() *atomic.Uint64 { return new(atomic.Uint64) }).Add(1)
	}
}

// ObserveCertificate counts a request by somebody whose certificate ends after this time. One
// that nobody is known by does not count: whoever shows such would ring the alarm.
func (a *Access) ObserveCertificate(remaining time.Duration) { a.certificates.took(remaining) }

// ObserveAuthorization counts a decision.
func (a *Access) ObserveAuthorization(result int, took time.Duration) {
	a.authorized[result].n.Add(1)
	a.authorized[result].in.took(took)
}

// kindOfName keeps names out of the metrics, and their number small.
func kindOfName(name string) string {
	switch name {
	case "admin", "client", "kube_proxy", "kubelet", "system:serviceaccount:kube-system:default":
		return name
	}
	if strings.Contains(name, "@") {
		return "email_id"
	}
	return "other"
}

// Describe leaves the registry to find out.
func (a *Access) Describe(chan<- *prometheus.Desc) {}

// Collect sends the counts.
func (a *Access) Collect(out chan<- prometheus.Metric) {
	defer run.Recover("metrics of access")
	a.users.each(func(name string, n *atomic.Uint64) { out <- counter(userRequests, n.Load(), name) })
	out <- a.certificates.metric(expiration, nanoseconds)
	tell := func(all []outcome, names []string, total, duration *prometheus.Desc) {
		for i := range all {
			if n := all[i].n.Load(); n > 0 {
				out <- counter(total, n, names[i])
				out <- all[i].in.metric(duration, nanoseconds, names[i])
			}
		}
	}
	tell(a.authenticated[:], attemptResults[:], authnAttempts, authnDuration)
	tell(a.authorized[:], decisionResults[:], authzAttempts, authzDuration)
}
