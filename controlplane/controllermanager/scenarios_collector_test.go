package controllermanager

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// owned is a ConfigMap that goes with others.
func (c *cluster) owned(name string, block bool, owners ...string) {
	c.Helper()
	refs := ""
	for _, o := range owners {
		var id types.UID = "00000000-0000-0000-0000-000000000000"
		if owner, err := c.client.CoreV1().ConfigMaps("default").Get(c.ctx, o, metav1.GetOptions{}); err == nil {
			id = owner.UID
		}
		refs += fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, name: %s, uid: %s, blockOwnerDeletion: %v},", o, id, block)
	}
	c.create(core+"configmaps", "{metadata: {name: "+name+", ownerReferences: ["+refs+"]}}")
}

const quotas = core + "resourcequotas"

var collectorScenarios = []scenario{
	{
		name: "garbage", of: collected, inOrder: true, groups: []string{"apps", "batch", "storage.k8s.io"},
		steps: []func(*cluster){
			func(c *cluster) {
				c.owned("root", false)
				c.owned("other", false)
				c.owned("child", true, "root")
				c.owned("grandchild", true, "child")
				c.owned("both", true, "root", "other")
				c.owned("ghosts", true, "ghost")
			},
			func(c *cluster) { c.remove(core+"configmaps/root", "Foreground") },
			func(c *cluster) { c.owned("leaf", false, "both"); c.owned("leaf2", false, "both") },
			func(c *cluster) { c.remove(core+"configmaps/both", orphan) },
			func(c *cluster) { c.remove(core+"configmaps/other", "Background") },
		},
	},
	{
		name: "garbage of an owner made anew", of: collected, inOrder: true, groups: []string{"apps"},
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(apps+"replicasets", "{metadata: {name: web}, spec: {replicas: 0, "+webOfImage+"}}")
				rs, err := c.client.AppsV1().ReplicaSets("default").Get(c.ctx, "web", metav1.GetOptions{})
				c.no(err)
				for i := range 3 {
					c.create(core+"configmaps", fmt.Sprintf("{metadata: {name: m%d, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: %s}]}}", i, rs.UID))
				}
			},
			func(c *cluster) {
				c.makeAnew(apps + "replicasets/web")
				rs, err := c.client.AppsV1().ReplicaSets("default").Get(c.ctx, "web", metav1.GetOptions{})
				c.no(err)
				c.create(core+"configmaps", fmt.Sprintf("{metadata: {name: living, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: %s}]}}", rs.UID))
			},
		},
	},
	{
		name: "namespace", of: []string{"namespace-controller"}, world: func(c *cluster) { c.bury() }, inOrder: true, groups: []string{"apps", "batch"},
		steps: []func(*cluster){
			func(c *cluster) {
				c.create("/api/v1/namespaces", "{metadata: {name: team}}")
				for i := range 3 {
					c.create("/api/v1/namespaces/team/configmaps", fmt.Sprintf("{metadata: {name: m%d}}", i))
				}
				c.create("/api/v1/namespaces/team/secrets", "{metadata: {name: held, finalizers: [example.test/hold]}}")
				c.create("/apis/apps/v1/namespaces/team/replicasets", "{metadata: {name: web}, spec: {replicas: 0, "+webOfImage+"}}")
			},
			func(c *cluster) {
				c.remove("/api/v1/namespaces/team")
				for range 6 {
					time.Sleep(10 * time.Second)
					c.beat()
				}
				c.merge("/api/v1/namespaces/team/secrets/held", `{"metadata":{"finalizers":null}}`)
			},
			func(c *cluster) { c.create("/api/v1/namespaces", "{metadata: {name: team}}") },
		},
		atRest: 20,
	},
	{
		name: "quotas", of: []string{"resourcequota-controller"}, anew: quotas + "/q", groups: []string{"apps"},
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(core+"pods", "{metadata: {name: p}, spec: {containers: [{name: c, image: a, resources: {requests: {cpu: 100m}}}]}}")
				c.create(core+"configmaps", "{metadata: {name: m}}")
				c.create(apps+"deployments", "{metadata: {name: web}, spec: {replicas: 0, "+webOfImage+"}}")
				c.create(quotas, "{metadata: {name: q}, spec: {hard: {pods: 5, configmaps: 9, services: 3, count/deployments.apps: 2, requests.cpu: 2}}}")
			},
			func(c *cluster) { c.kill("p"); c.remove(core + "configmaps/m") },
			func(c *cluster) { c.merge(quotas+"/q", `{"spec":{"hard":{"services":null,"secrets":"4"}}}`) },
			func(c *cluster) { time.Sleep(6 * time.Minute) },
		},
		quiet:  6 * time.Minute,
		atRest: 200,
	},
	{
		name: "autoscaler", of: []string{"horizontal-pod-autoscaler-controller"}, with: []string{"replicaset-controller", "garbage-collector-controller"}, world: kubelets,
		groups: []string{"apps", "external.metrics.k8s.io"}, inOrder: true, quiet: 7 * time.Minute, atRest: 3000,
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(apps+"replicasets", "{metadata: {name: web}, spec: {replicas: 2, "+webOfImage+"}}")
				c.serveMetrics("external.metrics.k8s.io", "queues", "Queue")
				c.queued("35")
				c.create("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", `{metadata: {name: web}, spec: {maxReplicas: 6, scaleTargetRef: {apiVersion: apps/v1, kind: ReplicaSet, name: web},
  metrics: [{type: External, external: {metric: {name: queues}, target: {type: AverageValue, averageValue: 10}}}]}}`)
			},
			func(c *cluster) { c.queued("10") },
			func(c *cluster) {
				c.merge("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/web", `{"spec":{"minReplicas":2}}`)
			},
		},
		recreates: true,
	},
}

// queued says how long the queue of the autoscaler is.
func (c *cluster) queued(n string) {
	c.Helper()
	c.measured("/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queues", "q",
		`{"apiVersion":"external.metrics.k8s.io/v1beta1","kind":"Queue","metadata":{"name":"q"},"value":"`+n+`"}`)
}
