package plugin

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The configuration of admission is read or refused, each plugin's part of it,
// too.
func FuzzSettings(f *testing.F) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"
	f.Add([]byte(head + "- name: PodSecurity\n  configuration:\n    apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n    defaults: {enforce: baseline}\n    exemptions: {usernames: [a]}\n"))
	f.Add([]byte(head + "- name: EventRateLimit\n  configuration: {apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration, limits: [{type: Server, qps: 1, burst: 1}]}\n"))
	f.Add([]byte(head + "- name: ResourceQuota\n  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: ResourceQuotaConfiguration, limitedResources: [{resource: pods, matchContains: [a]}]}\n"))
	f.Add([]byte(head + "- name: PodTolerationRestriction\n  configuration: {apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1, kind: Configuration, default: [{key: a}]}\n"))
	f.Add([]byte("podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: 'a=b', ns: ',,'}\n"))
	f.Add([]byte("imagePolicy: {allowTTL: 1}\n"))
	f.Add([]byte("plugins: [{}]"))
	file := filepath.Join(f.TempDir(), "config")
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, other := range []string{"path", "kubeConfig", "\\"} {
			if bytes.Contains(bytes.ToLower(data), bytes.ToLower([]byte(other))) {
				t.Skip("may name other files")
			}
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		sections, err := readSections(file)
		if err != nil {
			return
		}
		for _, r := range readers {
			var s Settings
			_ = r.read(&s, sections[r.plugin])
		}
		for _, r := range readers { // a part is not always of the plugin it names
			var s Settings
			_ = r.read(&s, data)
		}
	})
}
