package registries

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/remotes/docker"
)

const file = `
mirrors:
  docker.io:
    endpoint: ["https://mirror.example.com:5000", "http://other.example.com/proxy/"]
  registry.example.com:
    endpoint: [mirror.example.com]
    rewrite: {"^team/(.*)": "copies/$1"}
  "*":
    endpoint: ["https://all.example.com"]
configs:
  mirror.example.com:5000:
    auth: {username: ann, password: secret}
    tls: {ca_file: /ca.pem, cert_file: /c.pem, key_file: /k.pem}
  plain.example.com:5000:
    tls: {insecure_skip_verify: true}
  docker.io:
    auth: {auth: YW5uOnNlY3JldA==}
`

func parsed(t *testing.T, text string) Config {
	t.Helper()
	c, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestHosts(t *testing.T) {
	c := parsed(t, file)
	const pull = "capabilities = [\"pull\", \"resolve\"]\noverride_path = true\n"
	in := func(s string) string {
		return "  " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n  ") + "\n"
	}
	const mirror = "ca = [\"/ca.pem\"]\nclient = [[\"/c.pem\", \"/k.pem\"]]\n"
	want := map[string]string{
		"docker.io": "server = \"https://registry-1.docker.io/v2\"\n" + pull +
			"\n[host.\"https://mirror.example.com:5000/v2\"]\n" + in(pull+mirror) +
			"\n[host.\"http://other.example.com/proxy\"]\n" + in(pull),
		"registry.example.com":     "server = \"https://registry.example.com/v2\"\n" + pull + "\n[host.\"https://mirror.example.com/v2\"]\n" + in(pull),
		"_default":                 pull + "\n[host.\"https://all.example.com/v2\"]\n" + in(pull),
		"mirror.example.com_5000_": "server = \"https://mirror.example.com:5000/v2\"\n" + pull + mirror + "\n[host.\"https://all.example.com/v2\"]\n" + in(pull),
		"plain.example.com_5000_":  "server = \"https://plain.example.com:5000/v2\"\n" + pull + "skip_verify = true\n" + "\n[host.\"https://all.example.com/v2\"]\n" + in(pull),
	}
	compare(t, c.Hosts(), want)
	c.NoDefault = true
	want["docker.io"] = "server = \"http://other.example.com/proxy\"\n" + pull + "\n[host.\"https://mirror.example.com:5000/v2\"]\n" + in(pull+mirror)
	want["registry.example.com"] = "server = \"https://mirror.example.com/v2\"\n" + pull
	for _, of := range []string{"_default", "mirror.example.com_5000_", "plain.example.com_5000_"} { // each has the mirror of all
		want[of] = "server = \"https://all.example.com/v2\"\n" + pull
	}
	compare(t, c.Hosts(), want)
	for host, want := range map[string]string{"mirror.example.com:5000": "ann secret", "registry-1.docker.io": "ann secret", "docker.io": "ann secret", "registry.example.com": " "} {
		if user, secret, err := c.Credentials(host); err != nil || user+" "+secret != want {
			t.Errorf("%s: %q %q, %v", host, user, secret, err)
		}
	}
}

func TestEndpoint(t *testing.T) {
	for text, want := range map[string]string{
		"mirror.example.com":          "https://mirror.example.com/v2",
		"mirror.example.com:5000/":    "https://mirror.example.com:5000/v2",
		"http://mirror.example.com":   "http://mirror.example.com/v2",
		"https://a/proxy//hub/":       "https://a/proxy/hub",
		"https://a/v2":                "https://a/v2",
		"localhost":                   "https://localhost/v2",
		"localhost:443":               "https://localhost:443/v2",
		"localhost:5000":              "http://localhost:5000/v2",
		"127.1.2.3:5000/proxy":        "http://127.1.2.3:5000/proxy",
		"[::1]:5000":                  "http://[::1]:5000/v2",
		"[::1]":                       "https://[::1]/v2",
		"https://localhost:5000":      "https://localhost:5000/v2",
		"localhost.example.com:5000":  "https://localhost.example.com:5000/v2",
		"docker.io":                   "https://registry-1.docker.io/v2",
		"https://docker.io":           "https://registry-1.docker.io/v2",
		"http://registry-1.docker.io": "http://registry-1.docker.io/v2",
	} {
		if got, err := endpoint(text); err != nil || got.String() != want {
			t.Errorf("%s: %s, want %s: %v", text, got.String(), want, err)
		}
	}
}

// TestDockerHub: what is said under one of its names counts for the other one, unless that has
// an entry of its own.
func TestDockerHub(t *testing.T) {
	const pull = "capabilities = [\"pull\", \"resolve\"]\noverride_path = true\n"
	for _, name := range []string{"docker.io", "registry-1.docker.io"} {
		c := parsed(t, `configs: {`+name+`: {auth: {username: ann, password: secret}, tls: {ca_file: /ca.pem}}}`)
		hub := "server = \"https://registry-1.docker.io/v2\"\n" + pull + "ca = [\"/ca.pem\"]\n"
		compare(t, c.Hosts(), map[string]string{"docker.io": hub, "registry-1.docker.io": hub})
		if !c.Secret("docker.io/library/nginx:1") {
			t.Errorf("%s: what credentials fetched is for everybody", name)
		}
		for _, host := range []string{"docker.io", "registry-1.docker.io"} {
			if user, _, err := c.Credentials(host); user != "ann" || err != nil {
				t.Errorf("%s: credentials of %s are of %q, %v", name, host, user, err)
			}
		}
	}
	c := parsed(t, `configs: {docker.io: {auth: {username: ann, password: a}}, registry-1.docker.io: {auth: {username: bob, password: b}}}`)
	if user, _, _ := c.Credentials("registry-1.docker.io"); user != "bob" {
		t.Error(user)
	}
	c = parsed(t, `{mirrors: {r.example.com: {endpoint: [docker.io]}, docker.io: {}}, configs: {"*": {auth: {username: ann, password: a}}}}`)
	if user, _, _ := c.Credentials("registry-1.docker.io"); user != "ann" {
		t.Errorf("credentials of any host that is named: %q", user)
	}
	if got := c.Hosts()["r.example.com"]; !strings.Contains(got, `[host."https://registry-1.docker.io/v2"]`) {
		t.Error(got)
	}
}

// TestOwnEntry: a registry with an entry in configs alone has the mirrors of all, by other names
// too, and none of their TLS.
func TestOwnEntry(t *testing.T) {
	const pull = "capabilities = [\"pull\", \"resolve\"]\noverride_path = true\n"
	const all = "\n[host.\"https://m/v2\"]\n  capabilities = [\"pull\", \"resolve\"]\n  override_path = true\n"
	c := parsed(t, `
mirrors: {"*": {endpoint: [m], rewrite: {"^a": b}}, none: {}}
configs: {"*": {tls: {insecure_skip_verify: true}}, m: {auth: {username: ann, password: a}}, r: {tls: {ca_file: /ca.pem}}, none: {tls: {ca_file: /ca.pem}}}
`)
	compare(t, c.Hosts(), map[string]string{
		"_default": pull + "skip_verify = true\n" + all,
		"m":        "server = \"https://m/v2\"\n" + pull, // itself
		"r":        "server = \"https://r/v2\"\n" + pull + "ca = [\"/ca.pem\"]\n" + all,
		"none":     "server = \"https://none/v2\"\n" + pull + "ca = [\"/ca.pem\"]\n",
	})
	hosts := []docker.RegistryHost{{Client: http.DefaultClient, Host: "m", Path: "/v2"}, {Host: "r", Path: "/v2"}}
	got := c.Renamed("r", "a/x", hosts)
	if p, ok := got[0].Client.Transport.(renamedPaths); !ok || p.to != "/v2/b/x/" || got[1].Client != nil || hosts[0].Client.Transport != nil {
		t.Errorf("%+v", got)
	}
	if got := c.Renamed("none", "a/x", hosts[:1]); got[0].Client != http.DefaultClient {
		t.Error("a registry that has no mirrors has other names")
	}
}

// TestDuplicates: an endpoint is asked once, and the registry itself, where it is the last one,
// by its other names alone.
func TestDuplicates(t *testing.T) {
	c := parsed(t, `
mirrors:
  docker.io: {endpoint: ["https://a", a, "http://a", "https://a/v2/", "https://a:443"]}
  r.example.com: {endpoint: [a, r.example.com]}
`)
	const pull = "capabilities = [\"pull\", \"resolve\"]\noverride_path = true\n"
	const in = "  capabilities = [\"pull\", \"resolve\"]\n  override_path = true\n"
	compare(t, c.Hosts(), map[string]string{
		"docker.io": "server = \"https://registry-1.docker.io/v2\"\n" + pull + "\n[host.\"https://a/v2\"]\n" + in +
			"\n[host.\"http://a/v2\"]\n" + in + "\n[host.\"https://a:443/v2\"]\n" + in,
		"r.example.com": "server = \"https://r.example.com/v2\"\n" + pull + "\n[host.\"https://a/v2\"]\n" + in,
	})
	if got := fmt.Sprint(c.Duplicates()); got != "map[docker.io:[a https://a/v2/]]" {
		t.Error(got)
	}
}

func TestSecret(t *testing.T) {
	c := parsed(t, file)
	for image, want := range map[string]bool{
		"docker.io/library/nginx:1":     true,  // its own credentials
		"registry.example.com/team/a:1": false, // of mirror.example.com, another port than the one with credentials
		"plain.example.com:5000/a:1":    false,
		"other.example.com/a:1":         false, // of all.example.com, which has none
		"mirror.example.com:5000/a:1":   true,
	} {
		if got := c.Secret(image); got != want {
			t.Errorf("%s: %v", image, got)
		}
	}
	c.Configs["all.example.com"] = Host{TLS: &TLS{CertFile: "/c", KeyFile: "/k"}}
	if !c.Secret("other.example.com/a:1") {
		t.Error("a client's certificate of the mirror of all is no secret")
	}
}

// TestWildcard: what is said under "*" is for hosts without an entry of their own, and its
// credentials for those alone that the file names.
func TestWildcard(t *testing.T) {
	c := parsed(t, `
mirrors:
  "*": {endpoint: ["https://mirror.example.com:5000", own.example.com]}
  registry.example.com: {endpoint: ["http://other.example.com"], rewrite: {"^a": b}}
configs:
  "*": {auth: {username: ann, password: secret}, tls: {insecure_skip_verify: true}}
  own.example.com: {tls: {ca_file: /ca.pem}}
`)
	for host, want := range map[string]bool{
		"mirror.example.com:5000": true, "other.example.com": true, "registry.example.com": true,
		"own.example.com":       false, // it has an entry, without credentials
		"elsewhere.example.com": false, // a pod's image may name any registry
		"mirror.example.com":    false,
		"*":                     false,
	} {
		if user, _, err := c.Credentials(host); err != nil || (user != "") != want {
			t.Errorf("%s has credentials of %q, want %v: %v", host, user, want, err)
		}
		if host != "*" && (c.credentials(host) != nil) != want {
			t.Errorf("%s has credentials: %v", host, !want)
		}
	}
	if at := c.host("elsewhere.example.com").TLS; at == nil || !at.InsecureSkipVerify {
		t.Errorf("TLS of a registry without an entry: %+v", at)
	}
	if !c.Secret("elsewhere.example.com/a:1") { // the mirror of all has credentials
		t.Error("an image that was fetched with credentials is for everybody")
	}
	if got := parsed(t, `configs: {"*": {tls: {cert_file: /c, key_file: /k}}}`); !got.Secret("elsewhere.example.com/a:1") {
		t.Error("a client's certificate for all registries is no secret")
	}
}

func compare(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, text := range want {
		if got[name] != marker+text {
			t.Errorf("%s:\n%s\nwant\n%s", name, got[name], marker+text)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d files, want %d", len(got), len(want))
	}
}

func TestWrong(t *testing.T) {
	for text, want := range map[string]string{
		"mirrors: {a/b: {}}":                             `mirrors: "a/b" is no registry's host; "*" is any`,
		"mirrors: {..: {}}":                              `mirrors: ".." is no registry's host; "*" is any`,
		"mirrors: {a: {endpoint: ['ftp://a']}}":          `mirrors["a"].endpoint[0]: "ftp://a" is no URL such as https://registry.example.com:5000`,
		"mirrors: {a: {endpoint: ['https://u:p@a']}}":    `mirrors["a"].endpoint[0]: a name and a password are no part of an endpoint; they belong into configs["a"].auth`,
		"mirrors: {a: {endpoint: ['u:p@b:5000']}}":       `mirrors["a"].endpoint[0]: a name and a password are no part of an endpoint; they belong into configs["b:5000"].auth`,
		"mirrors: {a: {endpoint: ['https://u:p%zz@a']}}": `mirrors["a"].endpoint[0]: it is no URL such as https://registry.example.com:5000; a name and a password belong into configs, under the host's name, as auth`,
		"configs: {a: {auth: {password: p}}}":            `configs["a"].auth.password: there is no username that it is of`,
		"mirrors: {a: {rewrite: {x: y}}}":                `mirrors["a"].rewrite: there is no endpoint that has such names`,
		"mirrors: {a: {endpoint: [b], rewrite: {(: y}}}": `mirrors["a"].rewrite: "(" is no expression, or too long`,
		"mirror: {}":                           `error unmarshaling JSON: while decoding JSON: json: unknown field "mirror"`,
		"configs: {a: {tls: {cert_file: /a}}}": `configs["a"].tls: cert_file and key_file go together`,
		"configs: {a: {auth: {auth: '!'}}}":    `configs["a"].auth.auth: it is not Base64`,
		"configs: {a: {auth: {auth: YQ==}}}":   `configs["a"].auth.auth: it has no name and password in it`,
	} {
		if _, err := Parse([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%s: %v\nwant %s", text, err, want)
		}
	}
}

// Files of an earlier start go, an administrator's stay.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	write := func(files map[string]string) []string {
		others, err := Write(dir, files)
		if err != nil {
			t.Fatal(err)
		}
		return others
	}
	own := filepath.Join(dir, "own.example.com", hostsFile)
	if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own, []byte("server = \"https://elsewhere\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	write(map[string]string{"a": marker + "1", "b": marker + "1"})
	others := write(map[string]string{"a": marker + "2", "own.example.com": marker})
	if !slices.Equal(others, []string{filepath.Dir(own)}) {
		t.Error(others)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "a", hostsFile)); string(b) != marker+"2" {
		t.Errorf("%s", b)
	}
	if _, err := os.Stat(filepath.Join(dir, "b")); err == nil {
		t.Error("a directory of an earlier start stays")
	}
	if b, _ := os.ReadFile(own); !strings.Contains(string(b), "elsewhere") {
		t.Errorf("an administrator's: %s", b)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(file)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse([]byte(text))
		if err != nil {
			return
		}
		for dir := range c.Hosts() {
			if strings.ContainsAny(dir, "/:") || strings.HasPrefix(dir, ".") || dir == "" {
				t.Errorf("directory %q", dir)
			}
		}
	})
}
