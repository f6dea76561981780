package controllermanager

import (
	"cmp"
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/controlplane/apiserver"
	"knarr/internal/apitest"
	"knarr/internal/apitest/fault"
	"knarr/internal/features"
)

// A scenario is a story whose end must be the same whatever happens to the
// controllers on the way.
type scenario struct {
	name string
	// of are the controllers it is about; writes of the first one's account are
	// where the process ends. with are others that it needs.
	of, with []string
	steps    []func(c *cluster)
	// world is what nodes, drivers and users do again and again.
	world func(c *cluster)
	// configure changes the manager's configuration.
	configure func(c *Config)
	// serve changes the API server's.
	serve func(c *apiserver.Config)
	// quiet is how long nothing is written before a step counts as done.
	// Default three minutes.
	quiet time.Duration
	// anew is the path of an object that may be deleted and made anew at any time:
	// the end is the same.
	anew string
	// inOrder says that the end depends on one step being done before the next.
	inOrder bool
	// groups may be out of discovery's sight for a while.
	groups []string
	// chosen is text that may be another in each run.
	chosen *regexp.Regexp
	// atRest is how many calls an hour without changes may take. Default 30: the
	// garbage collector asks for discovery every five minutes.
	atRest int
	// apis are those that are served besides, and enabled the features that are on.
	apis    []schema.GroupVersion
	enabled features.Set
	// recreates says that how often objects are made depends on how soon changes
	// are seen.
	recreates bool
	// startsOver says that a process which is started again makes once more what the one
	// before had made, since it does not know what that did.
	startsOver bool
}

// An outcome is how a run ended.
type outcome struct {
	state []string
	// made and removed count what the controllers created and deleted, by resource.
	made, removed map[string]int
	writes        int
	changed       []string // the resources that anybody changed
	atRest        []fault.Call
}

// A play is one run of a scenario.
type play struct {
	*cluster
	*scenario
	fault.Disturbance
	watches *fault.Watches
	flip    atomic.Bool // discovery is disturbed
	admin   *fault.Process
	process *fault.Process
	past    []*fault.Process
	ended   chan error
	end     context.CancelFunc
	next    int // step
}

// run plays the scenario under a disturbance. examine gets the end.
func (s *scenario) run(t *testing.T, d fault.Disturbance, examine func(r *play, o outcome)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server, stop := apitest.New(t, func(c *apiserver.Config) {
			c.ServiceAccountKey = tokenKey()
			c.APIs, c.Features = append(c.APIs, s.apis...), s.enabled
			if s.serve != nil {
				s.serve(c)
			}
		})
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), 1000*time.Hour)
		defer cancel()
		r := &play{scenario: s, Disturbance: d, watches: fault.NewWatches(), admin: &fault.Process{}}
		kube := server.Config()
		kube.Wrap(r.admin.Wrap("admin"))
		r.cluster = &cluster{T: t, ctx: ctx, client: kubernetes.NewForConfigOrDie(kube), server: server, beat: r.beatOnce}
		r.start(true)
		defer func() { r.process.Resume(); r.end(); <-r.ended }()
		time.Sleep(time.Second)
		for r.next < len(s.steps) {
			r.step()
			r.settle()
		}
		examine(r, r.outcome())
	})
}

// step takes the next step of the story.
func (r *play) step() {
	r.flip.Store(true)
	if r.Expire {
		r.watches.Hold(r.Lag)
	}
	r.next++
	r.steps[r.next-1](r.cluster)
	if r.Expire {
		for range 3 {
			r.pass(10 * time.Second)
		}
		r.watches.Expire(r.Lag)
	}
}

// start starts the process; the disturbance is for the first.
func (r *play) start(first bool) {
	r.Helper()
	ctx, cancel := context.WithCancel(r.ctx)
	p := &fault.Process{Account: accountOf(r.of[0]), Watches: r.watches, Stop: cancel}
	if first {
		p.StopAt, p.Unsent, p.PauseAt = r.StopAt, r.Unsent, cmp.Or(r.AnewAt, r.HurryAt)
	} else {
		r.past = append(r.past, r.process)
	}
	switch r.Discovery {
	case "unavailable":
		p.Discovery = fault.Unavailable(&r.flip)
	case "partial":
		p.Discovery = fault.Without(&r.flip, r.groups...)
	}
	cfg := config(r.server, append(append([]string{"serviceaccount-controller"}, r.of...), r.with...)...)
	cfg.TokenKey, cfg.Features = tokenKey(), r.enabled
	if r.configure != nil {
		r.configure(&cfg)
	}
	as := cfg.ClientFor
	cfg.Kube.Wrap(p.Wrap(""))
	cfg.ClientFor = func(account string) *rest.Config {
		kube := as(account)
		kube.Wrap(p.Wrap(account))
		return kube
	}
	m, err := New(cfg)
	r.no(err)
	r.process, r.end, r.ended = p, cancel, make(chan error, 1)
	ended := r.ended
	go func() { ended <- m.Run(ctx) }()
}

func accountOf(controller string) string {
	for _, e := range table {
		if e.name == controller {
			return e.account
		}
	}
	return ""
}

// beatOnce does what is due: another process after one that ended, the event that
// a write waits for, the world's part.
func (r *play) beatOnce() {
	r.Helper()
	synctest.Wait()
	if r.process.Ended() {
		r.end()
		<-r.ended
		r.start(false)
	}
	if r.process.Paused() {
		if r.AnewAt > 0 {
			r.makeAnew(r.anew)
		} else if r.next < len(r.steps) {
			r.step()
		}
		r.process.Resume()
		synctest.Wait()
	}
	if r.world != nil {
		r.world(r.cluster)
	}
}

// pass lets time go by.
func (r *play) pass(d time.Duration) {
	r.Helper()
	lag := r.Lag != "" && !r.Expire
	if lag {
		r.watches.Hold(r.Lag)
	}
	r.beatOnce()
	time.Sleep(d)
	if lag {
		r.watches.Release(r.Lag)
	}
	synctest.Wait()
}

// settle waits until nothing is written for a while.
func (r *play) settle() {
	r.Helper()
	calm := cmp.Or(r.quiet, 3*time.Minute)
	last, still := -1, time.Duration(0)
	for range 10000 {
		n := r.admin.Activity() + r.process.Activity() + len(r.past) + r.next
		if n != last {
			last, still = n, 0
		} else if still >= calm {
			return
		}
		beat := 10 * time.Second
		r.pass(beat)
		if still += beat; still > time.Minute {
			r.flip.Store(false)
		}
	}
	r.Fatalf("never at rest: %v", tail(r.process.Calls()))
}

// tail are the last calls that were no watches.
func tail(calls []fault.Call) []fault.Call {
	calls = slices.DeleteFunc(calls, func(c fault.Call) bool { return c.Watch || c.Resource() == "discovery" })
	return calls[max(0, len(calls)-20):]
}

func (r *play) outcome() outcome {
	r.Helper()
	o := outcome{state: r.state(r.chosen), made: map[string]int{}, removed: map[string]int{}, writes: r.process.Writes()}
	changed, removed := map[string]bool{}, map[string]bool{}
	for _, p := range append([]*fault.Process{r.admin, r.process}, r.past...) {
		for _, call := range p.Calls() {
			if !call.Write() || call.Status >= 300 {
				continue
			}
			kind, sub, _ := strings.Cut(call.Resource(), "/")
			changed[kind] = true
			switch {
			case p == r.admin || sub != "":
			case call.Method == "POST":
				o.made[kind]++
			case call.Method == "DELETE" && !removed[call.Path]:
				removed[call.Path] = true
				o.removed[kind]++
			}
		}
	}
	o.changed = slices.Sorted(maps.Keys(changed))
	return o
}

// rest lets an hour go by and gives the calls it took.
func (r *play) rest() (calls []fault.Call) {
	r.Helper()
	before := len(r.process.Calls())
	r.wait(time.Hour)
	for _, call := range r.process.Calls()[before:] {
		if !call.Watch {
			calls = append(calls, call)
		}
	}
	return calls
}

// wait lets a long time go by.
func (r *play) wait(d time.Duration) {
	r.Helper()
	beat := 10 * time.Second
	if r.world == nil {
		beat = time.Minute
	}
	for range d / beat {
		r.beatOnce()
		time.Sleep(beat)
	}
	synctest.Wait()
}

// disturbances are all that may happen to a scenario that ends undisturbed as o.
func (s *scenario) disturbances(o outcome) (all []fault.Disturbance) {
	for k := 1; k <= o.writes; k++ {
		all = append(all, fault.Disturbance{StopAt: k}, fault.Disturbance{StopAt: k, Unsent: true})
		if s.anew != "" {
			all = append(all, fault.Disturbance{AnewAt: k})
		}
		if !s.inOrder && len(s.steps) > 1 {
			all = append(all, fault.Disturbance{HurryAt: k})
		}
	}
	for _, kind := range append([]string{"*"}, o.changed...) {
		all = append(all, fault.Disturbance{Lag: kind}, fault.Disturbance{Lag: kind, Expire: true})
	}
	if len(s.groups) > 0 {
		all = append(all, fault.Disturbance{Discovery: "unavailable"}, fault.Disturbance{Discovery: "partial"})
	}
	return all
}

// TestFaults: whatever ends or blinds the controllers on the way, the story ends
// as it does undisturbed, and nothing is made twice; at the end there is rest.
func TestFaults(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			var want outcome
			s.run(t, fault.Disturbance{}, func(r *play, o outcome) {
				o.atRest = r.rest()
				want = o
			})
			if limit := cmp.Or(s.atRest, 30); len(want.atRest) > limit {
				t.Errorf("%d calls in an hour of rest, at most %d are right: %v", len(want.atRest), limit, tail(want.atRest))
			}
			if want.writes == 0 {
				t.Errorf("%s wrote nothing", s.of[0])
			}
			all := s.disturbances(want)
			t.Logf("%d writes, %d disturbances", want.writes, len(all))
			for _, d := range fault.Sample(s.name, all) {
				t.Run(d.String(), func(t *testing.T) {
					s.run(t, d, func(r *play, o outcome) { s.compare(r, want, o) })
				})
			}
		})
	}
}

// compare gives a run that ended otherwise an hour more, then it fails.
func (s *scenario) compare(r *play, want, got outcome) {
	r.Helper()
	for range 6 {
		if slices.Equal(got.state, want.state) {
			break
		}
		r.wait(10 * time.Minute)
		got = r.outcome()
	}
	if missing, more := differ(want.state, got.state); len(missing)+len(more) > 0 {
		for i := range min(len(missing), len(more)) {
			missing[i], more[i] = around(missing[i], more[i]), around(more[i], missing[i])
		}
		r.Errorf("another end\nmissing: %s\nin place: %s\nlast calls: %v", strings.Join(missing, "\n         "), strings.Join(more, "\n          "), tail(r.process.Calls()))
	}
	if s.recreates && r.StopAt == 0 || r.AnewAt > 0 || r.HurryAt > 0 {
		return
	}
	// What is stopped may have made one anew before that, as it may undisturbed.
	anew := 0
	if s.recreates || s.startsOver && r.StopAt > 0 {
		anew = 1
	}
	for kind, n := range got.made {
		if n > want.made[kind]+anew {
			r.Errorf("made %d %s, undisturbed %d", n, kind, want.made[kind])
		}
	}
	for kind, n := range got.removed {
		if n > want.removed[kind]+anew {
			r.Errorf("deleted %d %s, undisturbed %d", n, kind, want.removed[kind])
		}
	}
}

// TestEveryControllerHasScenario: a line of the table has a scenario or a reason.
func TestEveryControllerHasScenario(t *testing.T) {
	has := map[string]bool{}
	for _, s := range scenarios {
		for _, name := range s.of {
			has[name] = true
		}
	}
	for _, e := range table {
		if reason := withoutScenario[e.name]; has[e.name] == (reason != "") {
			t.Errorf("%s: has a scenario: %v, has none because: %q", e.name, has[e.name], reason)
		}
	}
}
