package kubelet

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
)

// TestNodeStart: the steps of a new Node's start are shown, once; those of one that was
// there are not.
func TestNodeStart(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	n := newNodeStart(prometheus.NewRegistry(), at(100), at(110))
	is := func(ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	}
	shows := func(when string, want ...float64) {
		t.Helper()
		var got []float64
		for _, g := range []prometheus.Gauge{n.preKubelet, n.preRegistration, n.registration, n.postRegistration, n.all} {
			var d dto.Metric
			if err := g.Write(&d); err != nil {
				t.Fatal(err)
			}
			got = append(got, d.GetGauge().GetValue())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	n.try(at(113))
	n.shown(is(corev1.ConditionTrue), at(114))
	shows("the Node was there", 0, 0, 0, 0, 0)
	n.try(at(115))
	n.made(at(118))
	n.shown(is(corev1.ConditionFalse), at(120))
	shows("made", 10, 3, 5, 0, 0)
	n.shown(is(corev1.ConditionTrue), at(125))
	n.made(at(130)) // after somebody deleted it
	n.shown(is(corev1.ConditionTrue), at(131))
	shows("ready", 10, 3, 5, 7, 25)
}

// TestNodeStartIsFed: a kubelet whose Node is new shows how long it took, and one that comes
// back does not.
func TestNodeStartIsFed(t *testing.T) {
	n := newNode(t)
	stop := n.start()
	took := func() float64 {
		var d dto.Metric
		if err := n.k.nodeStart.all.Write(&d); err != nil {
			t.Fatal(err)
		}
		return d.GetGauge().GetValue()
	}
	n.until("ready", func() bool { return took() > 0 })
	stop()
	n.start()
	n.until("ready", func() bool { return n.k.registered.isOpen() && n.nodeReady().Status == corev1.ConditionTrue })
	if got := took(); got != 0 {
		t.Errorf("the Node that was there took %v", got)
	}
}
