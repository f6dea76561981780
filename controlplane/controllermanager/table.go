package controllermanager

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/controllermanager/attachdetach"
	"knarr/controlplane/controllermanager/bootstraptoken"
	"knarr/controlplane/controllermanager/clusterrole"
	"knarr/controlplane/controllermanager/cronjob"
	"knarr/controlplane/controllermanager/csr"
	"knarr/controlplane/controllermanager/daemonset"
	"knarr/controlplane/controllermanager/deployment"
	"knarr/controlplane/controllermanager/disruption"
	"knarr/controlplane/controllermanager/endpoint"
	"knarr/controlplane/controllermanager/endpointslice"
	"knarr/controlplane/controllermanager/endpointslicemirroring"
	"knarr/controlplane/controllermanager/ephemeralvolume"
	"knarr/controlplane/controllermanager/garbagecollector"
	"knarr/controlplane/controllermanager/horizontalpodautoscaler"
	"knarr/controlplane/controllermanager/job"
	"knarr/controlplane/controllermanager/legacytokencleaner"
	"knarr/controlplane/controllermanager/namespace"
	"knarr/controlplane/controllermanager/nodeipam"
	"knarr/controlplane/controllermanager/nodelifecycle"
	"knarr/controlplane/controllermanager/persistentvolume"
	"knarr/controlplane/controllermanager/podcertificate"
	"knarr/controlplane/controllermanager/podgc"
	"knarr/controlplane/controllermanager/protection"
	"knarr/controlplane/controllermanager/replicaset"
	"knarr/controlplane/controllermanager/resourcequota"
	"knarr/controlplane/controllermanager/rootca"
	"knarr/controlplane/controllermanager/serviceaccount"
	"knarr/controlplane/controllermanager/serviceaccounttoken"
	"knarr/controlplane/controllermanager/servicecidrs"
	"knarr/controlplane/controllermanager/statefulset"
	"knarr/controlplane/controllermanager/storageversiongc"
	"knarr/controlplane/controllermanager/storageversionmigrator"
	"knarr/controlplane/controllermanager/tainteviction"
	"knarr/controlplane/controllermanager/trustbundle"
	"knarr/controlplane/controllermanager/ttl"
	"knarr/controlplane/controllermanager/ttlafterfinished"
	"knarr/controlplane/controllermanager/validatingadmissionpolicystatus"
	"knarr/controlplane/controllermanager/volumeexpand"
	"knarr/internal/features"
)

// A runner runs until its context ends.
type runner interface {
	Run(ctx context.Context) error
}

// An entry is one controller.
type entry struct {
	// name is upstream's, account the service account it acts as; "" is the
	// manager.
	name, account string
	// build makes the controller for one term; nil means it has nothing to do.
	build func(t *term) (runner, error)
}

// table are the controllers. Where New fails, or a client cannot be made, the
// manager's Run does.
var table = []entry{
	{namespace.Name, "namespace-controller", func(t *term) (runner, error) {
		return namespace.New(t.informers, t.client(), t.metadata()), nil
	}},
	{serviceaccount.Name, "service-account-controller", func(t *term) (runner, error) {
		return serviceaccount.New(t.informers, t.client()), nil
	}},
	// Upstream's acts as the manager itself too.
	{serviceaccounttoken.Name, "", func(t *term) (runner, error) {
		if t.TokenKey == nil {
			return nil, nil
		}
		return serviceaccounttoken.New(t.informers, t.client(), t.TokenKey, t.RootCA)
	}},
	{legacytokencleaner.Name, "legacy-service-account-token-cleaner", func(t *term) (runner, error) {
		return legacytokencleaner.New(t.informers, t.client(), serviceaccounttoken.Secrets(t.informers), t.LegacyTokenUnused), nil
	}},
	{rootca.Name, "root-ca-cert-publisher", func(t *term) (runner, error) {
		if len(t.RootCA) == 0 {
			return nil, nil
		}
		return rootca.New(t.informers, t.client(), t.RootCA), nil
	}},
	{replicaset.Name, "replicaset-controller", func(t *term) (runner, error) {
		return replicaset.New(t.informers, t.client(), t.events("replicaset-controller"))
	}},
	{replicaset.NameRC, "replication-controller", func(t *term) (runner, error) {
		return replicaset.NewRC(t.informers, t.client(), t.events("replication-controller"))
	}},
	{deployment.Name, "deployment-controller", func(t *term) (runner, error) {
		return deployment.New(t.informers, t.client(), t.events("deployment-controller"))
	}},
	{daemonset.Name, "daemon-set-controller", func(t *term) (runner, error) {
		return daemonset.New(t.informers, t.client(), t.events("daemonset-controller"))
	}},
	{statefulset.Name, "statefulset-controller", func(t *term) (runner, error) {
		return statefulset.New(t.informers, t.client(), t.events("statefulset-controller"))
	}},
	{job.Name, "job-controller", func(t *term) (runner, error) {
		return job.New(t.informers, t.client(), t.events("job-controller"))
	}},
	{cronjob.Name, "cronjob-controller", func(t *term) (runner, error) {
		return cronjob.New(t.informers, t.client(), t.events("cronjob-controller"))
	}},
	{ttlafterfinished.Name, "ttl-after-finished-controller", func(t *term) (runner, error) {
		return ttlafterfinished.New(t.informers, t.client()), nil
	}},
	{endpoint.Name, "endpoint-controller", func(t *term) (runner, error) {
		return endpoint.New(t.informers, t.client(), t.events("endpoint-controller"), t.EndpointUpdatesBatchPeriod)
	}},
	{endpointslice.Name, "endpointslice-controller", func(t *term) (runner, error) {
		return endpointslice.New(t.informers, t.client(), t.events("endpoint-slice-controller"), t.EndpointSlice)
	}},
	{endpointslicemirroring.Name, "endpointslicemirroring-controller", func(t *term) (runner, error) {
		return endpointslicemirroring.New(t.informers, t.client(), t.events("endpoint-slice-mirroring-controller"), t.EndpointSliceMirroring)
	}},
	{garbagecollector.Name, "generic-garbage-collector", func(t *term) (runner, error) {
		if t.NoGarbageCollector {
			return nil, nil
		}
		return garbagecollector.New(t.informers, t.metadata(), t.client().Discovery(), t.events("garbage-collector-controller"), shared)
	}},
	{podgc.Name, "pod-garbage-collector", func(t *term) (runner, error) {
		return podgc.New(t.informers, t.client(), t.TerminatedPodThreshold)
	}},
	{nodeipam.Name, "node-controller", func(t *term) (runner, error) {
		if len(t.ClusterCIDRs) == 0 {
			return nil, nil
		}
		return nodeipam.New(t.informers, t.client(), t.events("cidrAllocator"), nodeipam.Config{
			ClusterCIDRs: t.ClusterCIDRs, Taken: t.ServiceCIDRs,
			MaskIPv4: t.NodeCIDRMaskSizeIPv4, MaskIPv6: t.NodeCIDRMaskSizeIPv6,
		})
	}},
	{nodelifecycle.Name, "node-controller", func(t *term) (runner, error) {
		return nodelifecycle.New(t.informers, t.client(), t.base, t.events("node-controller"), t.NodeLifecycle)
	}},
	{tainteviction.Name, "node-controller", func(t *term) (runner, error) {
		return tainteviction.New(t.informers, t.client(), t.events("taint-eviction-controller"))
	}},
	{servicecidrs.Name, "service-cidrs-controller", func(t *term) (runner, error) {
		return servicecidrs.New(t.informers, t.client(), t.events(servicecidrs.Name)), nil
	}},
	{ttl.Name, "ttl-controller", func(t *term) (runner, error) {
		return ttl.New(t.informers, t.client()), nil
	}},
	{disruption.Name, "disruption-controller", func(t *term) (runner, error) {
		return disruption.New(t.informers, t.client(), t.events("controllermanager")), nil
	}},
	{horizontalpodautoscaler.Name, "horizontal-pod-autoscaler", func(t *term) (runner, error) {
		autoscaler := t.HorizontalPodAutoscaler
		autoscaler.ScaleToZero = t.Features[features.ScaleToZero]
		return horizontalpodautoscaler.New(t.informers, t.reach(), t.events("horizontal-pod-autoscaler"), autoscaler)
	}},
	{resourcequota.Name, "resourcequota-controller", func(t *term) (runner, error) {
		return resourcequota.New(t.informers, t.client(), t.metadata(), t.ResourceQuotaSyncPeriod), nil
	}},
	{clusterrole.Name, "clusterrole-aggregation-controller", func(t *term) (runner, error) {
		return clusterrole.New(t.informers, t.client()), nil
	}},
	{validatingadmissionpolicystatus.Name, "validatingadmissionpolicy-status-controller", func(t *term) (runner, error) {
		return validatingadmissionpolicystatus.New(t.informers, t.client()), nil
	}},
	{csr.Signing, "certificate-controller", func(t *term) (runner, error) {
		if len(t.Signers) == 0 {
			return nil, nil
		}
		return csr.NewSigning(t.informers, t.client(), t.Signers, t.SigningDuration), nil
	}},
	{bootstraptoken.Signer, "bootstrap-signer", func(t *term) (runner, error) {
		return bootstraptoken.NewSigner(t.client()), nil
	}},
	{bootstraptoken.Cleaner, "token-cleaner", func(t *term) (runner, error) {
		return bootstraptoken.NewCleaner(t.client()), nil
	}},
	{csr.Approving, "certificate-controller", func(t *term) (runner, error) {
		return csr.NewApproving(t.informers, t.client()), nil
	}},
	{csr.Cleaning, "certificate-controller", func(t *term) (runner, error) {
		return csr.NewCleaning(t.informers, t.client()), nil
	}},
	{persistentvolume.Name, "persistent-volume-binder", func(t *term) (runner, error) {
		return persistentvolume.New(t.informers, t.client(), t.events("persistentvolume-controller"), t.PersistentVolume)
	}},
	{attachdetach.Name, "attachdetach-controller", func(t *term) (runner, error) {
		return attachdetach.New(t.informers, t.client(), t.events("attachdetach-controller"), t.DisableForceDetachOnTimeout)
	}},
	{ephemeralvolume.Name, "ephemeral-volume-controller", func(t *term) (runner, error) {
		return ephemeralvolume.New(t.informers, t.client(), t.events("ephemeral_volume"))
	}},
	{volumeexpand.Name, "expand-controller", func(t *term) (runner, error) {
		return volumeexpand.New(t.informers, t.client(), t.events("volume_expand")), nil
	}},
	{protection.Claims, "pvc-protection-controller", func(t *term) (runner, error) {
		return protection.NewClaims(t.informers, t.client()), nil
	}},
	{protection.Volumes, "pv-protection-controller", func(t *term) (runner, error) {
		return protection.NewVolumes(t.informers, t.client()), nil
	}},
	{storageversionmigrator.Name, "storage-version-migrator-controller", func(t *term) (runner, error) {
		if !t.Features[features.StorageVersionMigrator] {
			return nil, nil
		}
		return storageversionmigrator.New(t.informers, t.client(), t.metadata()), nil
	}},
	{storageversiongc.Name, "storage-version-garbage-collector", func(t *term) (runner, error) {
		if !t.Features[features.StorageVersions] {
			return nil, nil
		}
		return storageversiongc.New(t.informers, t.client())
	}},
	{podcertificate.Name, "podcertificaterequestcleaner", func(t *term) (runner, error) {
		if !t.Features[features.PodCertificates] {
			return nil, nil
		}
		return podcertificate.New(t.informers, t.client()), nil
	}},
	{trustbundle.Name, "kube-apiserver-serving-clustertrustbundle-publisher", func(t *term) (runner, error) {
		if !t.Features[features.TrustBundles] || len(t.RootCA) == 0 {
			return nil, nil
		}
		return trustbundle.New(t.informers, t.client(), t.RootCA), nil
	}},
	{protection.Classes, "volumeattributesclass-protection-controller", func(t *term) (runner, error) {
		return protection.NewClasses(t.informers, t.client()), nil
	}},
}

// ofCloud are those of the cloud controller manager, which upstream's controller manager
// knows by name too.
var ofCloud = map[string]bool{
	"cloud-node-controller":           true,
	"cloud-node-lifecycle-controller": true,
	"node-route-controller":           true,
	"service-lb-controller":           true,
}

// absent are upstream's controllers that are not here: naming them in a
// selection is no mistake, but changes nothing.
var absent = map[string]bool{
	"device-taint-eviction-controller":     true,
	"podgroup-protection-controller":       true,
	"resourceclaim-controller":             true,
	"resourcepoolstatusrequest-controller": true,
	"selinux-warning-controller":           true,
}

// shared are the resources that several controllers read anyway: the garbage
// collector then needs no watch of its own. Their informers show every object:
// ConfigMaps and Secrets, of which a controller reads some, are not among them.
var shared = []schema.GroupVersionResource{
	corev1.SchemeGroupVersion.WithResource("pods"),
	corev1.SchemeGroupVersion.WithResource("services"),
	corev1.SchemeGroupVersion.WithResource("endpoints"),
	corev1.SchemeGroupVersion.WithResource("nodes"),
	corev1.SchemeGroupVersion.WithResource("namespaces"),
	corev1.SchemeGroupVersion.WithResource("serviceaccounts"),
	corev1.SchemeGroupVersion.WithResource("replicationcontrollers"),
	appsv1.SchemeGroupVersion.WithResource("deployments"),
	appsv1.SchemeGroupVersion.WithResource("replicasets"),
	appsv1.SchemeGroupVersion.WithResource("daemonsets"),
	appsv1.SchemeGroupVersion.WithResource("statefulsets"),
	appsv1.SchemeGroupVersion.WithResource("controllerrevisions"),
	corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"),
	corev1.SchemeGroupVersion.WithResource("persistentvolumes"),
	batchv1.SchemeGroupVersion.WithResource("cronjobs"),
	batchv1.SchemeGroupVersion.WithResource("jobs"),
	discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
	networkingv1.SchemeGroupVersion.WithResource("ipaddresses"),
	coordinationv1.SchemeGroupVersion.WithResource("leases"),
}
