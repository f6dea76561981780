package webhook

import (
	"os"
	"path/filepath"
	"testing"
)

// Who is shown what: the most particular name first, as upstream.
func TestCredentials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	user := func(name string) string { return "- name: '" + name + "'\n  user: {token: '" + name + "'}\n" }
	config := "apiVersion: v1\nkind: Config\nusers:\n"
	for _, name := range []string{"a.example.com:8443", "a.example.com", "*.example.com", "*.ns.svc:443", "s.ns.svc", "ctx"} {
		config += user(name)
	}
	load := func(text string) *Credentials {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := LoadCredentials(file)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	current := "contexts: [{name: c, context: {user: ctx, cluster: x}}]\ncurrent-context: c\n"
	for _, tt := range []struct{ config, target, want string }{
		{config, "a.example.com:8443", "a.example.com:8443"},
		{config, "a.example.com:443", "a.example.com"},
		{config, "b.example.com:443", "*.example.com"},
		{config, "b.example.com:8443", ""},
		{config, "s.ns.svc:443", "*.ns.svc:443"}, // with the port comes first
		{config, "other:443", ""},
		{config + current, "other:443", "ctx"},
		{config + user("*") + current, "other:443", "*"},
	} {
		if got := show(load(tt.config).of(tt.target)).BearerToken; got != tt.want {
			t.Errorf("%s: %q, want %q", tt.target, got, tt.want)
		}
	}
	if (*Credentials)(nil).of("a:443") != nil {
		t.Error("nothing is shown as something")
	}
	if err := os.WriteFile(file, []byte("apiVersion: v1\nkind: Config\nusers:\n- name: x\n  user: {auth-provider: {name: gcp}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadCredentials(file); err == nil || err.Error() != "auth provider not supported" {
		t.Error(err)
	}
}
