package kubelet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// provide gives a node a plugin for reg.io, a shell script, that answers with the right
// password where it gets a token of the service account good.
func (n *node) provide() {
	n.t.Helper()
	bin := n.t.TempDir()
	script := `#!/bin/sh
password=wrong
case "$(cat)" in *'"serviceAccountToken":"token-of-good","serviceAccountAnnotations":{"role":"puller"}'*) password=$1;; esac
echo '{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":"Registry","auth":{"reg.io":{"username":"u","password":"'$password'"}}}'
`
	config := `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: plugin
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: [reg.io/team]
  defaultCacheDuration: 1h
  args: [right]
  tokenAttributes: {serviceAccountTokenAudience: reg.io, requireServiceAccount: true, cacheType: ServiceAccount, requiredServiceAccountAnnotationKeys: [role]}
`
	file := filepath.Join(bin, "config.yaml")
	for path, text := range map[string]string{filepath.Join(bin, "plugin"): script, file: config} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			n.t.Fatal(err)
		}
	}
	n.config = func(c *Config) { c.CredentialProviders, c.CredentialProviderBinDir = file, bin }
	n.api.mu.Lock()
	defer n.api.mu.Unlock()
	for _, name := range []string{"good", "bad"} {
		n.api.put("/api/v1/namespaces/ns/serviceaccounts/"+name, map[string]any{"kind": "ServiceAccount", "apiVersion": "v1",
			"metadata": map[string]any{"name": name, "namespace": "ns", "uid": "uid-" + name, "annotations": map[string]any{"role": "puller"}}}, "ADDED")
	}
}

// TestCredentialProviders: a private image is pulled with what a plugin gives for the
// pod's service account, and is then there for its pods alone.
func TestCredentialProviders(t *testing.T) {
	n := newNode(t)
	n.rt.Registry = registry
	n.provide()
	defer n.start()()
	of := func(name, account string, policy corev1.PullPolicy) *corev1.Pod {
		p := user(name, private, "", policy)
		p.Spec.ServiceAccountName = account
		return p
	}
	n.api.addPod(of("owner", "good", corev1.PullIfNotPresent))
	n.until("ready", n.ready("owner"))
	n.api.addPod(of("stranger", "bad", corev1.PullIfNotPresent))
	n.until("refused", n.waits("stranger", "ErrImagePull"))
	n.api.addPod(of("never", "bad", corev1.PullNever))
	n.until("refused", n.waits("never", "ErrImageNeverPull"))
	before := n.pulls()
	n.api.addPod(of("second", "good", corev1.PullNever))
	n.until("ready without a pull", n.ready("second"))
	if got := n.pulls(); got != before {
		t.Errorf("%d pulls for a service account that may have the image", got-before)
	}
	files, _ := filepath.Glob(filepath.Join(n.dir, "kubelet", "image_manager", "pulled", "sha256-*"))
	if len(files) != 1 {
		t.Fatal(files)
	}
	b, err := os.ReadFile(files[0])
	if err != nil || !strings.Contains(string(b), `"kubernetesServiceAccounts":[{"uid":"uid-good","namespace":"ns","name":"good"}]`) {
		t.Errorf("%s, %v", b, err)
	}
	all := asked(t, n.k, "/metrics")
	if got := total(all["kubelet_credential_provider_plugin_duration"], "plugin"); got < 2 {
		t.Errorf("%v runs were counted", got)
	}
	if got := total(all["kubelet_credential_provider_config_info"], n.k.plugins.Hash()); got != 1 {
		t.Errorf("the configuration's hash is not told")
	}
	upstreamNames(t, all)
}

// TestSlowCredentialProvider: while a plugin takes its time for one image, others are pulled,
// also where it is one after the other; and it is not waited for once its pod is deleted.
func TestSlowCredentialProvider(t *testing.T) {
	n := newNode(t)
	bin := t.TempDir()
	file, program, pipe := filepath.Join(bin, "config.yaml"), filepath.Join(bin, "plugin"), filepath.Join(bin, "pipe")
	config := `{"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [{"name": "plugin",
		"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "matchImages": ["reg.io/slow"], "defaultCacheDuration": "0s", "args": ["` + pipe + `"]}]}`
	script := `#!/bin/sh
cat "$1"
echo '{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":"Image","auth":{}}'
`
	for path, text := range map[string]string{file: config, program: script} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	n.config = func(c *Config) {
		c.CredentialProviders, c.CredentialProviderBinDir, c.Settings.SerializeImagePulls = file, bin, new(true)
	}
	n.rt.Registry = func(string, *cri.AuthConfig) error { return nil }
	defer n.start()()
	n.api.addPod(user("deleted", "reg.io/slow/a:1", "", corev1.PullIfNotPresent))
	first, err := os.OpenFile(pipe, os.O_WRONLY, 0) // once the plugin reads
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	n.api.deletePod("deleted")
	n.until("gone", func() bool { return n.api.pod("deleted") == nil })
	n.api.addPod(user("slow", "reg.io/slow/b:1", "", corev1.PullIfNotPresent))
	var second *os.File
	n.until("the plugin is asked again", func() bool { // without a reader it is not opened
		second, err = os.OpenFile(pipe, os.O_WRONLY|unix.O_NONBLOCK, 0)
		return err == nil
	})
	n.api.addPod(user("other", "reg.io/other:1", "", corev1.PullIfNotPresent))
	n.until("ready", n.ready("other"))
	if got := n.pulls(); got != 1 {
		t.Errorf("%d pulls", got)
	}
	first.Close()
	second.Close()
	n.until("ready", n.ready("slow"))
}
