package plugins

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/scheduler/framework"
)

func node(edit ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"disk": "ssd"}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("10"),
		}},
	}
	for _, e := range edit {
		e(n)
	}
	return n
}

func TestHints(t *testing.T) {
	c := framework.NewCluster()
	pod := func(name, cpu string, edit ...func(*corev1.Pod)) *framework.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": name}}}
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}
		for _, e := range edit {
			e(p)
		}
		return c.NewPod(p)
	}
	taint := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	}
	port := func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} }
	ssd := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }
	hdd := func(n *corev1.Node) { n.Labels["disk"] = "hdd" }
	apartFromWeb := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: "disk", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		}}}}
	}
	even := func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: "disk", WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		}}
	}
	withClaim := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "mine"}}}}
	}
	restartsAll := func(p *corev1.Pod) {
		p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}
	}
	able := func(n *corev1.Node) { n.Status.DeclaredFeatures = []string{"RestartAllContainersOnContainerExits"} }
	claim := func(namespace, name string) *framework.Event {
		return &framework.Event{Action: framework.VolumeChanged, Claim: &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}}
	}
	gone := func(p *framework.Pod) *framework.Event {
		return &framework.Event{Action: framework.PodGone, Pod: p}
	}
	for _, x := range []struct {
		name   string
		plugin framework.Hinter
		event  *framework.Event
		pod    *framework.Pod
		want   bool
	}{
		{"fit: a pod goes", &NodeResourcesFit{cluster: c}, gone(pod("x", "1")), pod("p", "1"), true},
		{"fit: a node that is large enough", &NodeResourcesFit{cluster: c}, &framework.Event{Action: framework.NodeAdded, Node: node()}, pod("p", "2"), true},
		{"fit: a node that is too small", &NodeResourcesFit{cluster: c}, &framework.Event{Action: framework.NodeAdded, Node: node()}, pod("p", "3"), false},
		{"fit: labels", &NodeResourcesFit{cluster: c}, &framework.Event{Action: framework.NodeLabels, OldNode: node(), Node: node()}, pod("p", "1"), false},
		{"taints: taken off", &TaintToleration{c}, &framework.Event{Action: framework.NodeTaints, OldNode: node(taint), Node: node()}, pod("p", "1"), true},
		{"taints: put on", &TaintToleration{c}, &framework.Event{Action: framework.NodeTaints, OldNode: node(), Node: node(taint)}, pod("p", "1"), false},
		{"affinity: a label comes", &NodeAffinity{}, &framework.Event{Action: framework.NodeLabels, OldNode: node(hdd), Node: node()}, pod("p", "1", ssd), true},
		{"affinity: a label goes", &NodeAffinity{}, &framework.Event{Action: framework.NodeLabels, OldNode: node(), Node: node(hdd)}, pod("p", "1", ssd), false},
		{"ports: freed", NodePorts{}, gone(pod("x", "1", port)), pod("p", "1", port), true},
		{"ports: none freed", NodePorts{}, gone(pod("x", "1")), pod("p", "1", port), false},
		{"cordon: lifted", NodeUnschedulable{}, &framework.Event{Action: framework.NodeTaints, Node: node()}, pod("p", "1"), true},
		{"apart: the other goes", &InterPodAffinity{cluster: c}, gone(pod("web", "1")), pod("p", "1", apartFromWeb), true},
		{"apart: a stranger goes", &InterPodAffinity{cluster: c}, gone(pod("db", "1")), pod("p", "1", apartFromWeb), false},
		{"kept apart: its enemy goes", &InterPodAffinity{cluster: c}, gone(pod("x", "1", apartFromWeb)), pod("web", "1"), true},
		{"spread: one of them goes", &PodTopologySpread{cluster: c}, gone(pod("web", "1")), pod("p", "1", even), true},
		{"spread: a stranger goes", &PodTopologySpread{cluster: c}, gone(pod("db", "1")), pod("p", "1", even), false},
		{"volumes: its claim", &VolumeBinding{}, claim("default", "mine"), pod("p", "1", withClaim), true},
		{"volumes: another claim", &VolumeBinding{}, claim("default", "other"), pod("p", "1", withClaim), false},
		{"volumes: another namespace's", &VolumeBinding{}, claim("other", "mine"), pod("p", "1", withClaim), false},
		{"features: declared", NodeDeclaredFeatures{}, &framework.Event{Action: framework.NodeUpdated, OldNode: node(), Node: node(able)}, pod("p", "1", restartsAll), true},
		{"features: still not", NodeDeclaredFeatures{}, &framework.Event{Action: framework.NodeUpdated, OldNode: node(), Node: node()}, pod("p", "1", restartsAll), false},
		{"features: a pod goes", NodeDeclaredFeatures{}, gone(pod("x", "1")), pod("p", "1", restartsAll), false},
		{"gates: anything", SchedulingGates{}, gone(pod("x", "1")), pod("p", "1"), false},
	} {
		t.Run(x.name, func(t *testing.T) {
			if got := x.plugin.Hint(x.event, x.pod); got != x.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
