package metrics

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"knarr/internal/run"
)

// Admission counts the decisions of plugins and webhooks, and how long they took.
type Admission struct {
	steps    []*Step
	webhooks series[webhookKey, histogram]
	requests series[webhookKey, atomic.Uint64]
	refused  series[refusalKey, atomic.Uint64]
	failOpen series[[2]string, atomic.Uint64]
}

type webhookKey struct {
	name, step, operation string
	rejected              bool
	code                  int
}

type refusalKey struct {
	name, step, operation, why string
	code                       int
}

var (
	pluginBounds  = []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5}
	webhookBounds = []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 25}

	stepDuration     = desc("apiserver_admission_step_admission_duration_seconds", "[STABLE] Time that all plugins together took, by step (admit or validate).", "type", "operation", "rejected")
	pluginDuration   = desc("apiserver_admission_controller_admission_duration_seconds", "[STABLE] Time that an admission plugin took.", "name", "type", "operation", "rejected")
	webhookDuration  = desc("apiserver_admission_webhook_admission_duration_seconds", "[STABLE] Time that an admission webhook took.", "name", "type", "operation", "rejected")
	webhookRequests  = desc("apiserver_admission_webhook_request_total", "[ALPHA] Questions to admission webhooks.", "name", "type", "operation", "code", "rejected")
	webhookRefusals  = desc("apiserver_admission_webhook_rejection_count", "[ALPHA] Requests refused by, or because of, admission webhooks.", "name", "type", "operation", "error_type", "rejection_code")
	webhookFailOpens = desc("apiserver_admission_webhook_fail_open_count", "[ALPHA] Requests admitted though a webhook could not be asked.", "name", "type")
)

func newAdmission() *Admission { return &Admission{} }

// The steps of admission; webhooks have a word of their own for the second.
const (
	Admit      = "admit"
	Validate   = "validate"
	Validating = "validating"
)

var operations = [...]string{"CREATE", "UPDATE", "DELETE", "CONNECT"}

// A Step is what one plugin, or all of them together, say in one step.
type Step struct {
	name, step string
	in         [len(operations)][2]histogram
}

// Step is where answers of a plugin are counted; without a name, those of all
// of them together. It is to be called before requests come.
func (a *Admission) Step(name, step string) *Step {
	if a == nil {
		return nil
	}
	s := &Step{name: name, step: step}
	for i := range s.in {
		s.in[i] = [2]histogram{newHistogram(pluginBounds), newHistogram(pluginBounds)}
	}
	a.steps = append(a.steps, s)
	return s
}

// ObserveAnswer counts one answer.
func (s *Step) ObserveAnswer(operation string, rejected bool, took time.Duration) {
	if s == nil {
		return
	}
	for i, o := range operations {
		if o == operation {
			s.in[i][index(rejected)].took(took)
		}
	}
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (s *Step) collect(out chan<- prometheus.Metric) {
	of, labels := stepDuration, []string{s.step}
	if s.name != "" {
		of, labels = pluginDuration, []string{s.name, s.step}
	}
	for i, operation := range operations {
		for rejected := range s.in[i] {
			if h := &s.in[i][rejected]; h.count() > 0 {
				out <- h.metric(of, nanoseconds, append(slices.Clone(labels), operation, strconv.FormatBool(rejected == 1))...)
			}
		}
	}
}

// Webhook counts one webhook's answer; code is that of its refusal or 200.
func (a *Admission) Webhook(name, step, operation string, rejected bool, code int, took time.Duration) {
	if a == nil {
		return
	}
	k := webhookKey{name, step, operation, rejected, 0}
	a.webhooks.get(k, func() *histogram {
		h := newHistogram(webhookBounds)
		return &h
	}).took(took)
	k.code = min(code, 600)
	a.requests.get(k, newCount).Add(1)
}

// Why a webhook's request was refused.
const (
	CallFailed = "calling_webhook_error"
	OwnFault   = "apiserver_internal_error"
	NoFault    = "no_error"
)

// ObserveRejection counts a request that failed by a webhook.
func (a *Admission) ObserveRejection(name, step, operation, why string, code int) {
	if a != nil {
		a.refused.get(refusalKey{name, step, operation, why, min(code, 600)}, newCount).Add(1)
	}
}

// ObserveFailOpen counts a request that was admitted without the webhook's word.
func (a *Admission) ObserveFailOpen(name, step string) {
	if a != nil {
		a.failOpen.get([2]string{name, step}, newCount).Add(1)
	}
}

func newCount() *atomic.Uint64 { return new(atomic.Uint64) }

// Describe leaves the registry to find out.
func (a *Admission) Describe(chan<- *prometheus.Desc) {}

// Collect sends the counts.
func (a *Admission) Collect(out chan<- prometheus.Metric) {
	defer run.Recover("metrics of admission")
	for _, s := range a.steps {
		s.collect(out)
	}
	a.webhooks.each(func(k webhookKey, h *histogram) {
		out <- h.metric(webhookDuration, nanoseconds, k.name, k.step, k.operation, strconv.FormatBool(k.rejected))
	})
	a.requests.each(func(k webhookKey, n *atomic.Uint64) {
		out <- counter(webhookRequests, n.Load(), k.name, k.step, k.operation, strconv.Itoa(k.code), strconv.FormatBool(k.rejected))
	})
	a.refused.each(func(k refusalKey, n *atomic.Uint64) {
		out <- counter(webhookRefusals, n.Load(), k.name, k.step, k.operation, k.why, strconv.Itoa(k.code))
	})
	a.failOpen.each(func(k [2]string, n *atomic.Uint64) { out <- counter(webhookFailOpens, n.Load(), k[0], k[1]) })
}
