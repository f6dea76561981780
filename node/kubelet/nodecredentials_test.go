package kubelet

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestDockerConfig: the first file that holds credentials counts, of today's form before
// the old one; what is no such file is left out.
func TestDockerConfig(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	old := put(".dockercfg", `{"reg.io":{"auth":"b2xkOnA="}}`)
	today := put("config.json", `{"auths":{"reg.io":{"auth":"bmV3OnA="}}}`)
	other := put("x/config.json", `{"name":"of another program"}`)
	bad := put("y/config.json", `{"auths":`)
	for want, files := range map[string][]string{
		"new": {filepath.Join(dir, "none"), bad, other, today, old}, "old": {dir, old}, "": {other},
	} {
		user := ""
		for _, c := range pick("reg.io/a", readDockerConfig(files)) {
			user = c.Username
		}
		if user != want {
			t.Errorf("%v: %q, want %q", files, user, want)
		}
	}
	if files := dockerConfigs("/var/lib/kubelet"); len(files) != 8 || files[0] != "/var/lib/kubelet/config.json" {
		t.Error(files)
	}
}

// TestNodeCredentials: what the node's own credentials pulled is for all its pods.
func TestNodeCredentials(t *testing.T) {
	n := newNode(t)
	n.rt.Registry = registry
	root := filepath.Join(n.dir, "kubelet")
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "config.json"), []byte(`{"auths":{"https://reg.io/v1/":{"auth":"dTpyaWdodA=="}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	defer n.start()()
	n.api.addPod(user("any", private, "", corev1.PullIfNotPresent))
	n.until("ready", n.ready("any"))
	n.api.addPod(user("never", private, "", corev1.PullNever))
	n.until("ready", n.ready("never"))
}
