package kubelet

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
)

// nodeStart is when a Node came that was not there before: its steps, and the gauges that
// show how long they took.
type nodeStart struct {
	boot, began time.Time // of the machine, of the kubelet

	mu                       sync.Mutex
	tried, registered, ready time.Time

	preKubelet, preRegistration, registration, postRegistration, all prometheus.Gauge
}

func newNodeStart(r prometheus.Registerer, boot, began time.Time) *nodeStart {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_node_startup_" + name + "duration_seconds", Help: "[ALPHA] " + help + "; 0 if the Node was there before"})
		r.MustRegister(g)
		return g
	}
	return &nodeStart{
		boot: boot, began: began,
		preKubelet:       gauge("pre_kubelet_", "How long the machine took until it started the kubelet"),
		preRegistration:  gauge("pre_registration_", "How long the kubelet took until it asked for its Node to be made"),
		registration:     gauge("registration_", "How long it took until the Node was made"),
		postRegistration: gauge("post_registration_", "How long the Node took until it was ready"),
		all:              gauge("", "How long the machine took until its Node was ready"),
	}
}

// try notes that the Node is to be made.
func (n *nodeStart) try(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tried.IsZero() {
		n.tried = now
	}
}

// made notes that the Node was made.
func (n *nodeStart) made(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tried.IsZero() || !n.registered.IsZero() {
		return
	}
	n.registered = now
	if !n.boot.IsZero() {
		n.preKubelet.Set(n.began.Sub(n.boot).Seconds())
	}
	n.preRegistration.Set(n.tried.Sub(n.began).Seconds())
	n.registration.Set(now.Sub(n.tried).Seconds())
}

// shown notes whether the Node is ready, as the API has it.
func (n *nodeStart) shown(node *corev1.Node, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.registered.IsZero() || !n.ready.IsZero() {
		return
	}
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady || c.Status != corev1.ConditionTrue {
			continue
		}
		n.ready = now
		n.postRegistration.Set(now.Sub(n.registered).Seconds())
		if !n.boot.IsZero() {
			n.all.Set(now.Sub(n.boot).Seconds())
		}
	}
}
