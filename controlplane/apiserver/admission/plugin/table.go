package plugin

import (
	"fmt"
	"slices"
	"strings"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/admission/policy"
	"knarr/controlplane/apiserver/admission/webhook"
)

// An entry is one plugin of the table.
type entry struct {
	// name is upstream's. Without one, the plugin is a part of the API server
	// and cannot be turned off.
	name string
	// off says that it runs only when it is asked for.
	off   bool
	build func(Config) admission.Plugin
}

// table are the plugins in upstream's order.
var table = []entry{
	{"NamespaceAutoProvision", true, func(c Config) admission.Plugin { return &namespaceAutoProvision{c.Cache} }},
	{"NamespaceLifecycle", false, func(c Config) admission.Plugin { return &namespaceLifecycle{c.Cache} }},
	{"NamespaceExists", true, func(c Config) admission.Plugin { return &namespaceExists{c.Cache} }},
	{"LimitPodHardAntiAffinityTopology", true, func(Config) admission.Plugin { return limitPodHardAntiAffinityTopology{} }},
	{"LimitRanger", false, func(c Config) admission.Plugin { return &limitRanger{c.Cache} }},
	{"ServiceAccount", false, func(c Config) admission.Plugin { return &serviceAccount{c.Cache} }},
	{"NodeRestriction", false, func(c Config) admission.Plugin { return &nodeRestriction{c.Cache, c.Authorizer} }},
	{"TaintNodesByCondition", false, func(Config) admission.Plugin { return taintNodesByCondition{} }},
	{"AlwaysPullImages", true, func(Config) admission.Plugin { return alwaysPullImages{} }},
	{"ImagePolicyWebhook", true, func(c Config) admission.Plugin { return newImagePolicyWebhook(c.imagePolicy) }},
	{"PodSecurity", false, func(c Config) admission.Plugin { return newPodSecurity(c.Cache, c.podSecurity) }},
	{"PodNodeSelector", true, func(c Config) admission.Plugin { return &podNodeSelector{c.Cache, c.podNodeSelectors} }},
	{"Priority", false, func(c Config) admission.Plugin { return &priority{c.Cache} }},
	{"DefaultTolerationSeconds", false, func(c Config) admission.Plugin { return newDefaultTolerationSeconds(c) }},
	{"PodTolerationRestriction", true, func(c Config) admission.Plugin { return &podTolerationRestriction{c.Cache, c.podTolerations} }},
	{"EventRateLimit", true, func(c Config) admission.Plugin { return newEventRateLimit(c.eventRates) }},
	{"ExtendedResourceToleration", true, func(Config) admission.Plugin { return extendedResourceToleration{} }},
	{"DefaultStorageClass", false, func(c Config) admission.Plugin { return &defaultStorageClass{c.Cache} }},
	{"StorageObjectInUseProtection", false, func(Config) admission.Plugin { return storageObjectInUseProtection{} }},
	{"OwnerReferencesPermissionEnforcement", true, func(c Config) admission.Plugin { return &ownerReferencesPermissionEnforcement{c.Authorizer} }},
	{"PersistentVolumeClaimResize", false, func(c Config) admission.Plugin { return &persistentVolumeClaimResize{c.Cache} }},
	{"RuntimeClass", false, func(c Config) admission.Plugin { return &runtimeClass{c.Cache} }},
	{"CertificateApproval", false, func(c Config) admission.Plugin { return &certificateApproval{c.Authorizer} }},
	{"CertificateSigning", false, func(c Config) admission.Plugin { return &certificateSigning{c.Authorizer} }},
	{"ClusterTrustBundleAttest", false, func(c Config) admission.Plugin { return &clusterTrustBundleAttest{c.Authorizer} }},
	{"CertificateSubjectRestriction", false, func(Config) admission.Plugin { return certificateSubjectRestriction{} }},
	{"DefaultIngressClass", false, func(c Config) admission.Plugin { return &defaultIngressClass{c.Cache} }},
	{"DenyServiceExternalIPs", true, func(Config) admission.Plugin { return denyServiceExternalIPs{} }},
	{"PodTopologyLabels", false, func(c Config) admission.Plugin { return &podTopologyLabels{c.Cache} }},
	{"NodeDeclaredFeatureValidator", false, func(c Config) admission.Plugin { return &nodeDeclaredFeatureValidator{c.Cache} }},
	{"PodResizeValidator", false, func(c Config) admission.Plugin { return &podResizeValidator{c.Cache} }},
	{"MutatingAdmissionPolicy", false, func(c Config) admission.Plugin { return policy.NewMutating(c.policies()) }},
	{"MutatingAdmissionWebhook", false, func(c Config) admission.Plugin { return webhook.NewMutating(c.hooks(c.mutating)) }},
	{"ValidatingAdmissionPolicy", false, func(c Config) admission.Plugin { return policy.NewValidating(c.policies()) }},
	{"ValidatingAdmissionWebhook", false, func(c Config) admission.Plugin { return webhook.NewValidating(c.hooks(c.validating)) }},
	{"", false, func(c Config) admission.Plugin { return policy.NewAccess(c.policies()) }},
	{"", false, func(c Config) admission.Plugin { return &createAuthorization{c.Authorizer} }},
	{"", false, func(c Config) admission.Plugin { return &podCertificateSigning{c.Authorizer} }},
	{"", false, func(c Config) admission.Plugin { return &localVolumes{c.Cache} }},
	{"", false, func(c Config) admission.Plugin { return &rbacEscalation{c.RBAC, c.Authorizer} }},
	{"", false, func(c Config) admission.Plugin { return &resourceClaim{c.Cache, c.Authorizer} }},
	{"ResourceQuota", false, func(c Config) admission.Plugin { return newResourceQuota(c.Cache, c.limitedResources) }},
	{"AlwaysDeny", true, func(Config) admission.Plugin { return alwaysDeny{} }},
}

// idle are upstream's plugins that do nothing in v1.36 as it comes, so that
// turning them on or off changes nothing.
var idle = []string{
	"AlwaysAdmit",
	"JobValidation", // of PodGroups, as the next two: they are not served
	"PodGroupProtection",
	"PodGroupWorkloadExists",
}

func (c Config) policies() policy.Config {
	return policy.Config{Cache: c.Cache, Authorizer: c.Authorizer}
}

func (c Config) hooks(shown *webhook.Credentials) webhook.Config {
	return webhook.Config{Cache: c.Cache, Authorizer: c.Authorizer, Dial: c.Dial, Credentials: shown, Counts: c.Counts}
}

// New makes the plugins that run.
func New(c Config) ([]admission.Plugin, error) {
	if err := Check(c.Enable, c.Disable); err != nil {
		return nil, err
	}
	var plugins []admission.Plugin
	for _, e := range table {
		if e.name == "" || runs(e.name, c.Enable, c.Disable) {
			plugins = append(plugins, e.build(c))
		}
	}
	return plugins, nil
}

// runs reports whether a plugin does.
func runs(name string, enable, disable []string) bool {
	on := slices.ContainsFunc(table, func(e entry) bool { return e.name == name && !e.off })
	return (on || slices.Contains(enable, name)) && !slices.Contains(disable, name)
}

// Check finds names that stand for nothing, and contradictions.
func Check(enable, disable []string) error {
	for _, name := range enable {
		if slices.Contains(disable, name) {
			return fmt.Errorf("%s in enable-admission-plugins and disable-admission-plugins overlapped", name)
		}
	}
	for flag, list := range map[string][]string{"enable-admission-plugins": enable, "disable-admission-plugins": disable} {
		for _, name := range list {
			if !known(name) {
				return fmt.Errorf("%s plugin %q is unknown; there are %s", flag, name, strings.Join(names(), ", "))
			}
		}
	}
	return nil
}

func known(name string) bool { return slices.Contains(names(), name) }

// names are all that stand for a plugin.
func names() []string {
	all := slices.Clone(idle)
	for _, e := range table {
		if e.name != "" {
			all = append(all, e.name)
		}
	}
	slices.Sort(all)
	return all
}
