package controllermanager

import (
	"regexp"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// healthy makes a node that is ready and without taints.
func (c *cluster) healthy(name string) {
	c.Helper()
	c.create(nodes, "{metadata: {name: "+name+"}}")
	c.condition(name, corev1.NodeReady, corev1.ConditionTrue)
	c.merge(nodes+"/"+name, `{"spec":{"taints":null}}`)
}

// condition is what a kubelet reports of its node.
func (c *cluster) condition(name string, kind corev1.NodeConditionType, is corev1.ConditionStatus) {
	c.Helper()
	c.status(name, func(n *corev1.Node) {
		n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: is, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()})
	})
}

// heartbeats renews the leases of nodes that are labelled as alive.
func heartbeats(c *cluster) {
	c.Helper()
	list, err := c.client.CoreV1().Nodes().List(c.ctx, metav1.ListOptions{LabelSelector: "alive"})
	c.no(err)
	leases := c.client.CoordinationV1().Leases("kube-node-lease")
	for _, n := range list.Items {
		lease, err := leases.Get(c.ctx, n.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = leases.Create(c.ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NowMicro())}}, metav1.CreateOptions{})
			c.no(err)
			continue
		}
		c.no(err)
		lease.Spec.RenewTime = new(metav1.NowMicro())
		_, err = leases.Update(c.ctx, lease, metav1.UpdateOptions{})
		c.no(err)
	}
}

func nodeWorld(c *cluster) {
	heartbeats(c)
	c.bury()
}

// alive makes nodes that renew their leases.
func (c *cluster) alive(names ...string) {
	c.Helper()
	for _, n := range names {
		c.healthy(n)
		c.merge(nodes+"/"+n, `{"metadata":{"labels":{"alive":""}}}`)
	}
	heartbeats(c)
}

// On is a pod on a node, which runs.
func (c *cluster) on(node, pod, tolerations string) {
	c.Helper()
	c.create(core+"pods", "{metadata: {name: "+pod+"}, spec: {nodeName: "+node+", tolerations: ["+tolerations+"], containers: [{name: c, image: a}]}}")
	c.makeReady()
}

const brief = "{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 20}"

// reporting nodes say that they are ready.
func reporting(c *cluster) {
	c.Helper()
	list, err := c.client.CoreV1().Nodes().List(c.ctx, metav1.ListOptions{})
	c.no(err)
	for _, n := range list.Items {
		if len(n.Status.Conditions) == 0 {
			c.condition(n.Name, corev1.NodeReady, corev1.ConditionTrue)
			c.merge(nodes+"/"+n.Name, `{"spec":{"taints":null}}`)
		}
	}
}

// distinctRanges fails where two nodes have one range.
func distinctRanges(c *cluster) {
	c.Helper()
	list, err := c.client.CoreV1().Nodes().List(c.ctx, metav1.ListOptions{})
	c.no(err)
	of := map[string]string{}
	for _, n := range list.Items {
		if other := of[n.Spec.PodCIDR]; n.Spec.PodCIDR != "" && other != "" {
			c.Errorf("%s and %s have %s", other, n.Name, n.Spec.PodCIDR)
		}
		of[n.Spec.PodCIDR] = n.Name
	}
}

var nodeScenarios = []scenario{
	{
		name: "silent nodes", of: []string{"node-lifecycle-controller"}, with: []string{"taint-eviction-controller"}, world: nodeWorld, inOrder: true,
		steps: []func(*cluster){
			func(c *cluster) {
				c.alive("n1", "n2", "n3")
				c.on("n1", "p1", brief)
				c.on("n2", "p2", "")
			},
			func(c *cluster) { c.merge(nodes+"/n1", `{"metadata":{"labels":{"alive":null}}}`) },
			func(c *cluster) {
				c.merge(nodes+"/n1", `{"metadata":{"labels":{"alive":""}}}`)
				c.condition("n1", corev1.NodeReady, corev1.ConditionTrue)
				c.condition("n2", corev1.NodeMemoryPressure, corev1.ConditionTrue)
				c.merge(nodes+"/n3", `{"spec":{"unschedulable":true}}`)
			},
		},
		quiet: 7 * time.Minute,
	},
	{
		name: "tainted nodes", of: []string{"taint-eviction-controller"}, world: nodeWorld,
		steps: []func(*cluster){
			func(c *cluster) {
				c.alive("n1", "n2")
				c.on("n1", "gone", "")
				c.on("n1", "later", "{key: x, operator: Exists, effect: NoExecute, tolerationSeconds: 60}")
				c.on("n1", "stays", "{key: x, operator: Exists, effect: NoExecute}")
				c.on("n2", "elsewhere", "")
			},
			func(c *cluster) {
				c.merge(nodes+"/n1", `{"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`)
			},
			func(c *cluster) { c.merge(nodes+"/n2", `{"spec":{"taints":[{"key":"y","effect":"NoSchedule"}]}}`) },
		},
	},
	{
		name: "pods without nodes", of: []string{"pod-garbage-collector-controller"}, world: func(c *cluster) { heartbeats(c) },
		configure: func(c *Config) { c.TerminatedPodThreshold = 1 },
		steps: []func(*cluster){
			func(c *cluster) {
				c.alive("n1", "n2")
				for _, p := range []string{"p1", "p2"} {
					c.on("n1", p, "")
				}
				c.on("n2", "p3", "")
				c.on("n2", "p4", "")
				c.on("n2", "p5", "")
			},
			func(c *cluster) { c.remove(nodes + "/n1") },
			func(c *cluster) {
				for _, p := range []string{"p3", "p4"} {
					c.merge(core+"pods/"+p+"/status", `{"status":{"phase":"Succeeded"}}`)
					time.Sleep(2 * time.Second)
				}
			},
		},
		atRest: 500,
	},
	{
		name: "ranges of nodes", of: []string{"node-ipam-controller"}, inOrder: true,
		chosen: regexp.MustCompile(`10\.42\.\d+\.0/24`), world: distinctRanges,
		steps: []func(*cluster){
			func(c *cluster) { c.healthy("n1") },
			func(c *cluster) { c.healthy("n2") },
			func(c *cluster) { c.remove(nodes + "/n1") },
			func(c *cluster) { c.healthy("n3") },
		},
	},
	{
		name: "ttl of nodes", of: []string{"ttl-controller"}, world: reporting, anew: nodes + "/n1",
		steps: []func(*cluster){
			func(c *cluster) { c.healthy("n1"); c.healthy("n2") },
			func(c *cluster) {
				c.merge(nodes+"/n1", `{"metadata":{"annotations":{"node.alpha.kubernetes.io/ttl":"7"}}}`)
			},
		},
	},
}
