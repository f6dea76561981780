package fairness

import (
	"maps"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"knarr/internal/run"
)

// A tally is what became of the requests of one FlowSchema in one level.
type tally struct {
	schema, level     string
	dispatched        atomic.Uint64
	executing, queued atomic.Int64
	queuedSeats       atomic.Int64
	seats             int // that are taken, of a level with seats; the Dispatcher's lock guards it
	rejected          [len(reasons)]atomic.Uint64
}

// Why there was no seat.
const (
	queueFull = iota
	concurrencyLimit
	timeOut
)

var reasons = [...]string{queueFull: "queue-full", concurrencyLimit: "concurrency-limit", timeOut: "time-out"}

func (t *tally) recordDispatch() {
	t.dispatched.Add(1)
	t.executing.Add(1)
}

// tallies are those of all FlowSchemas there are.
type tallies struct {
	mu   sync.Mutex
	all  map[[2]string]*tally
	wait *prometheus.HistogramVec
}

func (d *Dispatcher) tallyOf(schema string, l *level) *tally {
	t := &d.tallies
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[[2]string]*tally{}
		t.wait = prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_flowcontrol_request_wait_duration_seconds",
			Help:    "[BETA] Time that requests spent in queues.",
			Buckets: []float64{0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30},
		}, []string{"priority_level", "flow_schema", "execute"})
	}
	k := [2]string{schema, l.name}
	if t.all[k] == nil {
		t.all[k] = &tally{schema: schema, level: l.name}
	}
	return t.all[k]
}

// keep forgets those of FlowSchemas that are gone, so that they stay few.
func (t *tallies) keep(p *plan) {
	used := map[*tally]bool{}
	for _, s := range p.schemas {
		used[s.tally] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.all, func(_ [2]string, one *tally) bool {
		if used[one] {
			return false
		}
		t.wait.DeletePartialMatch(prometheus.Labels{"flow_schema": one.schema, "priority_level": one.level})
		return true
	})
}

func (t *tallies) recordWait(one *tally, recordDispatch bool, d time.Duration) {
	t.wait.WithLabelValues(one.level, one.schema, strconv.FormatBool(recordDispatch)).Observe(d.Seconds())
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("apiserver_flowcontrol_"+name, help, labels, nil)
}

var (
	dispatched     = desc("dispatched_requests_total", "[BETA] Requests that got a seat.", "priority_level", "flow_schema")
	refused        = desc("rejected_requests_total", "[BETA] Requests that got none, and why.", "priority_level", "flow_schema", "reason")
	executing      = desc("current_executing_requests", "[BETA] Requests that have a seat.", "priority_level", "flow_schema")
	executingSeats = desc("current_executing_seats", "[BETA] Seats that are taken.", "priority_level", "flow_schema")
	inqueue        = desc("current_inqueue_requests", "[BETA] Requests in queues.", "priority_level", "flow_schema")
	inqueueSeats   = desc("current_inqueue_seats", "[ALPHA] Seats that requests in queues wait for.", "priority_level", "flow_schema")
	nominal        = desc("nominal_limit_seats", "[BETA] Seats of each level.", "priority_level")
	lower          = desc("lower_limit_seats", "[ALPHA] Seats of each level that it does not lend.", "priority_level")
	upper          = desc("upper_limit_seats", "[ALPHA] Seats that each level may have with what it borrows.", "priority_level")
	current        = desc("current_limit_seats", "[ALPHA] Seats that each level may have now.", "priority_level")
)

// Describe leaves the registry to find out.
func (d *Dispatcher) Describe(chan<- *prometheus.Desc) {}

// Collect sends the counts, and the seats of each level.
func (d *Dispatcher) Collect(out chan<- prometheus.Metric) {
	defer run.Recover("metrics of flows")
	p := d.current()
	send := func(of *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(of, kind, v, labels...)
	}
	for _, s := range p.schemas {
		t := s.tally
		send(dispatched, prometheus.CounterValue, float64(t.dispatched.Load()), t.level, t.schema)
		for i, why := range reasons {
			if n := t.rejected[i].Load(); n > 0 {
				send(refused, prometheus.CounterValue, float64(n), t.level, t.schema, why)
			}
		}
		seats := t.executing.Load()
		if !s.level.exempt {
			d.mu.Lock()
			seats = int64(t.seats)
			d.mu.Unlock()
		}
		send(executing, prometheus.GaugeValue, float64(t.executing.Load()), t.level, t.schema)
		send(executingSeats, prometheus.GaugeValue, float64(seats), t.level, t.schema)
		send(inqueue, prometheus.GaugeValue, float64(t.queued.Load()), t.level, t.schema)
		send(inqueueSeats, prometheus.GaugeValue, float64(t.queuedSeats.Load()), t.level, t.schema)
	}
	d.tallies.wait.Collect(out)
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, l := range p.levels {
		most := l.nominal + d.total // upstream's word for any number
		if l.most != math.MaxInt {
			most = l.most
		}
		send(nominal, prometheus.GaugeValue, float64(l.nominal), name)
		send(lower, prometheus.GaugeValue, float64(l.least), name)
		send(upper, prometheus.GaugeValue, float64(most), name)
		send(current, prometheus.GaugeValue, float64(min(most, max(l.executing, l.least)+max(0, d.seats.free))), name)
	}
}
