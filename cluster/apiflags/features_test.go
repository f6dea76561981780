package apiflags

import (
	"strings"
	"testing"
)

func TestFeatures(t *testing.T) {
	for asked, want := range map[string]string{
		"APIServerIdentity=true":                                    "",
		"kube:APIServerIdentity=true":                               "",
		"AllAlpha=false":                                            "",
		"AllowUnsafeMalformedObjectDeletion=true":                   "",
		"JobSuccessPolicy=true":                                     "",
		"StorageVersionMigrator=true":                               "",
		"StorageVersionAPI=true":                                    "",
		"HPAScaleToZero=true":                                       "",
		"StorageVersionMigrator=false":                              "",
		"ClusterTrustBundle=true,ClusterTrustBundleProjection=true": "",
		"ClusterTrustBundleProjection=true":                         "ClusterTrustBundleProjection is enabled, but depends on features that are disabled: [ClusterTrustBundle]",
		"Nonesuch=true":                                             "unrecognized feature gate: Nonesuch",
		"APIServerIdentity":                                         "missing bool value for APIServerIdentity",
		"APIServerIdentity=maybe":                                   `invalid value of APIServerIdentity=maybe, err: strconv.ParseBool: parsing "maybe": invalid syntax`,
		"JobSuccessPolicy=false":                                    "cannot set feature gate JobSuccessPolicy to false, feature is locked to true",
		"APIServerIdentity=false":                                   "--feature-gates: APIServerIdentity is always true here: leave it out",
		"AllAlpha=true":                                             "--feature-gates: AllAlpha is always false here: leave it out",
	} {
		on, err := turnedOn(strings.Split(asked, ","))
		if got := text(err); got != want {
			t.Errorf("%s\n got %s\nwant %s", asked, got, want)
		}
		if name, ok := strings.CutSuffix(asked, "=true"); ok && err == nil && !strings.Contains(name, ",") && !on[strings.TrimPrefix(name, "kube:")] {
			t.Error("the feature is not on:", asked)
		}
	}
}

func TestVersions(t *testing.T) {
	for _, c := range []struct{ key, value, want string }{
		{"apps/v1", "true", ""},
		{"apps/v1", "", ""},
		{"v1", "true", ""},
		{"api/ga", "true", ""},
		{"api/alpha", "false", ""},
		{"batch/v1/jobs", "true", ""},
		{"apps/v1beta1", "false", ""},
		{"storagemigration.k8s.io/v1beta1", "true", ""},
		{"internal.apiserver.k8s.io/v1alpha1", "true", ""},
		{"storagemigration.k8s.io/v1beta1", "false", ""},
		{"storagemigration.k8s.io/v1beta1/storageversionmigrations", "", ""},
		{"certificates.k8s.io/v1beta1/clustertrustbundles", "true", ""},
		{"nonesuch/v1", "true", "unknown api groups nonesuch/v1"},
		{"apps/v9", "true", "group version apps/v9 that has not been registered"},
		{"apps", "true", "runtime-config invalid key apps"},
		{"api/beta", "maybe", "invalid value api/beta=maybe"},
		{"apps/v1", "false", "--runtime-config: apps/v1 is always true here: leave it out"},
		{"api/beta", "true", "--runtime-config: api/beta is always false here: leave it out"},
	} {
		also, err := versions(map[string]string{c.key: c.value})
		if got := text(err); got != c.want {
			t.Errorf("%s=%s\n got %s\nwant %s", c.key, c.value, got, c.want)
		}
		if optional := (strings.Contains(c.key, ".k8s.io/v1beta1") || strings.Contains(c.key, "v1alpha1")) && c.value != "false"; optional != (len(also) > 0) {
			t.Errorf("%s=%s: served besides: %v", c.key, c.value, also)
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
