package registry

import (
	"knarr/internal/features"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Resources is the whole API in discovery order: group versions in the order
// upstream lists them, kinds in alphabetical order of their plural.
var Resources = []Resource{
	bindings,
	componentStatuses,
	configMaps,
	endpoints,
	events,
	limitRanges,
	namespaces,
	nodes,
	persistentVolumeClaims,
	persistentVolumes,
	pods,
	podTemplates,
	replicationControllers,
	resourceQuotas,
	secrets,
	serviceAccounts,
	services,

	apiServices,

	controllerRevisions,
	daemonSets,
	deployments,
	replicaSets,
	statefulSets,

	newEvents,

	selfSubjectReviews,
	tokenReviews,

	localSubjectAccessReviews,
	selfSubjectAccessReviews,
	selfSubjectRulesReviews,
	subjectAccessReviews,

	horizontalPodAutoscalers,

	oldHorizontalPodAutoscalers,

	cronJobs,
	jobs,

	certificateSigningRequests,

	ingressClasses,
	ingresses,
	ipAddresses,
	networkPolicies,
	serviceCIDRs,

	podDisruptionBudgets,

	clusterRoleBindings,
	clusterRoles,
	roleBindings,
	roles,

	csiDrivers,
	csiNodes,
	csiStorageCapacities,
	storageClasses,
	volumeAttachments,
	volumeAttributesClasses,

	mutatingAdmissionPolicies,
	mutatingAdmissionPolicyBindings,
	mutatingWebhookConfigurations,
	validatingAdmissionPolicies,
	validatingAdmissionPolicyBindings,
	validatingWebhookConfigurations,
	customResourceDefinitions,

	priorityClasses,

	leases,

	runtimeClasses,

	endpointSlices,

	deviceClasses,
	resourceClaims,
	resourceClaimTemplates,
	resourceSlices,

	flowSchemas,
	priorityLevelConfigurations,
}

// Optional are the kinds that are served only where --runtime-config asks for their
// version, and where the feature is on that they belong to, as upstream has them.
var Optional = []struct {
	Resource
	Feature string
	// Either of the two is enough: who turns the feature on needs the kind.
	Either bool
}{
	{Resource: storageVersionMigrations},
	{Resource: clusterTrustBundles, Feature: features.TrustBundles},
	{Resource: podCertificateRequests, Feature: features.PodCertificates},
	{Resource: storageVersions, Feature: features.StorageVersions, Either: true},
}

// Served are the kinds that are served where these versions were asked for and these
// features are on.
func Served(also []schema.GroupVersion, on features.Set) []Resource {
	all := Resources
	for _, r := range Optional {
		asked, featured := slices.Contains(also, r.GVR().GroupVersion()), r.Feature == "" || on[r.Feature]
		if asked && featured || r.Either && (asked || featured) {
			all = append(all[:len(all):len(all)], r.Resource)
		}
	}
	return all
}
