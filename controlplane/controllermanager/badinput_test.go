package controllermanager

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/apitest/fault"
)

// A badInput is what users, drivers and clocks give controllers that cannot work.
type badInput struct {
	name string
	// of are the controllers that get it.
	of []string
	// world is what nodes and drivers do again and again.
	world func(c *cluster)
	// given gives it and waits for what its user sees, in upstream's words.
	given func(c *cluster)
	// calls is how many an hour of it takes at most, watches aside.
	calls int
	// cured, if set, does what the message asks for and waits until it works.
	cured func(c *cluster)
}

const (
	claims  = core + "persistentvolumeclaims"
	classes = "/apis/storage.k8s.io/v1/storageclasses"
	scalers = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
	// nobodys is the workload of a service account that is not there.
	nobodys = "selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {serviceAccountName: nobody, containers: [{name: c, image: a}]}}"
)

func claimOfClass(name, class string) string {
	return "{metadata: {name: " + name + "}, spec: {storageClassName: " + class + ", accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}"
}

// reported waits for an event of that reason, and compares its words.
func (c *cluster) reported(object, reason, want string) {
	c.Helper()
	if got := c.eventOf(object, reason); !strings.HasPrefix(got, want) {
		c.Errorf("%s of %s: %q, want %q", reason, object, got, want)
	}
}

// bound waits until a claim has a volume.
func (c *cluster) bound(claim string) {
	c.Helper()
	c.until(claim+" is bound", func() (bool, error) {
		o, err := c.client.CoreV1().PersistentVolumeClaims("default").Get(c.ctx, claim, metav1.GetOptions{})
		return err == nil && o.Status.Phase == corev1.ClaimBound, err
	})
}

// handedTo waits until a claim is its provisioner's.
func (c *cluster) handedTo(claim, provisioner string) {
	c.Helper()
	c.until(claim+" is handed over", func() (bool, error) {
		o, err := c.client.CoreV1().PersistentVolumeClaims("default").Get(c.ctx, claim, metav1.GetOptions{})
		return err == nil && o.Annotations["volume.kubernetes.io/storage-provisioner"] == provisioner, err
	})
}

// account makes the service account that workloads of nobody want, and waits for
// so many pods.
func (c *cluster) account(pods int) {
	c.Helper()
	c.create(core+"serviceaccounts", "{metadata: {name: nobody}}")
	time.Sleep(20 * time.Minute) // the longest that is waited between two tries
	c.until("the pods are made", func() (bool, error) { return len(c.pods()) == pods, fmt.Errorf("%d pods", len(c.pods())) })
}

// attachErrors have the attacher fail at each attachment, with a message without end.
func attachErrors(c *cluster) {
	c.Helper()
	list, err := c.client.StorageV1().VolumeAttachments().List(c.ctx, metav1.ListOptions{})
	c.no(err)
	for _, a := range list.Items {
		if a.Status.AttachError == nil {
			c.merge("/apis/storage.k8s.io/v1/volumeattachments/"+a.Name+"/status",
				`{"status":{"attached":false,"attachError":{"time":"2000-01-01T00:00:00Z","message":"rpc error: no disk`+strings.Repeat(" at all", 100)+`"}}}`)
		}
	}
}

var storageBadInputs = []badInput{
	{
		name: "claim without a class, no volume", of: binder, calls: 6,
		given: func(c *cluster) {
			c.create(claims, "{metadata: {name: a}, "+claimSpec+"}")
			c.reported("a", "FailedBinding", "no persistent volumes available for this claim and no storage class is set")
		},
		cured: func(c *cluster) { c.create(volumes, pvOf("v", "hostPath: {path: /srv/v}")); c.bound("a") },
	},
	{
		name: "claim larger than any volume", of: binder, calls: 6,
		given: func(c *cluster) {
			c.create(volumes, pvOf("v", "hostPath: {path: /srv/v}"))
			c.claim(claimOf("a", "900Ti"))
			c.reported("a", "FailedBinding", "no persistent volumes available for this claim and no storage class is set")
		},
		cured: func(c *cluster) { c.volume(volumeOf("w", "900Ti")); c.bound("a") },
	},
	{
		name: "class that is not there", of: binder, calls: 6,
		given: func(c *cluster) {
			c.create(claims, claimOfClass("a", "nope"))
			c.reported("a", "ProvisioningFailed", `storageclass.storage.k8s.io "nope" not found`)
		},
		cured: func(c *cluster) {
			c.create(classes, "{metadata: {name: nope}, provisioner: d.example.com}")
			c.handedTo("a", "d.example.com")
		},
	},
	{
		name: "provisioner that nobody serves", of: binder, calls: 6,
		given: func(c *cluster) {
			c.create(classes, "{metadata: {name: gold}, provisioner: d.example.com}")
			c.create(claims, claimOfClass("a", "gold"))
			c.reported("a", "ExternalProvisioning", "Waiting for a volume to be created either by the external provisioner 'd.example.com' or manually")
		},
		cured: func(c *cluster) {
			c.create(volumes, pvOf("v", "storageClassName: gold, claimRef: {namespace: default, name: a}, hostPath: {path: /srv/v}"))
			c.bound("a")
		},
	},
	{
		name: "class that provisions nothing", of: binder, calls: 6,
		given: func(c *cluster) {
			c.create(classes, "{metadata: {name: local}, provisioner: kubernetes.io/no-provisioner}")
			c.create(claims, claimOfClass("a", "local"))
			c.reported("a", "ProvisioningFailed", "no volume plugin matched name: kubernetes.io/no-provisioner")
		},
		cured: func(c *cluster) {
			c.create(volumes, pvOf("v", "storageClassName: local, hostPath: {path: /srv/v}"))
			c.bound("a")
		},
	},
	{
		name: "volume that does not fit the claim that names it", of: binder, calls: 6,
		given: func(c *cluster) {
			c.create(volumes, pvOf("v", "hostPath: {path: /srv/v}"))
			c.claim(claimOf("a", "2Gi", func(o *corev1.PersistentVolumeClaim) { o.Spec.VolumeName = "v" }))
			c.reported("a", "VolumeMismatch", `Cannot bind to requested volume "v": requested PV is too small`)
		},
		cured: func(c *cluster) {
			c.merge(volumes+"/v", `{"spec":{"capacity":{"storage":"2Gi"}}}`)
			c.bound("a")
		},
	},
	{
		name: "two claims of one volume", of: binder, calls: 6,
		given: func(c *cluster) {
			c.create(volumes, pvOf("v", "hostPath: {path: /srv/v}"))
			for _, name := range []string{"a", "b"} {
				c.claim(claimOf(name, "1Gi", func(o *corev1.PersistentVolumeClaim) { o.Spec.VolumeName = "v" }))
				time.Sleep(time.Second)
			}
			c.bound("a")
			c.reported("b", "FailedBinding", `volume "v" already bound to a different claim.`)
		},
	},
	{
		name: "ephemeral volume whose claim is another's", of: []string{"ephemeral-volume-controller", "serviceaccount-controller"}, calls: 30,
		given: func(c *cluster) {
			c.create(claims, "{metadata: {name: p-own}, "+claimSpec+"}")
			c.create(core+"pods", "{metadata: {name: p}, spec: {containers: [{name: c, image: a}], volumes: [{name: own, ephemeral: {volumeClaimTemplate: {"+claimSpec+"}}}]}}")
			c.reported("p", "FailedBinding", "ephemeral volume own: PVC default/p-own was not created for pod default/p")
		},
		cured: func(c *cluster) {
			c.remove(claims + "/p-own")
			dropProtection(c)
			time.Sleep(20 * time.Minute)
			o, err := c.client.CoreV1().PersistentVolumeClaims("default").Get(c.ctx, "p-own", metav1.GetOptions{})
			c.no(err)
			if len(o.OwnerReferences) != 1 {
				c.Errorf("owners %v", o.OwnerReferences)
			}
		},
	},
	{
		name: "growth that nobody does", of: append([]string{"persistentvolume-expander-controller"}, binder...), calls: 30,
		given: func(c *cluster) {
			c.create(classes, "{metadata: {name: gold}, provisioner: d.example.com, allowVolumeExpansion: true}")
			c.create(volumes, pvOf("v", "storageClassName: gold, csi: {driver: d.example.com, volumeHandle: v}"))
			c.create(claims, claimOfClass("a", "gold"))
			c.bound("a")
			// Events are named by object and nanosecond: one of the claim's creation would
			// have the same name, and this one be lost.
			time.Sleep(time.Second)
			c.merge(claims+"/a", `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
			c.reported("a", "ExternalExpanding", "waiting for an external controller to expand this PVC")
		},
	},
}

var attachBadInputs = []badInput{
	{
		name: "attacher that never answers", of: attacher, calls: 150,
		given: func(c *cluster) {
			c.join("a")
			c.disk("x")
			c.place("p", "a", "x")
			time.Sleep(3 * time.Minute)
			c.reported("p", "FailedAttachVolume", `AttachVolume.Attach failed for volume "x" : timed out waiting for external-attacher of d.example.com CSI driver to attach volume disk x`)
		},
		cured: func(c *cluster) { c.attachAll(); c.attachments("a has x, x attached to a") },
	},
	{
		name: "attacher that fails at length", of: attacher, world: attachErrors, calls: 150,
		given: func(c *cluster) {
			c.join("a")
			c.disk("x")
			c.place("p", "a", "x")
			c.reported("p", "FailedAttachVolume", `AttachVolume.Attach failed for volume "x" : rpc error: no disk at all`)
		},
		cured: func(c *cluster) { c.attachAll(); c.attachments("a has x, x attached to a") },
	},
	{
		name: "attacher that vanishes before it detaches", of: attacher, calls: 30,
		given: func(c *cluster) {
			c.join("a")
			c.disk("x")
			c.place("p", "a", "x")
			c.attachments("x attaching to a")
			c.merge("/apis/storage.k8s.io/v1/volumeattachments/"+c.attachment(), `{"metadata":{"finalizers":["external-attacher/d-example-com"]}}`)
			c.attachAll()
			c.attachments("a has x, x attached to a")
			c.kill("p")
			c.until("it is being detached", func() (bool, error) {
				a, err := c.client.StorageV1().VolumeAttachments().Get(c.ctx, c.attachment(), metav1.GetOptions{})
				return err == nil && a.DeletionTimestamp != nil, err
			})
		},
		cured: func(c *cluster) {
			c.merge("/apis/storage.k8s.io/v1/volumeattachments/"+c.attachment(), `{"metadata":{"finalizers":null}}`)
			c.attachments("")
		},
	},
	{
		name: "attachment that is taken away", of: attacher, world: func(c *cluster) { c.attachAll() }, calls: 30,
		given: func(c *cluster) {
			c.join("a")
			c.disk("x")
			c.place("p", "a", "x")
			c.attachments("a has x, x attached to a")
			c.remove("/apis/storage.k8s.io/v1/volumeattachments/" + c.attachment())
			c.attachments("a has x, x attached to a")
		},
	},
	{
		name: "disk of one node wanted on two", of: attacher, world: func(c *cluster) { c.attachAll() }, calls: 150,
		given: func(c *cluster) {
			c.join("a")
			c.join("b")
			c.disk("x")
			c.place("p", "a", "x")
			c.attachments("a has x, x attached to a")
			c.uses("a", "x")
			c.place("q", "b", "x")
			c.reported("q", "FailedAttachVolume", `Multi-Attach error for volume "x" Volume is already used by pod(s) p`)
		},
		cured: func(c *cluster) { c.kill("p"); c.uses("a"); c.attachments("b has x, x attached to b") },
	},
}

// attachment is the name of the only one there is.
func (c *cluster) attachment() string {
	c.Helper()
	list, err := c.client.StorageV1().VolumeAttachments().List(c.ctx, metav1.ListOptions{})
	c.no(err)
	if len(list.Items) != 1 {
		c.Fatalf("%d attachments", len(list.Items))
	}
	return list.Items[0].Name
}

// scaledBy makes a ReplicaSet of two and what scales it by an external metric.
func (c *cluster) scaledBy(target string) {
	c.Helper()
	c.create(apps+"replicasets", "{metadata: {name: web}, spec: {replicas: 2, "+webOfImage+"}}")
	c.create(scalers, "{metadata: {name: of-web}, spec: {minReplicas: 2, maxReplicas: 6, scaleTargetRef: {apiVersion: apps/v1, kind: ReplicaSet, name: "+target+`},
  metrics: [{type: External, external: {metric: {name: queues}, target: {type: AverageValue, averageValue: 10}}}]}}`)
}

// unable waits until the autoscaler says why it cannot scale.
func (c *cluster) unable(kind autoscalingv2.HorizontalPodAutoscalerConditionType, reason string) {
	c.Helper()
	c.autoscaled("of-web", reason, func(h *autoscalingv2.HorizontalPodAutoscaler) bool { return condition(h, kind) == "False "+reason })
}

// sized waits until the ReplicaSet has that size.
func (c *cluster) sized(n int32) {
	c.Helper()
	c.until(fmt.Sprintf("%d replicas", n), func() (bool, error) {
		rs, err := c.client.AppsV1().ReplicaSets("default").Get(c.ctx, "web", metav1.GetOptions{})
		return err == nil && *rs.Spec.Replicas == n, fmt.Errorf("%v, %v", rs.Spec.Replicas, err)
	})
}

var scaler = []string{"horizontal-pod-autoscaler-controller", "replicaset-controller", "serviceaccount-controller"}

// An autoscaler looks every fifteen seconds: an hour is 240 looks.
var scalerBadInputs = []badInput{
	{
		name: "metrics that nobody serves", of: scaler, world: kubelets, calls: 800,
		given: func(c *cluster) {
			c.scaledBy("web")
			c.unable(autoscalingv2.ScalingActive, "FailedGetExternalMetric")
			c.reported("of-web", "FailedGetExternalMetric", "unable to get external metric default/queues/nil: unable to fetch metrics from external metrics API: ")
			c.sized(2)
		},
		cured: func(c *cluster) {
			c.serveMetrics("external.metrics.k8s.io", "queues", "Queue")
			c.queued("35")
			time.Sleep(10 * time.Minute) // what is served is asked for every five minutes
			c.sized(4)
		},
	},
	{
		name: "metrics below nothing", of: scaler, world: kubelets, calls: 800,
		given: func(c *cluster) {
			c.serveMetrics("external.metrics.k8s.io", "queues", "Queue")
			c.queued("-100")
			c.scaledBy("web")
			c.merge(apps+"replicasets/web", `{"spec":{"replicas":4}}`)
			time.Sleep(10 * time.Minute)
			c.sized(2)
		},
	},
	{
		name: "metrics without sense", of: scaler, world: kubelets, calls: 800,
		given: func(c *cluster) {
			c.serveMetrics("external.metrics.k8s.io", "queues", "Queue")
			c.queued("many")
			c.scaledBy("web")
			c.unable(autoscalingv2.ScalingActive, "FailedGetExternalMetric")
			c.sized(2)
		},
		cured: func(c *cluster) { c.queued("35"); c.sized(4) },
	},
	{
		name: "target that is not there", of: scaler, world: kubelets, calls: 800,
		given: func(c *cluster) {
			c.scaledBy("nobody")
			c.unable(autoscalingv2.AbleToScale, "FailedGetScale")
			c.reported("of-web", "FailedGetScale", `replicasets.apps "nobody" not found`)
		},
	},
}

var workloadBadInputs = []badInput{
	{
		name: "ReplicaSet whose pods are refused", of: []string{"replicaset-controller", "serviceaccount-controller"}, calls: 50,
		given: func(c *cluster) {
			c.create(apps+"replicasets", "{metadata: {name: web}, spec: {replicas: 3, "+nobodys+"}}")
			c.reported("web", "FailedCreate", `Error creating: pods "web-" is forbidden: error looking up service account default/nobody: serviceaccount "nobody" not found`)
			c.until("its status says so", func() (bool, error) {
				rs, err := c.client.AppsV1().ReplicaSets("default").Get(c.ctx, "web", metav1.GetOptions{})
				c.no(err)
				return len(rs.Status.Conditions) == 1 && rs.Status.Conditions[0].Type == "ReplicaFailure" && rs.Status.Conditions[0].Reason == "FailedCreate", fmt.Errorf("%v", rs.Status.Conditions)
			})
		},
		cured: func(c *cluster) { c.account(3) },
	},
	{
		name: "ReplicationController whose pods are refused", of: []string{"replicationcontroller-controller", "serviceaccount-controller"}, calls: 50,
		given: func(c *cluster) {
			c.create(core+"replicationcontrollers", "{metadata: {name: web}, spec: {replicas: 3, selector: {app: web}, "+nobodys[strings.Index(nobodys, "template"):]+"}}")
			c.reported("web", "FailedCreate", `Error creating: pods "web-" is forbidden: error looking up service account default/nobody: serviceaccount "nobody" not found`)
		},
		cured: func(c *cluster) { c.account(3) },
	},
	{
		name: "Job whose pods are refused", of: []string{"job-controller", "serviceaccount-controller"}, calls: 80, // a try each minute, as upstream's
		given: func(c *cluster) {
			c.create(batch+"jobs", "{metadata: {name: web}, spec: {parallelism: 3, template: {spec: {restartPolicy: Never, serviceAccountName: nobody, containers: [{name: c, image: a}]}}}}")
			c.reported("web", "FailedCreate", `Error creating: pods "web-" is forbidden: error looking up service account default/nobody: serviceaccount "nobody" not found`)
		},
		cured: func(c *cluster) { c.account(3) },
	},
	{
		name: "StatefulSet whose pods are refused", of: []string{"statefulset-controller", "serviceaccount-controller"}, calls: 50,
		given: func(c *cluster) {
			c.create(apps+"statefulsets", "{metadata: {name: web}, spec: {replicas: 3, podManagementPolicy: Parallel, serviceName: web, "+nobodys+"}}")
			c.reported("web", "FailedCreate", `create Pod web-`)
		},
		cured: func(c *cluster) { c.account(3) },
	},
	{
		name: "DaemonSet whose pods are refused", of: []string{"daemonset-controller", "serviceaccount-controller"}, calls: 50,
		given: func(c *cluster) {
			for _, n := range []string{"n1", "n2", "n3"} {
				c.healthy(n)
			}
			c.create(apps+"daemonsets", "{metadata: {name: web}, spec: {"+nobodys+"}}")
			c.reported("web", "FailedCreate", `Error creating: pods "web-" is forbidden: error looking up service account default/nobody: serviceaccount "nobody" not found`)
		},
		cured: func(c *cluster) { c.account(3) },
	},
	{
		name: "DaemonSet whose pods fail at once", of: []string{"daemonset-controller", "serviceaccount-controller"}, world: failAll, calls: 50,
		given: func(c *cluster) {
			c.healthy("n1")
			c.create(apps+"daemonsets", "{metadata: {name: web}, spec: {"+webOfImage+"}}")
			c.reported("web", "FailedDaemonPod", "Found failed daemon pod default/web-")
		},
	},
	{
		name: "Job whose pods fail at once", of: []string{"job-controller", "serviceaccount-controller"}, world: failAll, calls: 40,
		given: func(c *cluster) {
			c.create(batch+"jobs", "{metadata: {name: web}, spec: {backoffLimit: 1000, template: {spec: {restartPolicy: Never, containers: [{name: c, image: a}]}}}}")
			c.eventOf("web", "SuccessfulCreate")
		},
	},
	{
		name: "two ReplicaSets that select the same pods", of: []string{"replicaset-controller", "serviceaccount-controller"}, world: kubelets, calls: 30,
		given: func(c *cluster) {
			c.create(core+"pods", "{metadata: {name: stray, labels: {app: web}}, spec: {containers: [{name: c, image: a}]}}")
			c.create(apps+"replicasets", "{metadata: {name: one}, spec: {replicas: 2, "+webOfImage+"}}")
			c.create(apps+"replicasets", "{metadata: {name: two}, spec: {replicas: 2, "+webOfImage+"}}")
			c.until("each has its two", func() (bool, error) {
				of := map[string]int{}
				for _, p := range c.pods() {
					if p.Status.Phase != corev1.PodRunning {
						return false, fmt.Errorf("%s is %s", p.Name, p.Status.Phase)
					}
					for _, o := range p.OwnerReferences {
						of[o.Name]++
					}
				}
				return of["one"] == 2 && of["two"] == 2 && len(c.pods()) == 4, fmt.Errorf("%v of %d", of, len(c.pods()))
			})
		},
	},
	{
		name: "CronJob that slept for weeks", of: []string{"cronjob-controller", "serviceaccount-controller"}, calls: 20,
		given: func(c *cluster) {
			c.create(batch+"cronjobs", `{metadata: {name: web}, spec: {schedule: "*/5 * * * *", suspend: true, concurrencyPolicy: Forbid,
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: a}]}}}}}}`)
			time.Sleep(500 * time.Hour)
			c.merge(batch+"cronjobs/web", `{"spec":{"suspend":false}}`)
			c.reported("web", "TooManyMissedTimes", "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
			jobs, err := c.client.BatchV1().Jobs("default").List(c.ctx, metav1.ListOptions{})
			c.no(err)
			if len(jobs.Items) != 1 {
				c.Errorf("%d jobs, of 6,000 that were missed one is right", len(jobs.Items))
			}
		},
	},
	{
		name: "budget of pods that nobody controls", of: []string{"disruption-controller", "serviceaccount-controller"}, calls: 50,
		given: func(c *cluster) {
			c.create(core+"pods", "{metadata: {name: p, labels: {app: web}}, spec: {containers: [{name: c, image: a}]}}")
			c.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", "{metadata: {name: web}, spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}}")
			c.reported("web", "UnmanagedPods", "Pods selected by this PodDisruptionBudget (selector: &LabelSelector{MatchLabels:map[string]string{app: web,},MatchExpressions:[]LabelSelectorRequirement{},}) were found to be unmanaged. ")
			b, err := c.client.PolicyV1().PodDisruptionBudgets("default").Get(c.ctx, "web", metav1.GetOptions{})
			c.no(err)
			if b.Status.DisruptionsAllowed != 0 {
				c.Errorf("%+v", b.Status)
			}
		},
	},
}

// failAll has every pod fail as soon as it is there.
func failAll(c *cluster) { c.endAll(corev1.PodFailed) }

// endAll has every pod end as soon as it is there.
func (c *cluster) endAll(phase corev1.PodPhase) {
	c.Helper()
	for _, p := range c.pods() {
		if p.Status.Phase == phase {
			continue
		}
		p.Status.Phase = phase
		if _, err := c.client.CoreV1().Pods("default").UpdateStatus(c.ctx, &p, metav1.UpdateOptions{}); !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			c.no(err)
		}
	}
	c.bury()
}

var otherBadInputs = []badInput{
	{
		name: "owners in a circle", of: append(slices.Clone(collected), "serviceaccount-controller"), calls: 30,
		given: func(c *cluster) {
			c.owned("a", false)
			c.owned("b", true, "a")
			b, err := c.client.CoreV1().ConfigMaps("default").Get(c.ctx, "b", metav1.GetOptions{})
			c.no(err)
			c.merge(core+"configmaps/a", fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"b","uid":%q,"blockOwnerDeletion":true}]}}`, b.UID))
			time.Sleep(10 * time.Minute)
			for _, name := range []string{"a", "b"} { // each has its owner
				_, err := c.client.CoreV1().ConfigMaps("default").Get(c.ctx, name, metav1.GetOptions{})
				c.no(err)
			}
		},
		cured: func(c *cluster) {
			c.remove(core+"configmaps/a", "Foreground")
			c.until("both are gone", func() (bool, error) {
				list, err := c.client.CoreV1().ConfigMaps("default").List(c.ctx, metav1.ListOptions{})
				c.no(err)
				return !slices.ContainsFunc(list.Items, func(o corev1.ConfigMap) bool { return o.Name == "a" || o.Name == "b" }), fmt.Errorf("%d left", len(list.Items))
			})
		},
	},
	{
		name: "owner in another namespace", of: append(slices.Clone(collected), "serviceaccount-controller"), calls: 30,
		given: func(c *cluster) {
			c.create("/api/v1/namespaces/kube-system/configmaps", "{metadata: {name: far}}")
			far, err := c.client.CoreV1().ConfigMaps("kube-system").Get(c.ctx, "far", metav1.GetOptions{})
			c.no(err)
			c.create(core+"configmaps", fmt.Sprintf("{metadata: {name: near, ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: far, uid: %s}]}}", far.UID))
			c.reported("near", "OwnerRefInvalidNamespace", fmt.Sprintf(`ownerRef [v1/ConfigMap, namespace: default, name: far, uid: %s] does not exist in namespace "default"`, far.UID))
		},
	},
	{
		name: "namespace with what is held", of: []string{"namespace-controller", "serviceaccount-controller"}, calls: 700,
		given: func(c *cluster) {
			c.create("/api/v1/namespaces", "{metadata: {name: team}}")
			c.create("/api/v1/namespaces/team/secrets", "{metadata: {name: held, finalizers: [example.test/hold]}}")
			c.remove("/api/v1/namespaces/team")
			c.until("it says what holds it", func() (bool, error) {
				n, err := c.client.CoreV1().Namespaces().Get(c.ctx, "team", metav1.GetOptions{})
				c.no(err)
				return slices.ContainsFunc(n.Status.Conditions, func(o corev1.NamespaceCondition) bool {
					return o.Type == corev1.NamespaceFinalizersRemaining && o.Status == corev1.ConditionTrue &&
						o.Message == "Some content in the namespace has finalizers remaining: example.test/hold in 1 resource instances"
				}), fmt.Errorf("%+v", n.Status.Conditions)
			})
		},
		cured: func(c *cluster) {
			c.merge("/api/v1/namespaces/team/secrets/held", `{"metadata":{"finalizers":null}}`)
			time.Sleep(20 * time.Minute)
			if _, err := c.client.CoreV1().Namespaces().Get(c.ctx, "team", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				c.Errorf("the namespace is there: %v", err)
			}
		},
	},
	{
		name: "lease from the future", of: []string{"node-lifecycle-controller", "serviceaccount-controller"}, calls: 30,
		given: func(c *cluster) {
			c.alive("n1")
			lease, err := c.client.CoordinationV1().Leases("kube-node-lease").Get(c.ctx, "n1", metav1.GetOptions{})
			c.no(err)
			lease.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(1000 * time.Hour)))
			_, err = c.client.CoordinationV1().Leases("kube-node-lease").Update(c.ctx, lease, metav1.UpdateOptions{})
			c.no(err)
			c.merge(nodes+"/n1", `{"metadata":{"labels":{"alive":null}}}`)
			c.reported("n1", "NodeNotReady", "Node n1 status is now: NodeNotReady")
		},
		cured: func(c *cluster) { c.merge(nodes+"/n1", `{"metadata":{"labels":{"alive":""}}}`); heartbeats(c) },
	},
}

// TestBadInput: what cannot work is reported in upstream's words, costs little however
// long it stays, and works once it is put right.
func TestBadInput(t *testing.T) {
	for _, b := range slices.Concat(storageBadInputs, attachBadInputs, scalerBadInputs, workloadBadInputs, otherBadInputs) {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			s := scenario{name: b.name, of: b.of, world: b.world}
			s.run(t, fault.Disturbance{}, func(r *play, _ outcome) {
				b.given(r.cluster)
				r.wait(20 * time.Minute)
				calls := r.rest()
				t.Logf("%d calls in an hour", len(calls))
				if len(calls) > b.calls {
					t.Errorf("%d calls in an hour, at most %d are right: %v", len(calls), b.calls, tally(calls))
				}
				if b.cured != nil {
					b.cured(r.cluster)
				}
			})
		})
	}
}

// tally is how often each thing was asked for.
func tally(calls []fault.Call) map[string]int {
	n := map[string]int{}
	for _, c := range calls {
		n[fmt.Sprintf("%s %s %d", c.Method, c.Path, c.Status)]++
	}
	return n
}

// A claim that waits has an event that says why for as long as it does: an event lives for an hour.
func TestEventsOfWaitingClaims(t *testing.T) {
	inCluster(t, binder, func(c *cluster) {
		c.create(claims, claimOfClass("a", "nope"))
		c.eventOf("a", "ProvisioningFailed")
		for range 5 {
			time.Sleep(time.Hour)
			list, err := c.client.CoreV1().Events("default").List(c.ctx, metav1.ListOptions{})
			c.no(err)
			if len(list.Items) != 1 || time.Since(list.Items[0].LastTimestamp.Time) > 35*time.Minute {
				c.Errorf("events %+v", list.Items)
			}
		}
	})
}
