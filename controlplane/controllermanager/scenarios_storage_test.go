package controllermanager

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagemigrationv1beta1 "k8s.io/api/storagemigration/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"knarr/controlplane/controllermanager/storageversiongc"
	"knarr/internal/features"
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
		name: "volumes that are emptied", of: []string{"persistentvolume-binder-controller"}, with: protectors[:2], inOrder: true, startsOver: true,
		world: func(c *cluster) { c.endAll(corev1.PodSucceeded) },
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(volumes, pvOf("v", "persistentVolumeReclaimPolicy: Recycle, hostPath: {path: /srv/v}"))
				c.create(core+"persistentvolumeclaims", "{metadata: {name: a}, "+claimSpec+"}")
			},
			func(c *cluster) { c.remove(core + "persistentvolumeclaims/a") },
			func(c *cluster) { c.create(core+"persistentvolumeclaims", "{metadata: {name: b}, "+claimSpec+"}") },
		},
	},
	{
		name: "volumes of host paths", of: []string{"persistentvolume-binder-controller"}, with: protectors[:2], inOrder: true,
		configure: func(c *Config) { c.PersistentVolume.HostPaths = hostPaths },
		steps: []func(*cluster){
			func(c *cluster) {
				c.Cleanup(func() { _ = os.RemoveAll(hostPaths) })
				c.create(classes, "{metadata: {name: here}, "+hostPathClass+"}")
				c.create(core+"persistentvolumeclaims", claimOfClass("a", "here"))
				c.create(core+"persistentvolumeclaims", claimOfClass("b", "here"))
			},
			func(c *cluster) { c.remove(core + "persistentvolumeclaims/a") },
			func(c *cluster) {
				if left, err := os.ReadDir(hostPaths); err != nil || len(left) != 1 {
					c.Errorf("directories %v, want that of the other claim: %v", left, err)
				}
			},
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
	{
		name: "what API servers say of storage versions", of: []string{storageversiongc.Name}, inOrder: true,
		enabled: storageVersionFeature,
		steps: []func(*cluster){
			func(c *cluster) {
				c.identity("a")
				c.identity("b")
				c.storageVersion("example.com.bars", "v1", "a", "b")
				c.storageVersion("example.com.foos", "v1", "b")
			},
			func(c *cluster) {
				c.storageVersion("example.com.bars", "v1", "nobody")
				c.storageVersion("example.com.bazs", "v1", "nobody")
			},
			func(c *cluster) { c.remove("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/b") },
		},
	},
	{
		name: "stored versions", of: []string{"storage-version-migrator-controller"}, inOrder: true,
		apis: []schema.GroupVersion{storagemigrationv1beta1.SchemeGroupVersion}, enabled: features.Set{features.StorageVersionMigrator: true},
		// Up to which revision objects were written anew.
		chosen: regexp.MustCompile(`"resourceVersion":"\d+"`), anew: migrations + "/m",
		steps: []func(*cluster){
			func(c *cluster) {
				c.create(definitions, "{metadata: {name: foos.example.com}, spec: {group: example.com, scope: Namespaced, names: {plural: foos, singular: foo, kind: Foo, listKind: FooList}, "+storedVersion("v1")+"}}")
			},
			func(c *cluster) {
				for _, name := range []string{"a", "b", "c"} {
					c.create("/apis/example.com/v1/namespaces/default/foos", "{metadata: {name: "+name+"}}")
				}
				body, err := yaml.YAMLToJSON([]byte("{spec: {" + storedVersion("v2") + "}}"))
				c.no(err)
				c.merge(definitions+"/foos.example.com", string(body))
			},
			func(c *cluster) {
				c.create(migrations, "{metadata: {name: m}, spec: {resource: {group: example.com, resource: foos}}}")
			},
			func(c *cluster) {
				c.create(migrations, "{metadata: {name: nothing}, spec: {resource: {group: example.com, resource: bars}}}")
			},
		},
	},
}

const (
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	migrations  = "/apis/storagemigration.k8s.io/v1beta1/storageversionmigrations"
)

// storedVersion are the versions of a definition, of which that one is stored.
func storedVersion(name string) string {
	text := "versions: ["
	for _, v := range []string{"v1", "v2"} {
		text += fmt.Sprintf("{name: %s, served: true, storage: %t, schema: {openAPIV3Schema: {type: object}}}, ", v, v == name)
	}
	return text + "]"
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
