package controllermanager

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"knarr/controlplane/controllermanager/pods"
)

// scenarios are the stories of all controllers.
var scenarios = slices.Concat(workloadScenarios, batchScenarios, serviceScenarios, nodeScenarios, storageScenarios, accountScenarios, collectorScenarios)

// withoutScenario says which controllers have none, and why.
var withoutScenario = map[string]string{}

var tokenKey = sync.OnceValue(func() crypto.Signer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
})

const (
	apps       = "/apis/apps/v1/namespaces/default/"
	batch      = "/apis/batch/v1/namespaces/default/"
	core       = "/api/v1/namespaces/default/"
	nodes      = "/api/v1/nodes"
	volumes    = "/api/v1/persistentvolumes"
	podOfWeb   = "{metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: a}]}}"
	webOfImage = "selector: {matchLabels: {app: web}}, template: " + podOfWeb
)

// create creates an object, told in YAML.
func (c *cluster) create(path, text string) {
	c.Helper()
	body, err := yaml.YAMLToJSON([]byte(text))
	c.no(err)
	kind := kinds[path[lastSlash(path)+1:]]
	var o map[string]any
	c.no(json.Unmarshal(body, &o))
	o["apiVersion"], o["kind"] = kind[0], kind[1]
	c.no(c.post(path, o))
	// Events are named by their object and the time: of two within one moment of this clock,
	// which stands still while anything runs, one would be lost.
	time.Sleep(time.Nanosecond)
}

func lastSlash(path string) int {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return i
		}
	}
	return -1
}

// kinds are those that scenarios create.
var kinds = map[string][2]string{
	"pods": {"v1", "Pod"}, "services": {"v1", "Service"}, "endpoints": {"v1", "Endpoints"}, "nodes": {"v1", "Node"}, "namespaces": {"v1", "Namespace"},
	"configmaps": {"v1", "ConfigMap"}, "secrets": {"v1", "Secret"}, "serviceaccounts": {"v1", "ServiceAccount"}, "resourcequotas": {"v1", "ResourceQuota"},
	"replicationcontrollers": {"v1", "ReplicationController"}, "persistentvolumes": {"v1", "PersistentVolume"}, "persistentvolumeclaims": {"v1", "PersistentVolumeClaim"},
	"replicasets": {"apps/v1", "ReplicaSet"}, "deployments": {"apps/v1", "Deployment"}, "daemonsets": {"apps/v1", "DaemonSet"}, "statefulsets": {"apps/v1", "StatefulSet"},
	"jobs": {"batch/v1", "Job"}, "cronjobs": {"batch/v1", "CronJob"},
	"poddisruptionbudgets":        {"policy/v1", "PodDisruptionBudget"},
	"horizontalpodautoscalers":    {"autoscaling/v2", "HorizontalPodAutoscaler"},
	"clusterroles":                {"rbac.authorization.k8s.io/v1", "ClusterRole"},
	"servicecidrs":                {"networking.k8s.io/v1", "ServiceCIDR"},
	"storageclasses":              {"storage.k8s.io/v1", "StorageClass"},
	"storageversionmigrations":    {"storagemigration.k8s.io/v1beta1", "StorageVersionMigration"},
	"customresourcedefinitions":   {"apiextensions.k8s.io/v1", "CustomResourceDefinition"},
	"foos":                        {"example.com/v1", "Foo"},
	"volumeattributesclasses":     {"storage.k8s.io/v1", "VolumeAttributesClass"},
	"validatingadmissionpolicies": {"admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"},
	"certificatesigningrequests":  {"certificates.k8s.io/v1", "CertificateSigningRequest"},
}

// merge changes an object by a merge patch.
func (c *cluster) merge(path, patch string) {
	c.Helper()
	c.no(c.client.CoreV1().RESTClient().Patch("application/merge-patch+json").AbsPath(path).Body([]byte(patch)).Do(c.ctx).Error())
}

// remove deletes an object, if it is there.
func (c *cluster) remove(path string, how ...metav1.DeletionPropagation) {
	c.Helper()
	options := &metav1.DeleteOptions{}
	if len(how) > 0 {
		options.PropagationPolicy = &how[0]
	}
	if err := c.client.CoreV1().RESTClient().Delete().AbsPath(path).Body(options).Do(c.ctx).Error(); !apierrors.IsNotFound(err) {
		c.no(err)
	}
}

// kubelets bind pods, run them, and finish those that are deleted.
func kubelets(c *cluster) {
	c.Helper()
	for _, p := range c.pods() {
		if p.Spec.NodeName != "" || p.DeletionTimestamp != nil {
			continue
		}
		node := "node"
		if p.Spec.Affinity != nil {
			node = p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
		}
		err := c.client.CoreV1().Pods("default").Bind(c.ctx, &corev1.Binding{ObjectMeta: meta(p.Name), Target: corev1.ObjectReference{Kind: "Node", Name: node}}, metav1.CreateOptions{})
		if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			c.no(err)
		}
	}
	for _, p := range c.pods() {
		if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodRunning || p.Spec.NodeName == "" {
			continue
		}
		p.Status.Phase = corev1.PodRunning
		pods.SetCondition(&p.Status, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
		_, err := c.client.CoreV1().Pods("default").UpdateStatus(c.ctx, &p, metav1.UpdateOptions{})
		if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			c.no(err)
		}
	}
	c.bury()
}

// bury removes pods that are being deleted.
func (c *cluster) bury() {
	c.Helper()
	for _, p := range c.pods() {
		if p.DeletionTimestamp != nil && len(p.Finalizers) == 0 {
			if err := c.client.CoreV1().Pods("default").Delete(c.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); !apierrors.IsNotFound(err) {
				c.no(err)
			}
		}
	}
}
