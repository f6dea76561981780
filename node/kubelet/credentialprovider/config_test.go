package credentialprovider

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	kubeletconfig "k8s.io/kubelet/config/v1"
)

const good = `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: plugin
  matchImages: ["*.example.com"]
  defaultCacheDuration: 1m
  apiVersion: credentialprovider.kubelet.k8s.io/v1
`

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestReadConfig: one file, or those of a directory in the order of their names; a
// changed file is another hash.
func TestReadConfig(t *testing.T) {
	dir := t.TempDir()
	one := write(t, filepath.Join(dir, "b.yaml"), good)
	c, hash, err := readConfig(one)
	if err != nil || len(c.Providers) != 1 || !strings.HasPrefix(hash, "sha256:") {
		t.Fatal(c, hash, err)
	}
	write(t, filepath.Join(dir, "a.json"), `{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"CredentialProviderConfig","providers":[{"name":"first"}]}`)
	write(t, filepath.Join(dir, "ignored.txt"), "no")
	c, both, err := readConfig(dir)
	if err != nil || len(c.Providers) != 2 || c.Providers[0].Name != "first" || both == hash {
		t.Fatal(c, both, err)
	}
	write(t, filepath.Join(dir, "c.yml"), good)
	if _, _, err := readConfig(dir); err == nil || err.Error() != `duplicate provider name "plugin" found in configuration file(s)` {
		t.Error(err)
	}
	if _, _, err := readConfig(t.TempDir()); err == nil || !strings.HasPrefix(err.Error(), "no configuration files found in directory") {
		t.Error(err)
	}
}

func TestDecodeConfig(t *testing.T) {
	for text, want := range map[string]string{
		"": `failed to decode "" (wrong Kind)`,
		strings.Replace(good, "kubelet.config.k8s.io/v1", "example.com/v1", 1):           "failed to decode CredentialProviderConfig, unexpected Group: example.com",
		strings.Replace(good, "kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v3", 1): `no kind "CredentialProviderConfig" is registered for version "kubelet.config.k8s.io/v3"`,
		good + "  what: x\n": `strict decoding error: unknown field "providers[0].what"`,
		strings.Replace(good, "k8s.io/v1\n", "k8s.io/v1alpha1\n", 1) + "  tokenAttributes: {serviceAccountTokenAudience: a}\n": `strict decoding error: unknown field "providers[0].tokenAttributes"`,
	} {
		if _, err := decodeConfig([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// TestValidate: everything that is wrong is said at once, as upstream says it.
func TestValidate(t *testing.T) {
	for text, want := range map[string][]string{
		"providers: []": {`providers: Required value: at least 1 item in plugins is required`},
		"providers: [{name: a/b c}]": {
			`providers.name: Invalid value: "a/b c": provider name cannot contain '/'`, `providers.name: Invalid value: "a/b c": provider name cannot contain spaces`,
			`providers.apiVersion: Required value`, `providers.matchImages: Required value: at least 1 item in matchImages is required`, `providers.defaultCacheDuration: Required value`,
		},
		`providers: [{name: .., apiVersion: v9, matchImages: ["%zz"], defaultCacheDuration: -1s}]`: {
			`providers.name: Invalid value: "..": provider name cannot be '..'`,
			`providers.apiVersion: Unsupported value: "v9": supported values: "credentialprovider.kubelet.k8s.io/v1", "credentialprovider.kubelet.k8s.io/v1alpha1", "credentialprovider.kubelet.k8s.io/v1beta1"`,
			`providers.matchImages: Invalid value: "%zz": match image is invalid: parse "https://%zz": invalid URL escape "%zz"`,
			`must be greater than or equal to 0`,
		},
		`providers: [{name: a, apiVersion: credentialprovider.kubelet.k8s.io/v1beta1, matchImages: [x.io], defaultCacheDuration: 0s, tokenAttributes: {requireServiceAccount: false, requiredServiceAccountAnnotationKeys: [a.b/C, a.b/C, "a b"], optionalServiceAccountAnnotationKeys: [a.b/C]}}]`: {
			`providers.tokenAttributes.serviceAccountTokenAudience: Required value`,
			`providers.tokenAttributes: Forbidden: tokenAttributes is only supported for credentialprovider.kubelet.k8s.io/v1 API version`,
			`requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set`,
			`providers.tokenAttributes.requiredServiceAccountAnnotationKeys: Duplicate value: "a.b/C"`,
			`providers.tokenAttributes.requiredServiceAccountAnnotationKeys: Invalid value: "a b"`,
			`annotation keys cannot be both required and optional`,
			`providers.tokenAttributes.cacheType: Required value: cacheType is required to be set when tokenAttributes is specified. Supported values are: ServiceAccount, Token`,
		},
		`providers: [{name: a, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [x.io], defaultCacheDuration: 0s, tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: true, cacheType: Token}}]`: nil,
	} {
		c, err := decodeConfig([]byte("{apiVersion: kubelet.config.k8s.io/v1, kind: CredentialProviderConfig, " + text + "}"))
		if err != nil {
			t.Fatal(text, err)
		}
		got := ""
		if errs := validate(c); len(errs) > 0 {
			got = errs.ToAggregate().Error()
		}
		if want == nil && got != "" {
			t.Errorf("%s: %s", text, got)
		}
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s:\n%s\nlacks %s", text, got, w)
			}
		}
	}
	if errs := validate(&kubeletconfig.CredentialProviderConfig{}); len(errs) != 1 {
		t.Error(errs)
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, image string
		want           bool
	}{
		{"reg.io", "reg.io/a/b", true}, {"reg.io/a", "reg.io/a/b", true}, {"reg.io/b", "reg.io/a/b", false}, {"reg.io/te", "reg.io/team/b", true},
		{"*.reg.io", "x.reg.io/a", true}, {"*.reg.io", "reg.io/a", false}, {"*.reg.io", "x.y.reg.io/a", false}, {"*.*.reg.io", "x.y.reg.io/a", true},
		{"a*.reg.io", "ab.reg.io/a", true}, {"reg.*", "reg.io:5000/a", false}, {"reg.*:5000", "reg.io:5000/a", true}, {"reg.io:5000", "reg.io/a", false},
		{"*", "localhost:5000/a", false}, {"u@reg.io", "reg.io/a", false}, {"reg.io?x", "reg.io/a", false}, {"[", "reg.io/a", false}, {"", "reg.io/a", false},
	} {
		if got := Matches(c.pattern, c.image); got != c.want {
			t.Errorf("%s for %s: %v", c.pattern, c.image, got)
		}
	}
}

// What a file says is either refused or what plugins are made of.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(`{"apiVersion":"kubelet.config.k8s.io/v1","kind":"CredentialProviderConfig","providers":[{"tokenAttributes":{}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeConfig(b)
		if err != nil || len(validate(c)) > 0 {
			return
		}
		for _, p := range c.Providers {
			if p.Name == "" && len(p.MatchImages) == 0 || strings.Contains(p.Name, "/") || p.DefaultCacheDuration == nil {
				t.Fatalf("taken: %+v", p)
			}
		}
	})
}
