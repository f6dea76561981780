package admission

import (
	"fmt"
	"slices"
	"strings"

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
	build func(Config) Plugin
}

// table are the plugins in upstream's order.
var table = []entry{
	{"NamespaceLifecycle", false, func(c Config) Plugin { return &namespaceLifecycle{c.Cache} }},
	{"LimitRanger", false, func(c Config) Plugin { return &limitRanger{c.Cache} }},
	{"ServiceAccount", false, func(c Config) Plugin { return &serviceAccount{c.Cache} }},
	{"NodeRestriction", false, func(c Config) Plugin { return &nodeRestriction{c.Cache, c.Authorizer} }},
	{"TaintNodesByCondition", false, func(Config) Plugin { return taintNodesByCondition{} }},
	{"AlwaysPullImages", true, func(Config) Plugin { return alwaysPullImages{} }},
	{"PodSecurity", false, func(c Config) Plugin { return newPodSecurity(c.Cache) }},
	{"Priority", false, func(c Config) Plugin { return &priority{c.Cache} }},
	{"DefaultTolerationSeconds", false, func(Config) Plugin { return defaultTolerationSeconds{} }},
	{"RuntimeClass", false, func(c Config) Plugin { return &runtimeClass{c.Cache} }},
	{"DenyServiceExternalIPs", true, func(Config) Plugin { return denyServiceExternalIPs{} }},
	{"MutatingAdmissionPolicy", false, func(c Config) Plugin { return policy.NewMutating(c.policies()) }},
	{"MutatingAdmissionWebhook", false, func(c Config) Plugin { return webhook.NewMutating(c.hooks()) }},
	{"ValidatingAdmissionPolicy", false, func(c Config) Plugin { return policy.NewValidating(c.policies()) }},
	{"ValidatingAdmissionWebhook", false, func(c Config) Plugin { return webhook.NewValidating(c.hooks()) }},
	{"", false, func(c Config) Plugin { return policy.NewAccess(c.policies()) }},
	{"", false, func(c Config) Plugin { return &createAuthorization{c.Authorizer} }},
	{"", false, func(c Config) Plugin { return &rbacEscalation{c.RBAC, c.Authorizer} }},
	{"", false, func(c Config) Plugin { return &resourceClaim{c.Cache, c.Authorizer} }},
	{"ResourceQuota", false, func(c Config) Plugin { return newResourceQuota(c.Cache) }},
}

// absent are upstream's plugins that are not here: turning one off is no
// mistake.
var absent = []string{
	"AlwaysAdmit", "AlwaysDeny", "CertificateApproval", "CertificateSigning", "CertificateSubjectRestriction",
	"ClusterTrustBundleAttest", "DefaultIngressClass", "DefaultStorageClass", "EventRateLimit",
	"ExtendedResourceToleration", "ImagePolicyWebhook",
	"JobValidation", "LimitPodHardAntiAffinityTopology", "NamespaceAutoProvision", "NamespaceExists",
	"NodeDeclaredFeatureValidator", "OwnerReferencesPermissionEnforcement", "PersistentVolumeClaimResize",
	"PodGroupProtection", "PodGroupWorkloadExists", "PodNodeSelector", "PodResizeValidator",
	"PodTolerationRestriction", "PodTopologyLabels", "StorageObjectInUseProtection",
}

func (c Config) policies() policy.Config {
	return policy.Config{Cache: c.Cache, Authorizer: c.Authorizer}
}

func (c Config) hooks() webhook.Config {
	return webhook.Config{Cache: c.Cache, Authorizer: c.Authorizer, Dial: c.Dial}
}

// Plugins are those that run.
func Plugins(c Config) ([]Plugin, error) {
	if err := Check(c.Enable, c.Disable); err != nil {
		return nil, err
	}
	var plugins []Plugin
	for _, e := range table {
		on := !e.off || slices.Contains(c.Enable, e.name)
		if on && (e.name == "" || !slices.Contains(c.Disable, e.name)) {
			plugins = append(plugins, e.build(c))
		}
	}
	return plugins, nil
}

// Check finds names that stand for nothing, and contradictions.
func Check(enable, disable []string) error {
	known := func(name string) bool {
		return name != "" && slices.ContainsFunc(table, func(e entry) bool { return e.name == name })
	}
	for _, name := range enable {
		switch {
		case slices.Contains(disable, name):
			return fmt.Errorf("%s in enable-admission-plugins and disable-admission-plugins overlapped", name)
		case slices.Contains(absent, name):
			return fmt.Errorf("enable-admission-plugins plugin %q is not built; there are %s", name, names())
		case !known(name):
			return fmt.Errorf("enable-admission-plugins plugin %q is unknown; there are %s", name, names())
		}
	}
	for _, name := range disable {
		if !known(name) && !slices.Contains(absent, name) {
			return fmt.Errorf("disable-admission-plugins plugin %q is unknown; there are %s", name, names())
		}
	}
	return nil
}

func names() string {
	var all []string
	for _, e := range table {
		if e.name != "" {
			all = append(all, e.name)
		}
	}
	return strings.Join(all, ", ")
}
