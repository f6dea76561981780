package cloudcontrollermanager

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"knarr/internal/apitest"
	"knarr/internal/apitest/fault"
)

// A play is one run of the story.
type play struct {
	*cluster
	fault.Disturbance
	server  *apitest.Server
	watches *fault.Watches
	process *fault.Process
	writes  int // of processes that ended
	end     context.CancelFunc
	ended   chan error
}

// start starts the process; what ends it is for the first.
func (r *play) start(first bool) {
	r.Helper()
	ctx, cancel := context.WithCancel(r.ctx)
	p := &fault.Process{Watches: r.watches, Stop: cancel}
	if first {
		p.StopAt, p.Unsent, p.PauseAt = r.StopAt, r.Unsent, r.AnewAt
	}
	cfg := config(r.server, r.vendor)
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

// pass lets ten seconds go by, starts another process after one that ended, and makes the
// Service anew while a write waits for it.
func (r *play) pass() {
	r.Helper()
	synctest.Wait()
	if r.process.Ended() {
		r.end()
		<-r.ended
		r.writes += r.process.Writes()
		r.start(false)
	}
	if r.process.Paused() {
		if s := r.read("web"); s != nil && s.DeletionTimestamp == nil {
			r.makeAnew()
		}
		r.process.Resume()
		synctest.Wait()
	}
	lag := r.Lag != "" && !r.Expire
	if lag {
		r.watches.Hold(r.Lag)
	}
	time.Sleep(10 * time.Second)
	if lag {
		r.watches.Release(r.Lag)
	}
	synctest.Wait()
}

// makeAnew deletes the Service without waiting for anybody, and creates it.
func (r *play) makeAnew() {
	r.Helper()
	r.drop("web")
	if r.read("web") != nil {
		r.change("web", `{"metadata":{"finalizers":null}}`)
	}
	r.service("web")
}

// settle waits until nothing was written for two minutes.
func (r *play) settle() {
	r.Helper()
	last, still := -1, 0
	for range 1000 {
		if n := r.writes + r.process.Writes(); n != last {
			last, still = n, 0
		} else if still++; still == 12 {
			return
		}
		r.pass()
	}
	r.Fatal("never at rest")
}

// steps are the story.
var steps = []func(c *cluster){
	func(c *cluster) {
		for i, name := range []string{"a", "b"} {
			c.set(func() { c.machines[name] = known(name) })
			c.node(name, func(n *corev1.Node) {
				n.Spec.PodCIDR = fmt.Sprintf("10.42.%d.0/24", i)
				n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
			})
		}
	},
	func(c *cluster) { c.service("web") },
	func(c *cluster) {
		c.set(func() { m := c.machines["b"]; m.off = true; c.machines["b"] = m })
		c.ready("b", corev1.ConditionUnknown)
	},
	func(c *cluster) { c.set(func() { m := c.machines["b"]; m.gone = true; c.machines["b"] = m }) },
	func(c *cluster) { c.service("other") },
	func(c *cluster) { c.drop("other") },
}

// state is how it ends: nodes, Services, and what the vendor has.
func (r *play) state() (all []string) {
	r.Helper()
	nodes, err := r.client.CoreV1().Nodes().List(r.ctx, metav1.ListOptions{})
	r.no(err)
	for _, n := range nodes.Items {
		taints := []string{}
		for _, t := range n.Spec.Taints {
			taints = append(taints, t.Key+":"+string(t.Effect))
		}
		available := ""
		for _, c := range n.Status.Conditions {
			available += fmt.Sprintf("%s=%s ", c.Type, c.Status)
		}
		all = append(all, fmt.Sprintf("node %s %s %v %v %v %s", n.Name, n.Spec.ProviderID, taints, n.Labels, n.Status.Addresses, available))
	}
	services, err := r.client.CoreV1().Services("default").List(r.ctx, metav1.ListOptions{})
	r.no(err)
	for _, s := range services.Items {
		addresses := []string{}
		for _, in := range s.Status.LoadBalancer.Ingress {
			addresses = append(addresses, in.IP)
		}
		all = append(all, fmt.Sprintf("service %s %v %v deleted=%t behind %s", s.Name, s.Finalizers, addresses, s.DeletionTimestamp != nil, r.behind(&s)))
	}
	r.set(func() {
		routes := []string{}
		for _, route := range r.routes {
			routes = append(routes, fmt.Sprintf("%s to %s", route.DestinationCIDR, route.TargetNode))
		}
		slices.Sort(routes)
		all = append(all, fmt.Sprintf("routes %v", routes))
		if r.AnewAt == 0 { // what had no finalizer any more is nobody's
			all = append(all, fmt.Sprintf("%d balancers", len(r.balancers)))
		}
	})
	return all
}

// tell plays the story under a disturbance; it gives its end and the number of writes.
func tell(t *testing.T, d fault.Disturbance) (state []string, writes int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server, stop := apitest.New(t)
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), 1000*time.Hour)
		defer cancel()
		r := &play{cluster: &cluster{t, ctx, server.Client(t), newVendor()}, Disturbance: d, server: server, watches: fault.NewWatches()}
		r.start(true)
		defer func() { r.process.Resume(); r.end(); <-r.ended }()
		r.settle()
		for _, step := range steps {
			if d.Expire {
				r.watches.Hold(d.Lag)
			}
			step(r.cluster)
			if d.Expire {
				for range 3 {
					r.pass()
				}
				r.watches.Expire(d.Lag)
			}
			r.settle()
		}
		state, writes = r.state(), r.writes+r.process.Writes()
	})
	return state, writes
}

// TestFaults: whatever ends or blinds the controllers on the way, the story ends as it
// does undisturbed.
func TestFaults(t *testing.T) {
	want, writes := tell(t, fault.Disturbance{})
	if writes == 0 || len(want) != 5 {
		t.Fatalf("%d writes, and at the end: %s", writes, strings.Join(want, "\n"))
	}
	var all []fault.Disturbance
	for k := 1; k <= writes; k++ {
		all = append(all, fault.Disturbance{StopAt: k}, fault.Disturbance{StopAt: k, Unsent: true}, fault.Disturbance{AnewAt: k})
	}
	for _, kind := range []string{"*", "nodes", "services"} {
		all = append(all, fault.Disturbance{Lag: kind}, fault.Disturbance{Lag: kind, Expire: true})
	}
	t.Logf("%d writes, %d disturbances; the end: %s", writes, len(all), strings.Join(want, "\n"))
	for _, d := range fault.Sample("cloud", all) {
		t.Run(d.String(), func(t *testing.T) {
			got, _ := tell(t, d)
			if d.AnewAt > 0 {
				got = append(got, want[len(want)-1])
			}
			if !slices.Equal(got, want) {
				t.Errorf("another end\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}
