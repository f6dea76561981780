package controllermanager

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/controllermanager/clusterrole"
	"knarr/controlplane/controllermanager/cronjob"
	"knarr/controlplane/controllermanager/daemonset"
	"knarr/controlplane/controllermanager/deployment"
	"knarr/controlplane/controllermanager/endpoint"
	"knarr/controlplane/controllermanager/endpointslice"
	"knarr/controlplane/controllermanager/garbagecollector"
	"knarr/controlplane/controllermanager/job"
	"knarr/controlplane/controllermanager/namespace"
	"knarr/controlplane/controllermanager/nodeipam"
	"knarr/controlplane/controllermanager/nodelifecycle"
	"knarr/controlplane/controllermanager/podgc"
	"knarr/controlplane/controllermanager/replicaset"
	"knarr/controlplane/controllermanager/rootca"
	"knarr/controlplane/controllermanager/serviceaccount"
	"knarr/controlplane/controllermanager/statefulset"
	"knarr/controlplane/controllermanager/tainteviction"
	"knarr/controlplane/controllermanager/ttlafterfinished"
)

// A runner runs until its context ends.
type runner interface {
	Run(ctx context.Context) error
}

// An entry is one controller.
type entry struct {
	// name is upstream's, account the service account it acts as.
	name, account string
	// build makes the controller for one term; nil means it has nothing to do.
	build func(t *term) (runner, error)
}

// table are the controllers.
var table = []entry{
	{namespace.Name, "namespace-controller", buildNamespace},
	{serviceaccount.Name, "service-account-controller", buildServiceAccount},
	{rootca.Name, "root-ca-cert-publisher", buildRootCA},
	{replicaset.Name, "replicaset-controller", buildReplicaSet},
	{deployment.Name, "deployment-controller", buildDeployment},
	{replicaset.NameRC, "replication-controller", buildReplicationController},
	{daemonset.Name, "daemon-set-controller", buildDaemonSet},
	{statefulset.Name, "statefulset-controller", buildStatefulSet},
	{job.Name, "job-controller", buildJob},
	{cronjob.Name, "cronjob-controller", buildCronJob},
	{endpoint.Name, "endpoint-controller", buildEndpoints},
	{endpointslice.Name, "endpointslice-controller", buildEndpointSlices},
	{garbagecollector.Name, "generic-garbage-collector", buildGarbageCollector},
	{nodeipam.Name, "node-controller", buildNodeIPAM},
	{nodelifecycle.Name, "node-controller", buildNodeLifecycle},
	{tainteviction.Name, "node-controller", buildTaintEviction},
	{podgc.Name, "pod-garbage-collector", buildPodGC},
	{clusterrole.Name, "clusterrole-aggregation-controller", buildClusterRole},
	{ttlafterfinished.Name, "ttl-after-finished-controller", buildTTLAfterFinished},
}

func buildNamespace(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	meta, err := t.metadata()
	if err != nil {
		return nil, err
	}
	return namespace.New(t.informers, client, meta), nil
}

func buildServiceAccount(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return serviceaccount.New(t.informers, client), nil
}

func buildRootCA(t *term) (runner, error) {
	if len(t.RootCA) == 0 {
		return nil, nil
	}
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return rootca.New(t.informers, client, t.RootCA), nil
}

func buildReplicaSet(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return replicaset.New(t.informers, client, t.events("replicaset-controller"))
}

func buildDeployment(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return deployment.New(t.informers, client, t.events("deployment-controller"))
}

func buildReplicationController(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return replicaset.NewRC(t.informers, client, t.events("replication-controller"))
}

func buildEndpoints(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return endpoint.New(t.informers, client, t.events("endpoint-controller")), nil
}

func buildEndpointSlices(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return endpointslice.New(t.informers, client, t.events("endpoint-slice-controller"))
}

// shared are the resources that several controllers read anyway: the garbage
// collector then needs no watch of its own.
var shared = []schema.GroupVersionResource{
	corev1.SchemeGroupVersion.WithResource("pods"),
	corev1.SchemeGroupVersion.WithResource("services"),
	corev1.SchemeGroupVersion.WithResource("endpoints"),
	corev1.SchemeGroupVersion.WithResource("nodes"),
	corev1.SchemeGroupVersion.WithResource("namespaces"),
	corev1.SchemeGroupVersion.WithResource("serviceaccounts"),
	corev1.SchemeGroupVersion.WithResource("configmaps"),
	corev1.SchemeGroupVersion.WithResource("replicationcontrollers"),
	appsv1.SchemeGroupVersion.WithResource("deployments"),
	appsv1.SchemeGroupVersion.WithResource("replicasets"),
	appsv1.SchemeGroupVersion.WithResource("daemonsets"),
	appsv1.SchemeGroupVersion.WithResource("statefulsets"),
	appsv1.SchemeGroupVersion.WithResource("controllerrevisions"),
	corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"),
	batchv1.SchemeGroupVersion.WithResource("cronjobs"),
	batchv1.SchemeGroupVersion.WithResource("jobs"),
	discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
}

func buildGarbageCollector(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	meta, err := t.metadata()
	if err != nil {
		return nil, err
	}
	return garbagecollector.New(t.informers, meta, client.Discovery(), t.events("garbage-collector-controller"), shared)
}

func buildNodeIPAM(t *term) (runner, error) {
	if len(t.ClusterCIDRs) == 0 {
		return nil, nil
	}
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return nodeipam.New(t.informers, client, t.events("cidrAllocator"), nodeipam.Config{
		ClusterCIDRs: t.ClusterCIDRs, Taken: t.ServiceCIDRs,
		MaskIPv4: t.NodeCIDRMaskSizeIPv4, MaskIPv6: t.NodeCIDRMaskSizeIPv6,
	})
}

func buildNodeLifecycle(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return nodelifecycle.New(t.informers, client, t.events("node-controller"), t.NodeMonitorGracePeriod)
}

func buildTaintEviction(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return tainteviction.New(t.informers, client, t.events("taint-eviction-controller"))
}

func buildPodGC(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return podgc.New(t.informers, client, t.TerminatedPodThreshold)
}

func buildClusterRole(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return clusterrole.New(t.informers, client), nil
}

func buildTTLAfterFinished(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return ttlafterfinished.New(t.informers, client), nil
}

func buildJob(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return job.New(t.informers, client, t.events("job-controller"))
}

func buildDaemonSet(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return daemonset.New(t.informers, client, t.events("daemonset-controller"))
}

func buildStatefulSet(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return statefulset.New(t.informers, client, t.events("statefulset-controller"))
}

func buildCronJob(t *term) (runner, error) {
	client, err := t.client()
	if err != nil {
		return nil, err
	}
	return cronjob.New(t.informers, client, t.events("cronjob-controller"))
}

// absent are upstream's controllers that are not here yet: naming them in a
// selection is no mistake.
var absent = map[string]bool{}
