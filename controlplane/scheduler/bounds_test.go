package scheduler

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"knarr/controlplane/scheduler/framework"
)

// pass decides about a pod, and takes it out of the cluster again.
func (s *core) pass(t *testing.T, o *corev1.Pod) *refusal {
	t.Helper()
	p := s.cluster.NewPod(o)
	defer s.cluster.Release(p)
	_, why := s.decide(p)
	return why
}

func inUse() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// preferring has the pod ask for a node in some hundred kilobytes.
func preferring(n int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		values := make([]string, 8000)
		for i := range values {
			values[i] = fmt.Sprintf("v%060d", n*len(values)+i)
		}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
			{Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "k", Operator: corev1.NodeSelectorOpIn, Values: values}}}},
		}}}
	}
}

// TestRemembersLittleOfLargePods: what is remembered of pods that are gone is as long
// for a pod of 500 kB as for any other.
func TestRemembersLittleOfLargePods(t *testing.T) {
	s := benchCore(2, noSiblings{})
	before := inUse()
	for i := range 40 {
		s.pass(t, testPod(fmt.Sprint(i), "1", preferring(i)))
	}
	if len(s.results) != 40 {
		t.Errorf("%d answers are remembered", len(s.results))
	}
	if grown := inUse() - before; grown > 4<<20 {
		t.Errorf("%d bytes are left of 40 pods", grown)
	}
	runtime.KeepAlive(s)
}

// wanting asks for resources that no node has.
func wanting(n int, name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for i := range n {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceName(fmt.Sprintf("example.com/%s-%d", name, i))] = resource.MustParse("1")
		}
	}
}

// TestNamesFewReasons: a node that lacks thousands of resources says ten of them, and
// what nodes said is remembered within bounds.
func TestNamesFewReasons(t *testing.T) {
	s := benchCore(20, noSiblings{})
	s.mostReasonBytes = 50_000 // of five of them
	for i := range 20 {
		why := s.pass(t, testPod(fmt.Sprint(i), "1", wanting(3000, fmt.Sprint("x", i%10))))
		if n := len(why.reasons); n != maxReasonsNamed {
			t.Fatalf("%d reasons: %s", n, why)
		}
		for reason, nodes := range why.reasons {
			if !strings.HasPrefix(reason, "Insufficient example.com/") || nodes != 20 {
				t.Fatalf("%d nodes: %s", nodes, reason)
			}
		}
		if s.reasonBytes > s.mostReasonBytes {
			t.Fatalf("%d bytes of reasons are remembered", s.reasonBytes)
		}
	}
	sum := 0
	for _, a := range s.results {
		own := 0
		for _, st := range a.status {
			own += size(st)
		}
		if own != a.reasonBytes {
			t.Errorf("%d bytes of reasons, counted as %d", own, a.reasonBytes)
		}
		sum += own
	}
	if sum != s.reasonBytes || len(s.results) == 0 || len(s.results) != len(s.answered) {
		t.Errorf("%d bytes of %d answers, counted as %d of %d", sum, len(s.results), s.reasonBytes, len(s.answered))
	}
}

// maxReasonsNamed is how many resources a refusal names.
const maxReasonsNamed = 10

// TestMessageHasALimit: a pod's condition is no larger for its reasons.
func TestMessageHasALimit(t *testing.T) {
	r := &refusal{nodes: 1, reasons: map[string]int{}}
	for i := range 5000 {
		r.reasons[fmt.Sprint("Insufficient example.com/", i)] = 1
	}
	if m := r.String(); len(m) != maxMessage || !strings.HasPrefix(m, "0/1 nodes are available: 1 Insufficient example.com/0, ") {
		t.Errorf("%d bytes: %.100s", len(m), m)
	}
	r = &refusal{nodes: 1, before: framework.Refuse(framework.Unresolvable, "x", strings.Repeat("y", 1<<20))}
	if m := r.String(); len(m) != maxMessage {
		t.Errorf("%d bytes", len(m))
	}
}

// TestPodsOnUnknownNodes: a pod that names a node that nobody knows, and that has
// terms about all others, keeps none of them from being placed.
func TestPodsOnUnknownNodes(t *testing.T) {
	s := benchCore(2, noSiblings{})
	s.cluster.Topology(corev1.LabelHostname) // before the node is met
	s.cluster.Place(s.cluster.NewPod(testPod("ghost", "1", near(corev1.LabelHostname, true, true))), "nowhere")
	if why := s.pass(t, testPod("p", "1", near(corev1.LabelHostname, false, false))); why != nil {
		t.Error(why)
	}
}
