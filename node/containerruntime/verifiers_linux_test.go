package containerruntime

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/containerruntime/registries"
)

// What an administrator's verifier refuses is not pulled, and nothing comes from other nodes
// past it.
func TestImageVerifiers(t *testing.T) {
	if isolated(t) {
		return
	}
	ctx := t.Context()
	if err := unix.Mount("tmpfs", "/opt", "tmpfs", 0, ""); err != nil { // in this test's mounts alone
		t.Fatal(err)
	}
	if err := os.MkdirAll(verifierDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if verified(verifierDir) || verified(filepath.Join(verifierDir, "none")) || !verified("/proc/self/environ") {
		t.Error("whether there are verifiers is not seen")
	}
	script := "#!/bin/sh\ncase \"$*\" in *private*) echo unsigned; exit 1;; esac\n"
	if err := os.WriteFile(filepath.Join(verifierDir, "signed"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	registry := httptest.NewServer(imageRegistry(t, func(*http.Request) bool { return true }))
	defer registry.Close()
	c, err := registries.Parse([]byte(`mirrors: {"*": {endpoint: ["` + registry.URL + `"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	c.NoDefault = true
	n := newNodeWith(t, func(config *Config) { config.Registries = c })
	for image, wanted := range map[string]string{"any.example.com/open/app:v1": "", "any.example.com/private/app:v1": "unsigned"} {
		_, err := n.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}})
		if wanted == "" && err != nil || wanted != "" && (err == nil || !strings.Contains(err.Error(), wanted)) {
			t.Errorf("%s: %v", image, err)
		}
	}
	images, err := OpenImages(n.config.withDefaultsForTest(t).Socket(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer images.Close()
	if err := images.PullFrom(ctx, "any.example.com/private/app:v1", []string{"127.0.0.1:1"}, http.DefaultClient, true); err == nil || !strings.Contains(err.Error(), verifierDir) {
		t.Errorf("from another node: %v", err)
	}
}
