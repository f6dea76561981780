package registry

import (
	"context"
	"strings"
	"testing"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
)

func TestStorageVersionName(t *testing.T) {
	for name, want := range map[string]string{
		"core.pods": "", "apps.deployments": "", "internal.apiserver.k8s.io.storageversions": "",
		"pods":      "name must be in the form of <group>.<resource>",
		"Apps.pods": "the group segment a lowercase RFC 1123 subdomain",
		"apps.1":    "the resource segment a DNS-1035 label",
		"apps.":     "the resource segment a DNS-1035 label",
	} {
		got := strings.Join(storageVersionName(name, false), "; ")
		if want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestStorageVersionStatus(t *testing.T) {
	entry := func(id, version string, decodable ...string) apiserverinternalv1alpha1.ServerStorageVersion {
		return apiserverinternalv1alpha1.ServerStorageVersion{APIServerID: id, EncodingVersion: version, DecodableVersions: decodable, ServedVersions: decodable[:1]}
	}
	of := func(common string, all ...apiserverinternalv1alpha1.ServerStorageVersion) storageVersion {
		v := &apiserverinternalv1alpha1.StorageVersion{}
		v.Status.StorageVersions = all
		if common != "" {
			v.Status.CommonEncodingVersion = &common
		}
		return v
	}
	conditional := func(all ...apiserverinternalv1alpha1.StorageVersionCondition) storageVersion {
		v := of("")
		v.Status.Conditions = all
		return v
	}
	unserved := entry("a", "v1", "v1")
	unserved.ServedVersions = []string{"v2"}
	whole := apiserverinternalv1alpha1.StorageVersionCondition{Type: "T", Status: "True", Reason: "R", Message: "m"}
	const at = "status.storageVersions[0]."
	for name, c := range map[string]struct {
		v    storageVersion
		want string
	}{
		"none":             {of(""), ""},
		"agree":            {of("apps/v1", entry("a", "apps/v1", "apps/v1"), entry("b", "apps/v1", "apps/v1", "apps/v2")), ""},
		"disagree":         {of("", entry("a", "v1", "v1"), entry("b", "v2", "v2")), ""},
		"one of two":       {of("", entry("a", "v1", "v1"), entry("b", "v2", "v2"), entry("c", "v2", "v2")), ""},
		"nobody says":      {of("v1"), `status.commonEncodingVersion: Invalid value: "v1": should be nil if servers do not agree on the same encoding version, or if there is no server reporting the supported versions yet`},
		"not agreed":       {of("v1", entry("a", "v1", "v1"), entry("b", "v2", "v2")), `status.commonEncodingVersion: Invalid value: "v1": should be nil`},
		"agreed":           {of("", entry("a", "v1", "v1")), `status.commonEncodingVersion: Invalid value: null: the common encoding version is v1`},
		"agreed otherwise": {of("v2", entry("a", "v1", "v1")), `status.commonEncodingVersion: Invalid value: "v2": the actual common encoding version is v1`},
		"twice":            {of("v1", entry("a", "v1", "v1"), entry("a", "v1", "v1")), `status.storageVersions[1].apiServerID: Duplicate value: "a"`},
		"no server":        {of("v1", entry("A", "v1", "v1")), at + `apiServerID: Invalid value: "A": a lowercase RFC 1123 subdomain`},
		"no version":       {of("/v1", entry("a", "/v1", "/v1")), at + `encodingVersion: Invalid value: "/v1": group part: must be non-empty`},
		"no version part":  {of("a/", entry("a", "a/", "a/")), at + `encodingVersion: Invalid value: "a/": version part: must be non-empty`},
		"three parts":      {of("a/b/c", entry("a", "a/b/c", "a/b/c")), at + `encodingVersion: Invalid value: "a/b/c": an apiVersion is a DNS-1035 label`},
		"cannot decode":    {of("v1", entry("a", "v1", "v2")), at + `decodableVersions: Invalid value: ["v2"]: decodableVersions must include encodingVersion v1`},
		"cannot serve":     {of("v1", unserved), at + `servedVersions[0]: Invalid value: "v2": individual served version : v2 must be included in decodableVersions : [v1]`},
		"condition":        {conditional(whole), ""},
		"same condition":   {conditional(whole, whole), `status[1].type: Invalid value: "T": the type of the condition is not unique, it also appears in conditions[0]`},
		"no reason":        {conditional(apiserverinternalv1alpha1.StorageVersionCondition{Type: "T", Status: "True", Message: "m"}), "status[0].reason: Required value"},
		"no message":       {conditional(apiserverinternalv1alpha1.StorageVersionCondition{Type: "T", Status: "True", Reason: "R"}), "status[0].message: Required value"},
		"no type":          {conditional(apiserverinternalv1alpha1.StorageVersionCondition{Status: "True", Reason: "R", Message: "m"}), `status[0].type: Invalid value: "": name part must be non-empty`},
	} {
		got := ""
		if err := validateStorageVersionStatus(context.Background(), c.v, nil).ToAggregate(); err != nil {
			got = strings.TrimPrefix(err.Error(), "[")
		}
		if c.want == "" && got != "" || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s\nwant %s", name, got, c.want)
		}
	}
}

// TestStorageVersionCells: a few servers are shown, and how many are not.
func TestStorageVersionCells(t *testing.T) {
	v := &apiserverinternalv1alpha1.StorageVersion{}
	cells := func() (out []any) {
		for _, c := range storageVersions.Columns[1:3] {
			out = append(out, c.Cell(v))
		}
		return out
	}
	if got := cells(); got[0] != "<unset>" || got[1] != "<unset>" {
		t.Errorf("no server: %v", got)
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		v.Status.StorageVersions = append(v.Status.StorageVersions, apiserverinternalv1alpha1.ServerStorageVersion{APIServerID: id, EncodingVersion: "v1"})
	}
	v.Status.CommonEncodingVersion = new("v1")
	if got := cells(); got[0] != "v1" || got[1] != "a=v1,b=v1,c=v1 + 1 more..." {
		t.Errorf("four servers: %v", got)
	}
}
