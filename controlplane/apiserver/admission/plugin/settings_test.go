package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/apiserver/watchcache"
)

// The part after the plugin's name is what upstream's kube-apiserver v1.36.3
// says, before a cure.
func TestLoadRefuses(t *testing.T) {
	kinds := map[string]string{
		"EventRateLimit":             "apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration",
		"PodSecurity":                "apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration",
		"ResourceQuota":              "apiVersion: apiserver.config.k8s.io/v1, kind: ResourceQuotaConfiguration",
		"PodTolerationRestriction":   "apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1, kind: Configuration",
		"ValidatingAdmissionWebhook": "apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration",
	}
	for _, tt := range []struct{ plugin, text, want string }{
		{"EventRateLimit", "limits: [{type: X, qps: 0, burst: -1}]", `[limits[0].type: Unsupported value: "X": supported values: "Namespace", "Server", "SourceAndObject", "User", limits[0].burst: Invalid value: -1: must be positive, limits[0].qps: Invalid value: 0: must be positive]`},
		{"EventRateLimit", "limits: [{type: User, qps: 1, burst: 1, cacheSize: -1}]", `limits[0].cacheSize: Invalid value: -1: must not be negative`},
		{"EventRateLimit", "limits: []", `limits: Invalid value: []: must not be empty`},
		{"EventRateLimit", "limits: [{typ: User}]", `strict decoding error: unknown field "limits[0].typ"`},
		{"PodSecurity", "defaults: {enforce: strict}", `PodSecurity configuration error: enforce: must be one of privileged, baseline, restricted`},
		{"PodSecurity", "exemptions: {usernames: ['']}", `PodSecurity invalid: exemptions.usernames[0]: Invalid value: "": username must not be empty`},
		{"PodSecurity", "default: {}", `strict decoding error: unknown field "default"`},
		{"ResourceQuota", "limitedResources: [{apiGroup: apps}]", `limitedResources[0].resource: Required value`},
		{"ValidatingAdmissionWebhook", "kubeConfigFile: relative", `kubeConfigFile: Invalid value: "relative": must be an absolute file path`},
		{"ValidatingAdmissionWebhook", "kubeConfigFile: /nosuch", `kubeConfigFile: Invalid value: "/nosuch": stat /nosuch: no such file or directory`},
		{"ValidatingAdmissionWebhook", "staticManifestsDir: /tmp", `staticManifestsDir: Forbidden: staticManifestsDir requires the ManifestBasedAdmissionControlConfig feature gate to be enabled`},
		{"PodTolerationRestriction", "default: [{key: a, operator: X}]", `invalid config: [podtolerationrestriction.default[0].operator: Unsupported value: "X": supported values: "Equal", "Exists"]`},
		{"ImagePolicyWebhook", "imagePolicy: {kubeConfigFile: /nosuch, allowTTL: 100000}", `imagePolicy.allowTTL: Invalid value: 100000: valid value is between 1s and 30m0s, got 27h46m40s`},
		{"ImagePolicyWebhook", "imagePolicy: {kubeConfigFile: /nosuch}", `imagePolicy.kubeConfigFile: Invalid value: "/nosuch": stat /nosuch: no such file or directory`},
		{"ImagePolicyWebhook", "imagePolicy: {}", `imagePolicy.kubeConfigFile: Required value: name the kubeconfig`},
		{"PodNodeSelector", "podNodeSelectorPluginConfig: {ns: a in (b)}", `podNodeSelectorPluginConfig[ns]: Invalid value: "a in (b)": invalid selector: [a in (b)]`},
		{"PodNodeSelector", "podNodeSelectorPluginConfig: {ns: [a]}", `write podNodeSelectorPluginConfig: and under it NAMESPACE: key=value: `},
	} {
		section := "{" + tt.text + "}"
		if kind := kinds[tt.plugin]; kind != "" {
			section = "{" + kind + ", " + tt.text + "}"
		}
		file := write(t, "config.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: "+tt.plugin+"\n  configuration: "+section+"\n")
		_, err := Load(file, []string{tt.plugin}, nil)
		want := "admission control configuration " + file + `: couldn't init admission plugin "` + tt.plugin + `": ` + tt.want
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s\n%v, want\n%s", tt.text, err, want)
		}
	}
}

func TestLoadRefusesTheFile(t *testing.T) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n"
	for text, want := range map[string]string{
		head + "plugin: []": `strict decoding error: unknown field "plugin"`,
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfig": `no kind "AdmissionConfig" is registered for version "apiserver.config.k8s.io/v1"; write kind: AdmissionConfiguration and apiVersion: apiserver.config.k8s.io/v1`,
		"a: b":                                   `Object 'apiVersion' is missing; write kind: AdmissionConfiguration`,
		"apiVersion: apiserver.config.k8s.io/v1": `Object 'Kind' is missing; `,
		head + "plugins: [{name: Nosuch}]":       `plugins[0].name: Unsupported value: "Nosuch": supported values: "AlwaysAdmit", `,
		head + "plugins: [{name: PodSecurity, path: nosuch.yaml}]": `plugins[0].path: Invalid value: "nosuch.yaml": open `,
		head + "kind: Twice": `yaml: `,
	} {
		file := write(t, "config.yaml", text)
		_, err := Load(file, nil, nil)
		if want = "admission control configuration " + file + ": " + want; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v, want\n%s", text, err, want)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "nosuch"), nil, nil); err == nil {
		t.Error("a file that is not there was read")
	}
	if _, err := Load("", []string{"EventRateLimit"}, nil); err == nil || !strings.HasPrefix(err.Error(), `admission control configuration without --admission-control-config-file: couldn't init admission plugin "EventRateLimit": limits: `) {
		t.Error(err)
	}
	// What a plugin that does not run would be told matters to nobody.
	if _, err := Load(write(t, "config.yaml", head+"plugins: [{name: EventRateLimit, configuration: {}}]"), nil, nil); err != nil {
		t.Error(err)
	}
}

// Before it had a kind, the file was for one plugin alone.
func TestLoadOldForms(t *testing.T) {
	s, err := Load(write(t, "old.yaml", "podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: a=b}"), []string{"PodNodeSelector"}, nil)
	if err != nil || s.podNodeSelectors["clusterDefaultNodeSelector"] != "a=b" {
		t.Error(s.podNodeSelectors, err)
	}
	s, err = Load(write(t, "new.yaml", "apiVersion: apiserver.k8s.io/v1alpha1\nkind: AdmissionConfiguration\nplugins:\n- name: ResourceQuota\n  configuration: {apiVersion: resourcequota.admission.k8s.io/v1beta1, kind: Configuration, limitedResources: [{resource: pods, matchContains: [cpu]}]}"), nil, nil)
	if err != nil || len(s.limitedResources) != 1 || s.limitedResources[0].Resource != "pods" {
		t.Error(s.limitedResources, err)
	}
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Every plugin of upstream's has a place: in the table, in upstream's order, or
// among those that do nothing.
func TestTable(t *testing.T) {
	upstream := strings.Fields(`AlwaysAdmit NamespaceAutoProvision NamespaceLifecycle NamespaceExists LimitPodHardAntiAffinityTopology
		LimitRanger ServiceAccount NodeRestriction TaintNodesByCondition AlwaysPullImages ImagePolicyWebhook PodSecurity PodNodeSelector
		Priority DefaultTolerationSeconds PodTolerationRestriction EventRateLimit ExtendedResourceToleration DefaultStorageClass
		StorageObjectInUseProtection PodGroupProtection OwnerReferencesPermissionEnforcement PersistentVolumeClaimResize RuntimeClass
		CertificateApproval CertificateSigning ClusterTrustBundleAttest CertificateSubjectRestriction DefaultIngressClass
		DenyServiceExternalIPs PodTopologyLabels PodGroupWorkloadExists NodeDeclaredFeatureValidator JobValidation PodResizeValidator
		MutatingAdmissionPolicy MutatingAdmissionWebhook ValidatingAdmissionPolicy ValidatingAdmissionWebhook ResourceQuota AlwaysDeny`)
	off := strings.Fields(`NamespaceAutoProvision NamespaceExists LimitPodHardAntiAffinityTopology AlwaysPullImages ImagePolicyWebhook
		PodNodeSelector PodTolerationRestriction EventRateLimit ExtendedResourceToleration OwnerReferencesPermissionEnforcement
		DenyServiceExternalIPs AlwaysDeny`)
	store := storage.NewMemory()
	defer store.Close()
	cfg := Config{Cache: watchcache.New(store, registry.Resources)}
	var ours []string
	for _, e := range table {
		if e.name == "" {
			continue
		}
		ours = append(ours, e.name)
		if e.off != strings.Contains(" "+strings.Join(off, " ")+" ", " "+e.name+" ") {
			t.Errorf("%s: off is %t", e.name, e.off)
		}
		if got := e.build(cfg).Name(); got != e.name {
			t.Errorf("%s calls itself %s", e.name, got)
		}
	}
	var want []string
	for _, name := range upstream {
		if !strings.Contains(strings.Join(idle, " "), name) {
			want = append(want, name)
		}
	}
	if strings.Join(ours, " ") != strings.Join(want, " ") {
		t.Errorf("ours\n%v, upstream's\n%v", ours, want)
	}
}
