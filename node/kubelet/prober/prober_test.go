package prober

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"knarr/internal/run"
)

func execProbe(f func(*corev1.Probe)) *corev1.Probe {
	p := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}},
		PeriodSeconds: 10, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3}
	if f != nil {
		f(p)
	}
	return p
}

// bench is a Manager whose probes answer with code, or fail as often as errors says.
type bench struct {
	*Manager
	errors          atomic.Int32
	code            atomic.Int32
	probes, changes atomic.Int32
	events          atomic.Int32
}

func newBench(ctx context.Context) *bench {
	b := &bench{}
	b.Manager = New(ctx, Config{
		Exec: func(context.Context, string, []string, time.Duration) ([]byte, int32, error) {
			b.probes.Add(1)
			if b.errors.Add(-1) >= 0 {
				return nil, 0, errors.New("the runtime is busy")
			}
			return []byte("no"), b.code.Load(), nil
		},
		Changed: func(types.UID) { b.changes.Add(1) },
		Event:   func(Target, Kind, bool, string) { b.events.Add(1) },
	})
	return b
}

func target(f func(*corev1.Container)) Target {
	c := &corev1.Container{Name: "c"}
	f(c)
	return Target{Pod: &corev1.Pod{}, Container: c, ContainerID: "id", Started: time.Now()}
}

func bubble(t *testing.T, f func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		b := newBench(ctx)
		f(b)
		cancel()
		b.Wait()
	})
}

func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// TestErrorsAreTriedAgain: a probe that cannot be made is made again at once, three times in
// all, and only the last error is told.
func TestErrorsAreTriedAgain(t *testing.T) {
	for _, c := range []struct {
		errors, probes, events int32
		ready                  Verdict
	}{{0, 1, 0, Success}, {2, 3, 0, Success}, {3, 3, 1, Failure}} {
		bubble(t, func(b *bench) {
			b.errors.Store(c.errors)
			b.Watch(target(func(c *corev1.Container) { c.ReadinessProbe = execProbe(nil) }))
			after(time.Second)
			if p, e := b.probes.Load(), b.events.Load(); p != c.probes || e != c.events {
				t.Errorf("%d errors: %d probes, %d events", c.errors, p, e)
			}
			if v, _ := b.Verdict("id", Readiness); v != c.ready {
				t.Errorf("%d errors: %v", c.errors, v)
			}
		})
	}
}

// TestExecErrors: a command that takes too long fails its probe; one that the runtime could
// not start says nothing of the container, and its probe counts neither way.
func TestExecErrors(t *testing.T) {
	for code, want := range map[codes.Code]Verdict{codes.DeadlineExceeded: Failure, codes.Unavailable: Success} {
		bubble(t, func(b *bench) {
			b.Exec = func(context.Context, string, []string, time.Duration) ([]byte, int32, error) {
				return nil, 0, status.Error(code, "no answer")
			}
			b.Watch(target(func(c *corev1.Container) { c.LivenessProbe = execProbe(nil) }))
			after(time.Minute)
			if v, _ := b.Verdict("id", Liveness); v != want {
				t.Errorf("%s: %v", code, v)
			}
		})
	}
}

func TestLivenessFailsAfterItsThreshold(t *testing.T) {
	bubble(t, func(b *bench) {
		b.Watch(target(func(c *corev1.Container) { c.LivenessProbe = execProbe(nil) }))
		after(time.Second)
		if v, ok := b.Verdict("id", Liveness); v != Success || !ok {
			t.Errorf("at first: %v", v)
		}
		b.code.Store(1)
		after(20 * time.Second)
		if v, _ := b.Verdict("id", Liveness); v != Success {
			t.Error("failed before the third failure")
		}
		after(10 * time.Second)
		if v, _ := b.Verdict("id", Liveness); v != Failure {
			t.Error("still alive after three failures")
		}
		if b.events.Load() != 3 {
			t.Errorf("%d events", b.events.Load())
		}
	})
}

// TestNoProbeAfterTheFailure: a container that is about to be stopped is not asked again,
// but for whether it is ready.
func TestNoProbeAfterTheFailure(t *testing.T) {
	for name, probe := range map[string]func(*corev1.Container){
		"liveness": func(c *corev1.Container) { c.LivenessProbe = execProbe(nil) },
		"startup":  func(c *corev1.Container) { c.StartupProbe = execProbe(nil) },
	} {
		bubble(t, func(b *bench) {
			b.code.Store(1)
			b.Watch(target(probe))
			after(31 * time.Second)
			failed := b.probes.Load()
			b.code.Store(0)
			after(time.Minute)
			if now := b.probes.Load(); now != failed {
				t.Errorf("%s: probed %d more times after %d failures", name, now-failed, failed)
			}
		})
	}
	bubble(t, func(b *bench) {
		b.code.Store(1)
		b.Watch(target(func(c *corev1.Container) { c.LivenessProbe, c.ReadinessProbe = execProbe(nil), execProbe(nil) }))
		after(31 * time.Second)
		failed := b.probes.Load()
		after(time.Minute)
		if now := b.probes.Load(); now != failed+6 {
			t.Errorf("asked %d more times whether it is ready, not 6", now-failed)
		}
	})
}

func TestReadinessBeginsUnreadyAndCallsAtOnce(t *testing.T) {
	bubble(t, func(b *bench) {
		b.Watch(target(func(c *corev1.Container) {
			c.ReadinessProbe = execProbe(func(p *corev1.Probe) { p.InitialDelaySeconds = 5 })
		}))
		after(4 * time.Second)
		if v, _ := b.Verdict("id", Readiness); v != Failure || b.probes.Load() != 0 {
			t.Errorf("%v after %d probes", v, b.probes.Load())
		}
		after(2 * time.Second)
		if v, _ := b.Verdict("id", Readiness); v != Success || b.changes.Load() != 1 {
			t.Errorf("%v, %d changes", v, b.changes.Load())
		}
		b.Forget("id")
		if _, ok := b.Verdict("id", Readiness); ok {
			t.Error("not forgotten")
		}
	})
}

func TestStartupHoldsTheOthers(t *testing.T) {
	bubble(t, func(b *bench) {
		b.code.Store(1)
		b.Watch(target(func(c *corev1.Container) {
			c.StartupProbe = execProbe(func(p *corev1.Probe) { p.FailureThreshold = 30; p.PeriodSeconds = 1 })
			c.LivenessProbe = execProbe(func(p *corev1.Probe) { p.FailureThreshold = 1; p.PeriodSeconds = 1 })
			c.ReadinessProbe = execProbe(nil)
		}))
		after(10 * time.Second)
		if v, _ := b.Verdict("id", Liveness); v != Success {
			t.Error("liveness was probed before the container had started")
		}
		b.code.Store(0)
		after(2 * time.Second)
		if v, _ := b.Verdict("id", Startup); v != Success {
			t.Error("not started")
		}
		if v, _ := b.Verdict("id", Readiness); v != Success {
			t.Error("not ready right after start")
		}
		n := b.probes.Load()
		after(100 * time.Second)
		if got := b.probes.Load() - n; got < 105 || got > 115 { // liveness each second, readiness each ten
			t.Errorf("%d probes in 100 s", got)
		}
	})
}

// TestSlowProbeDelaysNoOther: while one probe of a container waits for its answer, the other is
// made at its times, and what comes of it is known at once.
func TestSlowProbeDelaysNoOther(t *testing.T) {
	for _, c := range []struct {
		slow, other Kind
		answer      int32
		want        Verdict
	}{{Readiness, Liveness, 1, Failure}, {Liveness, Readiness, 0, Success}} {
		for _, starts := range []bool{false, true} {
			bubble(t, func(b *bench) {
				began := time.Now()
				var at []time.Duration // in seconds
				b.Exec = func(_ context.Context, _ string, command []string, timeout time.Duration) ([]byte, int32, error) {
					switch command[0] {
					case c.slow.String():
						<-time.After(timeout)
						return nil, 0, context.DeadlineExceeded
					case c.other.String():
						at = append(at, time.Since(began)/time.Second)
						return nil, c.answer, nil
					}
					return nil, 0, nil
				}
				probe := func(k Kind) *corev1.Probe {
					return execProbe(func(p *corev1.Probe) { p.Exec.Command, p.PeriodSeconds = []string{k.String()}, 5 })
				}
				b.Watch(target(func(on *corev1.Container) {
					on.LivenessProbe, on.ReadinessProbe = probe(Liveness), probe(Readiness)
					if starts {
						on.StartupProbe = probe(Startup)
					}
					probesOf(on)[c.slow].TimeoutSeconds = 30
				}))
				after(11 * time.Second)
				if v, _ := b.Verdict("id", c.other); v != c.want || !slices.Equal(at, []time.Duration{0, 5, 10}) {
					t.Errorf("%s beside a slow probe of %s, startup %t: %v, probed at %d s", c.other, c.slow, starts, v, at)
				}
			})
		}
	}
}

// TestProbesEndWithTheirContainer: nothing goes on of a container that is forgotten, be its probes
// to come, wait for it to start, be stopped or be over.
func TestProbesEndWithTheirContainer(t *testing.T) {
	bubble(t, func(b *bench) {
		for id, starts := range map[string]bool{"waits": false, "runs": true, "stops": true} {
			tg := target(func(c *corev1.Container) {
				c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = execProbe(nil), execProbe(nil), execProbe(nil)
				if !starts {
					c.StartupProbe.InitialDelaySeconds = 3600
				}
			})
			tg.ContainerID = id
			b.Watch(tg)
		}
		after(time.Second)
		b.StopLiveness("stops")
		after(time.Minute)
		for _, id := range []string{"waits", "runs", "stops"} {
			b.Forget(id)
		}
		b.Wait()
	})
}

// TestStoppingKeepsWhatIsKnown: a container that is being stopped stays started and ready while
// its readiness probe succeeds. One that has not started stays so: it is not probed any more,
// unless a startup probe was under way that succeeds.
func TestStoppingKeepsWhatIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		starts  time.Duration // when the startup probe succeeds
		takes   time.Duration // that a startup probe takes
		started Verdict
		ready   Verdict
		probes  int32 // within a minute of the stop
	}{
		"started":     {0, 0, Success, Success, 6},
		"not started": {time.Hour, 0, Unknown, Failure, 0},
		"under way":   {5 * time.Second, 15 * time.Second, Success, Success, 5},
	} {
		bubble(t, func(b *bench) {
			began := time.Now()
			b.Exec = func(_ context.Context, _ string, command []string, _ time.Duration) ([]byte, int32, error) {
				b.probes.Add(1)
				if command[0] != "startup" {
					return nil, b.code.Load(), nil
				}
				if <-time.After(c.takes); time.Since(began) < c.starts {
					return nil, 1, nil
				}
				return nil, 0, nil
			}
			on := target(func(c *corev1.Container) {
				c.StartupProbe, c.ReadinessProbe, c.LivenessProbe = execProbe(nil), execProbe(nil), execProbe(nil)
				c.StartupProbe.Exec.Command, c.StartupProbe.FailureThreshold = []string{"startup"}, 100
			})
			b.Watch(on)
			after(time.Second)
			b.StopLiveness("id")
			b.StopLiveness("id")
			before := b.probes.Load()
			after(time.Minute)
			b.Watch(on) // as at every look at the pod
			for k, want := range [kinds]Verdict{Success, c.ready, c.started} {
				if v, ok := b.Verdict("id", Kind(k)); v != want || !ok {
					t.Errorf("%s: %s is %v, %t, not %v", name, Kind(k), v, ok, want)
				}
			}
			if n := b.probes.Load() - before; n != c.probes {
				t.Errorf("%s: %d probes, not %d", name, n, c.probes)
			}
			b.code.Store(1)
			after(time.Minute)
			if v, _ := b.Verdict("id", Readiness); v != Failure {
				t.Errorf("%s: %v for its endpoints when it has drained", name, v)
			}
			if v, _ := b.Verdict("id", Liveness); v != Success {
				t.Errorf("%s: probed for liveness", name)
			}
		})
	}
}

// TestProbesAndTheClock: a container that has started in the future, as the clock was set back
// since, is probed like one that has just started.
func TestProbesAndTheClock(t *testing.T) {
	bubble(t, func(b *bench) {
		tg := target(func(c *corev1.Container) {
			c.ReadinessProbe = execProbe(func(p *corev1.Probe) { p.InitialDelaySeconds = 5 })
		})
		tg.Started = time.Unix(0, time.Now().Add(time.Hour).UnixNano())
		b.Watch(tg)
		after(4 * time.Second)
		if n := b.probes.Load(); n != 0 {
			t.Errorf("probed %d times before its delay", n)
		}
		after(22 * time.Second)
		if v, _ := b.Verdict("id", Readiness); v != Success || b.probes.Load() != 3 {
			t.Errorf("%v after %d probes", v, b.probes.Load())
		}
	})
}

func TestRestartedKubeletKeepsWhatWasTrue(t *testing.T) {
	bubble(t, func(b *bench) {
		tg := target(func(c *corev1.Container) {
			c.ReadinessProbe = execProbe(func(p *corev1.Probe) { p.InitialDelaySeconds = 50 })
		})
		tg.WasReady = true
		b.Watch(tg)
		after(time.Second)
		if v, _ := b.Verdict("id", Readiness); v != Success {
			t.Error("a ready container became unready without being probed")
		}
	})
}

// TestLateKnowledge: what was true is believed when it is heard of late, but not against a probe.
func TestLateKnowledge(t *testing.T) {
	bubble(t, func(b *bench) {
		tg := target(func(c *corev1.Container) {
			c.ReadinessProbe = execProbe(func(p *corev1.Probe) { p.InitialDelaySeconds, p.FailureThreshold = 50, 1 })
		})
		b.code.Store(1)
		b.Watch(tg)
		tg.WasReady = true
		b.Watch(tg)
		if v, _ := b.Verdict("id", Readiness); v != Success {
			t.Error("a ready container is not ready without being probed")
		}
		after(100 * time.Second)
		b.Watch(tg)
		if v, _ := b.Verdict("id", Readiness); v != Failure {
			t.Error("the past counts for more than a probe")
		}
	})
}

// TestLateKnowledgeOfTheStart: a container of which it is heard late that it had started before
// this kubelet is asked at once whether it is ready, and not any more whether it has started.
func TestLateKnowledgeOfTheStart(t *testing.T) {
	bubble(t, func(b *bench) {
		tg := target(func(c *corev1.Container) {
			c.StartupProbe, c.ReadinessProbe = execProbe(func(p *corev1.Probe) { p.FailureThreshold = 1 }), execProbe(nil)
			c.StartupProbe.InitialDelaySeconds = 20
		})
		b.Watch(tg)
		after(5 * time.Second)
		tg.WasStarted = true
		b.Watch(tg)
		after(time.Second)
		if v, _ := b.Verdict("id", Readiness); v != Success || b.probes.Load() != 1 {
			t.Errorf("%v after %d probes", v, b.probes.Load())
		}
		b.code.Store(1)
		after(time.Minute)
		b.Watch(tg)
		if v, _ := b.Verdict("id", Startup); v != Success || b.probes.Load() != 7 {
			t.Errorf("startup is %v after %d probes", v, b.probes.Load())
		}
	})
}

// TestFirst: a container that has just started is probed after its delay, one that has run for
// longer within a period, so that not all are after a restart of the kubelet.
func TestFirst(t *testing.T) {
	for _, c := range []struct {
		kind          Kind
		delay, period int32
		old, min, max time.Duration
	}{
		{Liveness, 0, 10, 0, 0, 0},
		{Liveness, 5, 10, 2 * time.Second, 3 * time.Second, 3 * time.Second},
		{Liveness, 60, 10, 20 * time.Second, 40 * time.Second, 40 * time.Second},
		{Liveness, 0, 10, 5 * time.Second, -5 * time.Second, -5 * time.Second},
		{Liveness, 0, 10, time.Hour, 0, 10 * time.Second},
		{Startup, 0, 0, time.Hour, 0, time.Second},
		{Readiness, 5, 10, time.Hour, 0, 0},
		{Readiness, 5, 10, time.Second, 4 * time.Second, 4 * time.Second},
	} {
		p := &corev1.Probe{InitialDelaySeconds: c.delay, PeriodSeconds: c.period}
		if got := first(c.kind, p, c.old); got < c.min || got > c.max {
			t.Errorf("%+v: in %v", c, got)
		}
	}
}

// TestOver: which probes are made no more, by what is known of them.
func TestOver(t *testing.T) {
	for k, want := range [kinds][3]bool{Liveness: {Failure: true}, Startup: {Success: true, Failure: true}} {
		for v, want := range want {
			if got := over(Kind(k), Verdict(v), false); got != want {
				t.Errorf("%s, %d: %t", Kind(k), v, got)
			}
			if !over(Kind(k), Verdict(v), true) {
				t.Errorf("%s, %d: goes on though it is stopped", Kind(k), v)
			}
		}
	}
}

// TestPanicOfAProbe: it fails the probe, and is counted where an alert can see it.
func TestPanicOfAProbe(t *testing.T) {
	const name = "kubelet: probe"
	before := run.Panics()[name]
	m := New(t.Context(), Config{Exec: func(context.Context, string, []string, time.Duration) ([]byte, int32, error) { panic("no runtime") }})
	r := m.probe(t.Context(), target(func(*corev1.Container) {}), execProbe(nil), time.Second)
	if n := run.Panics()[name] - before; n != 1 || r.ok || r.err == nil {
		t.Errorf("%+v, %d counted", r, n)
	}
}

func TestPort(t *testing.T) {
	c := &corev1.Container{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 80}}}
	for _, x := range []struct {
		p    intstr.IntOrString
		want int
	}{{intstr.FromInt32(8080), 8080}, {intstr.FromString("web"), 80}, {intstr.FromString("81"), 81}, {intstr.FromString("no"), 0}, {intstr.FromInt32(0), 0}} {
		got, err := Port(x.p, c)
		if got != x.want || (err == nil) != (x.want > 0) {
			t.Errorf("%v: %d %v", x.p, got, err)
		}
	}
}

func TestRequest(t *testing.T) {
	r, err := Request(context.Background(), &corev1.HTTPGetAction{Path: "a?b=c", Port: intstr.FromInt32(80), HTTPHeaders: []corev1.HTTPHeader{{Name: "host", Value: "h"}}}, &corev1.Container{}, "::1", "agent")
	if err != nil {
		t.Fatal(err)
	}
	if r.URL.String() != "http://[::1]:80/a?b=c" || r.Host != "h" || r.Header.Get("User-Agent") != "agent" || !strings.Contains(r.Header.Get("Accept"), "*/*") {
		t.Errorf("%s %s %v", r.URL, r.Host, r.Header)
	}
}

// TestHostileAnswers: what a container answers takes little memory of the node, and has it ask
// nobody else.
func TestHostileAnswers(t *testing.T) {
	others := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { others++ }))
	defer other.Close()
	elsewhere := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
	mux := http.NewServeMux()
	mux.HandleFunc("/headers", func(w http.ResponseWriter, _ *http.Request) {
		for i := range 2 * maxHeader / 64 {
			w.Header().Set(fmt.Sprintf("X%063d", i), "")
		}
	})
	mux.HandleFunc("/elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere, http.StatusFound) })
	mux.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/end", http.StatusFound) })
	mux.HandleFunc("/end", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "end") })
	s := httptest.NewServer(mux)
	defer s.Close()
	get := func(path string) (int, error) {
		res, err := Client(10 * time.Second).Get(s.URL + path)
		if err != nil {
			return 0, err
		}
		defer res.Body.Close()
		return res.StatusCode, nil
	}
	if code, err := get("/headers"); err == nil || !strings.Contains(err.Error(), "exceeded") {
		t.Errorf("long header: %d, %v", code, err)
	}
	if code, err := get("/elsewhere"); err != nil || code != http.StatusFound || others > 0 {
		t.Errorf("redirected: %d, %v, %d followed", code, err, others)
	}
	if code, err := get("/here"); err != nil || code != http.StatusOK {
		t.Errorf("redirected within the host: %d, %v", code, err)
	}
}
