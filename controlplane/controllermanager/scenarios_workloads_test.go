package controllermanager

import (
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const orphan = metav1.DeletePropagationOrphan

// hash is the name that a template gets.
var hash = regexp.MustCompile(`\b[0-9a-f]{8,10}\b`)

var collected = []string{"garbage-collector-controller"}

var workloadScenarios = []scenario{
	{
		name: "replicaset", of: []string{"replicaset-controller"}, with: collected, world: kubelets, anew: apps + "replicasets/web",
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(apps+"replicasets", "{metadata: {name: web}, spec: {replicas: 3, "+webOfImage+"}}")
			},
			func(c *cluster) { c.merge(apps+"replicasets/web", `{"spec":{"replicas":1}}`) },
			func(c *cluster) {
				c.merge(apps+"replicasets/web", `{"spec":{"replicas":2,"minReadySeconds":5}}`)
			},
		},
	},
	{
		name: "replicaset adopts and releases", of: []string{"replicaset-controller"}, world: kubelets, inOrder: true,
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(core+"pods", "{metadata: {name: orphan, labels: {app: web}}, spec: {containers: [{name: c, image: a}]}}")
			},
			func(c *cluster) {
				c.create(apps+"replicasets", "{metadata: {name: web}, spec: {replicas: 2, "+webOfImage+"}}")
			},
			func(c *cluster) { c.merge(core+"pods/orphan", `{"metadata":{"labels":{"app":"other"}}}`) },
		},
		recreates: true,
	},
	{
		name: "replicationcontroller", of: []string{"replicationcontroller-controller"}, with: collected, world: kubelets, anew: core + "replicationcontrollers/web",
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(core+"replicationcontrollers", "{metadata: {name: web}, spec: {replicas: 2, template: "+podOfWeb+"}}")
			},
			func(c *cluster) { c.merge(core+"replicationcontrollers/web", `{"spec":{"replicas":1}}`) },
		},
	},
	{
		name: "deployment", of: []string{"deployment-controller"}, with: []string{"replicaset-controller", "garbage-collector-controller"}, world: kubelets, inOrder: true,
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(apps+"deployments", "{metadata: {name: web}, spec: {replicas: 3, revisionHistoryLimit: 1, "+webOfImage+"}}")
			},
			func(c *cluster) { c.image("deployments/web", "b") },
			func(c *cluster) { c.merge(apps+"deployments/web", `{"spec":{"replicas":4}}`) },
			func(c *cluster) { c.image("deployments/web", "c") },
		},
		// Which pods go first is chosen by what is seen of them.
		recreates: true,
	},
	{
		name: "deployment made anew", chosen: hash, // another where the former's ReplicaSet is still there
		of: []string{"deployment-controller"}, with: []string{"replicaset-controller", "garbage-collector-controller"}, world: kubelets,
		anew: apps + "deployments/web",
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(apps+"deployments", "{metadata: {name: web}, spec: {replicas: 2, strategy: {type: Recreate}, "+webOfImage+"}}")
			},
			func(c *cluster) { c.merge(apps+"deployments/web", `{"spec":{"replicas":1}}`) },
		},
	},
	{
		name: "deployment adopts", of: []string{"deployment-controller"}, with: []string{"replicaset-controller", "garbage-collector-controller"}, world: kubelets, inOrder: true,
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(apps+"deployments", "{metadata: {name: web}, spec: {replicas: 2, "+webOfImage+"}}")
			},
			func(c *cluster) { c.remove(apps+"deployments/web", orphan) },
			func(c *cluster) {
				c.create(apps+"deployments", "{metadata: {name: web}, spec: {replicas: 1, "+webOfImage+"}}")
			},
		},
	},
	{
		name: "daemonset", of: []string{"daemonset-controller"}, with: collected, world: kubelets, inOrder: true,
		steps: []func(*cluster){
			func(c *cluster) {
				for _, n := range []string{"n1", "n2"} {
					c.healthy(n)
				}
				c.create(apps+"daemonsets", "{metadata: {name: web}, spec: {"+webOfImage+"}}")
			},
			func(c *cluster) { c.image("daemonsets/web", "b") },
			func(c *cluster) { c.healthy("n3") },
			func(c *cluster) { c.remove(nodes + "/n1") },
		},
		atRest: 30,
	},
	{
		name: "daemonset made anew", chosen: hash, of: []string{"daemonset-controller"}, with: collected, world: kubelets, anew: apps + "daemonsets/web",
		steps: []func(*cluster){
			func(c *cluster) {
				c.healthy("n1")
				c.create(apps+"daemonsets", "{metadata: {name: web}, spec: {"+webOfImage+"}}")
			},
			func(c *cluster) { c.healthy("n2") },
		},
	},
	{
		name: "statefulset", of: []string{"statefulset-controller"}, with: collected, world: kubelets, inOrder: true,
		steps: []func(*cluster){
			func(c *cluster) { c.create(apps+"statefulsets", database("replicas: 2")) },
			func(c *cluster) { c.image("statefulsets/web", "b") },
			func(c *cluster) { c.merge(apps+"statefulsets/web", `{"spec":{"replicas":3}}`) },
			func(c *cluster) { c.merge(apps+"statefulsets/web", `{"spec":{"replicas":1}}`) },
		},
	},
	{
		name: "statefulset and its claims", of: []string{"statefulset-controller"}, with: []string{"garbage-collector-controller", "persistentvolumeclaim-protection-controller"}, world: kubelets,
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(apps+"statefulsets", database("podManagementPolicy: Parallel, replicas: 2, persistentVolumeClaimRetentionPolicy: {whenScaled: Delete, whenDeleted: Delete}"))
			},
			func(c *cluster) { c.merge(apps+"statefulsets/web", `{"spec":{"replicas":1}}`) },
			func(c *cluster) { c.merge(apps+"statefulsets/web", `{"spec":{"replicas":2}}`) },
			func(c *cluster) {
				c.merge(apps+"statefulsets/web", `{"spec":{"persistentVolumeClaimRetentionPolicy":{"whenScaled":"Retain","whenDeleted":"Retain"}}}`)
			},
		},
		recreates: true,
	},
	{
		name: "statefulset made anew", chosen: hash, inOrder: true, of: []string{"statefulset-controller"}, with: collected, world: kubelets, anew: apps + "statefulsets/web",
		steps: []func(*cluster){
			func(c *cluster) { c.create(apps+"statefulsets", database("replicas: 2")) },
			func(c *cluster) { c.merge(apps+"statefulsets/web", `{"spec":{"replicas":1}}`) },
		},
	},
	{
		name: "disruption", of: []string{"disruption-controller"}, with: []string{"replicaset-controller", "garbage-collector-controller"}, world: kubelets,
		anew: "/apis/policy/v1/namespaces/default/poddisruptionbudgets/b", groups: []string{"apps"},
		steps: []func(*cluster){
			func(c *cluster) {
				c.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", "{metadata: {name: b}, spec: {maxUnavailable: 40%, selector: {matchLabels: {app: web}}}}")
				c.create(apps+"replicasets", "{metadata: {name: web}, spec: {replicas: 3, "+webOfImage+"}}")
			},
			func(c *cluster) {
				c.merge("/apis/policy/v1/namespaces/default/poddisruptionbudgets/b", `{"spec":{"maxUnavailable":1}}`)
			},
			func(c *cluster) { c.merge(apps+"replicasets/web", `{"spec":{"replicas":5}}`) },
		},
	},
}

// image changes the image of a workload's template.
func (c *cluster) image(workload, image string) {
	c.Helper()
	c.merge(apps+workload, `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"`+image+`"}]}}}}`)
}

func database(spec string) string {
	return "{metadata: {name: web}, spec: {serviceName: web, " + spec + ", " + webOfImage + `, volumeClaimTemplates:
  [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]}}`
}
