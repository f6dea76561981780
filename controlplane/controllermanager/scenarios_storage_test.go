package controllermanager

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const claimSpec = "spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}"

// attachers do what drivers do, and kubelets with what is attached.
func attachers(c *cluster) {
	c.attachAll()
	if got := c.disks(); strings.Contains(got, "x attached to a") && strings.Contains(got, "x attached to b") {
		c.Errorf("one volume on two nodes: %s", got)
	}
	c.bury()
}

func pvOf(name, more string) string {
	return "{metadata: {name: " + name + "}, spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], " + more + "}}"
}

var storageScenarios = []scenario{
	{
		name: "claims and volumes", of: []string{"persistentvolume-binder-controller"}, with: protectors[:2],
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(core+"persistentvolumeclaims", "{metadata: {name: a}, "+claimSpec+"}")
				c.create(volumes, pvOf("v", "hostPath: {path: /srv/v}"))
			},
			func(c *cluster) { c.create(core+"persistentvolumeclaims", "{metadata: {name: b}, "+claimSpec+"}") },
			func(c *cluster) { c.remove(core + "persistentvolumeclaims/a") },
		},
		inOrder: true,
	},
	{
		name: "volume of a claim that is made anew", of: []string{"persistentvolume-binder-controller"}, with: protectors[:2], inOrder: true,
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(volumes, pvOf("v", "hostPath: {path: /srv/v}"))
				c.create(core+"persistentvolumeclaims", "{metadata: {name: a}, "+claimSpec+"}")
			},
			func(c *cluster) { c.makeAnew(core + "persistentvolumeclaims/a") },
			func(c *cluster) { c.merge(volumes+"/v", `{"spec":{"claimRef":null}}`) },
		},
	},
	{
		name: "attached volumes", of: []string{"persistentvolume-attach-detach-controller"}, with: attacher[1:2], world: attachers, inOrder: true,
		steps: []func(*cluster){
			func(c *cluster) {
				c.join("a")
				c.join("b")
				c.create(volumes, pvOf("x", "csi: {driver: d.example.com, volumeHandle: disk x}, claimRef: {namespace: default, name: x}"))
				c.create(core+"persistentvolumeclaims", "{metadata: {name: x}, spec: {volumeName: x, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}")
				c.place("p", "a", "x")
			},
			func(c *cluster) { c.uses("a", "x") },
			func(c *cluster) { c.place("q", "b", "x"); c.kill("p") },
			func(c *cluster) { c.uses("a") },
			func(c *cluster) { c.uses("b", "x") },
			func(c *cluster) { c.kill("q"); c.uses("b") },
			func(c *cluster) { c.place("r", "a", "x") },
		},
	},
	{
		name: "claims of ephemeral volumes", of: []string{"ephemeral-volume-controller"}, with: collected,
		anew: core + "pods/p",
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(core+"pods", "{metadata: {name: p}, spec: {containers: [{name: c, image: a}], volumes: [{name: own, ephemeral: {volumeClaimTemplate: {"+claimSpec+"}}}]}}")
			},
			func(c *cluster) {
				c.create(core+"pods", "{metadata: {name: q}, spec: {containers: [{name: c, image: a}], volumes: [{name: own, ephemeral: {volumeClaimTemplate: {"+claimSpec+"}}}]}}")
			},
		},
		world: dropProtection,
	},
	{
		name: "claims that grow", of: []string{"persistentvolume-expander-controller"}, with: []string{"persistentvolume-binder-controller"},
		steps: []func(*cluster){
			func(c *cluster) {
				c.create("/apis/storage.k8s.io/v1/storageclasses", "{metadata: {name: gold}, provisioner: kubernetes.io/aws-ebs, allowVolumeExpansion: true}")
				c.create(volumes, pvOf("v", "storageClassName: gold, awsElasticBlockStore: {volumeID: v1}"))
			},
			func(c *cluster) {
				c.create(core+"persistentvolumeclaims", "{metadata: {name: a}, spec: {storageClassName: gold, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}")
			},
			func(c *cluster) {
				c.merge(core+"persistentvolumeclaims/a", `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
			},
			func(c *cluster) {
				c.merge(core+"persistentvolumeclaims/a", `{"spec":{"resources":{"requests":{"storage":"3Gi"}}}}`)
			},
		},
		inOrder: true,
	},
	{
		name: "protected claims", of: []string{"persistentvolumeclaim-protection-controller"}, world: func(c *cluster) { c.bury() }, inOrder: true,
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(core+"persistentvolumeclaims", "{metadata: {name: a}, "+claimSpec+"}")
				c.create(core+"persistentvolumeclaims", "{metadata: {name: b}, "+claimSpec+"}")
				c.merge(core+"persistentvolumeclaims/b", `{"metadata":{"finalizers":null}}`)
				c.place("p", "n", "a")
			},
			func(c *cluster) {
				c.remove(core + "persistentvolumeclaims/a")
				c.remove(core + "persistentvolumeclaims/b")
			},
			func(c *cluster) { c.kill("p") },
		},
	},
	{
		name: "protected volumes", of: []string{"persistentvolume-protection-controller"}, inOrder: true,
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(volumes, pvOf("v", "hostPath: {path: /srv/v}"))
				c.create(volumes, pvOf("w", "hostPath: {path: /srv/w}"))
				c.merge(volumes+"/w", `{"metadata":{"finalizers":null}}`)
				c.merge(volumes+"/v/status", `{"status":{"phase":"Bound"}}`)
			},
			func(c *cluster) { c.remove(volumes + "/v"); c.remove(volumes + "/w") },
			func(c *cluster) { c.merge(volumes+"/v/status", `{"status":{"phase":"Released"}}`) },
		},
	},
	{
		name: "protected classes", of: []string{"volumeattributesclass-protection-controller"}, inOrder: true,
		steps: []func(*cluster){
			func(c *cluster) {
				c.create("/apis/storage.k8s.io/v1/volumeattributesclasses", "{metadata: {name: fast}, driverName: d.example.com, parameters: {a: b}}")
				c.create(core+"persistentvolumeclaims", "{metadata: {name: a}, spec: {volumeAttributesClassName: fast, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}")
			},
			func(c *cluster) { c.remove("/apis/storage.k8s.io/v1/volumeattributesclasses/fast") },
			func(c *cluster) { c.remove(core + "persistentvolumeclaims/a"); dropProtection(c) },
			func(c *cluster) {},
		},
	},
}

// dropProtection lets claims that are being deleted go, as their protection does
// that is not part of a scenario.
func dropProtection(c *cluster) {
	c.Helper()
	list, err := c.client.CoreV1().PersistentVolumeClaims("default").List(c.ctx, metav1.ListOptions{})
	c.no(err)
	for _, o := range list.Items {
		if o.DeletionTimestamp != nil && len(o.Finalizers) > 0 {
			c.merge(core+"persistentvolumeclaims/"+o.Name, `{"metadata":{"finalizers":null}}`)
		}
	}
	c.bury()
}
