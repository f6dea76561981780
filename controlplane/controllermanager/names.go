package controllermanager

import "strings"

// aliases are the older names that a selection may use.
var aliases = map[string]string{
	"attachdetach":                         "persistentvolume-attach-detach-controller",
	"bootstrapsigner":                      "bootstrap-signer-controller",
	"clusterrole-aggregation":              "clusterrole-aggregation-controller",
	"cronjob":                              "cronjob-controller",
	"csrapproving":                         "certificatesigningrequest-approving-controller",
	"csrcleaner":                           "certificatesigningrequest-cleaner-controller",
	"csrsigning":                           "certificatesigningrequest-signing-controller",
	"daemonset":                            "daemonset-controller",
	"deployment":                           "deployment-controller",
	"disruption":                           "disruption-controller",
	"endpoint":                             "endpoints-controller",
	"endpointslice":                        "endpointslice-controller",
	"endpointslicemirroring":               "endpointslice-mirroring-controller",
	"ephemeral-volume":                     "ephemeral-volume-controller",
	"garbagecollector":                     "garbage-collector-controller",
	"horizontalpodautoscaling":             "horizontal-pod-autoscaler-controller",
	"job":                                  "job-controller",
	"legacy-service-account-token-cleaner": "legacy-serviceaccount-token-cleaner-controller",
	"namespace":                            "namespace-controller",
	"nodeipam":                             "node-ipam-controller",
	"nodelifecycle":                        "node-lifecycle-controller",
	"persistentvolume-binder":              "persistentvolume-binder-controller",
	"persistentvolume-expander":            "persistentvolume-expander-controller",
	"podgc":                                "pod-garbage-collector-controller",
	"pv-protection":                        "persistentvolume-protection-controller",
	"pvc-protection":                       "persistentvolumeclaim-protection-controller",
	"replicaset":                           "replicaset-controller",
	"replicationcontroller":                "replicationcontroller-controller",
	"resource-claim-controller":            "resourceclaim-controller",
	"resourcequota":                        "resourcequota-controller",
	"root-ca-cert-publisher":               "root-ca-certificate-publisher-controller",
	"serviceaccount":                       "serviceaccount-controller",
	"serviceaccount-token":                 "serviceaccount-token-controller",
	"statefulset":                          "statefulset-controller",
	"storage-version-gc":                   "storageversion-garbage-collector-controller",
	"svm":                                  "storage-version-migrator-controller",
	"tokencleaner":                         "token-cleaner-controller",
	"ttl":                                  "ttl-controller",
	"ttl-after-finished":                   "ttl-after-finished-controller",

	"cloud-node-lifecycle": "cloud-node-lifecycle-controller",
	"route":                "node-route-controller",
	"service":              "service-lb-controller",
}

// offByDefault are the controllers that "*" does not turn on.
var offByDefault = map[string]bool{
	"bootstrap-signer-controller": true,
	"selinux-warning-controller":  true,
	"token-cleaner-controller":    true,
}

// inMetric are the controllers that upstream's metric of running ones has, by the name that
// they have in it.
var inMetric = map[string]string{"node-ipam-controller": "nodeipam"}

// canonical is a selected name as the table has it, its "-" kept.
func canonical(selected string) string {
	name, off := strings.CutPrefix(selected, "-")
	if full, ok := aliases[name]; ok {
		name = full
	}
	if off {
		return "-" + name
	}
	return name
}
