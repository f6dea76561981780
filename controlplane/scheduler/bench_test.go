package scheduler

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"knarr/controlplane/scheduler/framework"
	"knarr/controlplane/scheduler/plugins"
)

// noSiblings spreads nothing by default.
type noSiblings struct{}

func (noSiblings) SelectorOf(*framework.Shape) labels.Selector { return nil }

// siblings takes all pods with the same app to belong together.
type siblings struct{}

func (siblings) SelectorOf(s *framework.Shape) labels.Selector {
	return labels.SelectorFromSet(labels.Set{"app": s.Labels["app"]})
}

func benchCore(nodes int, s plugins.Selectors) *core {
	c := framework.NewCluster()
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		c.SetNode(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				corev1.LabelHostname: name, corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%10),
			}},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110"),
			}},
		})
	}
	return newCore(c, plugins.Table(c, s, nil))
}

func benchPod(i int, app string, edit func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", i), Namespace: "default", UID: types.UID(fmt.Sprint(i)), Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
		}}}},
	}
	if edit != nil {
		edit(p)
	}
	return p
}

// BenchmarkDecide places pods on 1,000 nodes, from reading the pod to having
// it counted.
func BenchmarkDecide(b *testing.B) {
	like := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	term := corev1.PodAffinityTerm{TopologyKey: corev1.LabelTopologyZone, LabelSelector: like}
	for _, c := range []struct {
		name string
		apps int
		s    plugins.Selectors
		edit func(*corev1.Pod)
	}{
		{"basic", 1, noSiblings{}, nil},
		{"hundred templates", 100, noSiblings{}, nil},
		{"every pod another", 5000, noSiblings{}, nil},
		{"every pod another, apart from its like", 5000, noSiblings{}, func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}},
			}}}
		}},
		{"of one service", 1, siblings{}, nil},
		{"spread", 1, noSiblings{}, func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
				{MaxSkew: 5, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: like},
				{MaxSkew: 5, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: like},
			}
		}},
		{"affinity", 1, noSiblings{}, func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}}
		}},
		{"preferred anti-affinity", 1, noSiblings{}, func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: term}},
			}}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var s *core
			var o *observer
			n := 0
			pods := make([]*corev1.Pod, 5000)
			for i := range pods {
				app := "web"
				if c.apps > 1 {
					app = fmt.Sprint("app-", i%c.apps)
				}
				pods[i] = benchPod(i, app, c.edit)
			}
			b.ReportAllocs()
			for b.Loop() {
				if n%len(pods) == 0 {
					b.StopTimer()
					s = benchCore(1000, c.s)
					o = newObserver(s)
					b.StartTimer()
				}
				p := s.cluster.NewPod(pods[n%len(pods)])
				node, why := s.decide(p)
				if node == nil {
					b.Fatal(why)
				}
				s.cluster.Place(p, node.Name)
				o.decided("default-scheduler", s.cycle.at.Sub(s.cycle.began))
				n++
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
		})
	}
}

// BenchmarkPreempt is what it takes to find victims on 1,000 full nodes.
func BenchmarkPreempt(b *testing.B) {
	s := benchCore(1000, noSiblings{})
	n := 0
	for _, node := range s.cluster.Nodes {
		for range 32 {
			p := benchPod(n, "web", func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1")
			})
			s.cluster.Place(s.cluster.NewPod(p), node.Name)
			n++
		}
	}
	p := s.cluster.NewPod(benchPod(n, "db", func(p *corev1.Pod) {
		p.Spec.Priority = new(int32(10))
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("2")
	}))
	for b.Loop() {
		_, why := s.decide(p)
		if why == nil {
			b.Fatal("the nodes are not full")
		}
		if c, not := s.preempt(p, why, nil); c == nil || len(c.victims) != 2 {
			b.Fatal(not)
		}
	}
}
