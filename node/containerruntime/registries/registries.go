// Package registries reads registries.yaml, by which a node's administrator says where
// images are fetched from, in the form that k3s has it: mirrors of registries, with other
// names for what is in them, credentials and TLS. It writes the directories in which
// containerd looks a registry up, and has containerd ask a mirror by the names that it has.
package registries

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"sigs.k8s.io/yaml"
)

// A Config is what the file says.
type Config struct {
	// Mirrors are where the images of a registry are fetched from, by its host; "*" is
	// every registry that is not named here.
	Mirrors map[string]Mirror `json:"mirrors"`
	// Configs are how a host is reached, by its name and port as an endpoint or an image has it;
	// "*" is every host that has no entry. Its credentials are for those among them that the
	// file names, as endpoints or as registries that have mirrors, and not for a registry that
	// a pod's image names.
	Configs map[string]Host `json:"configs"`

	// NoDefault leaves out the registry itself where it has mirrors.
	NoDefault bool `json:"-"`

	path string // where it was read
}

// A Mirror has the images of a registry.
type Mirror struct {
	// Endpoints are URLs, asked in turn before the registry itself.
	Endpoints []string `json:"endpoint"`
	// Rewrites are the names of repositories there: what an expression matches, and what
	// stands for it, with $1 for its first group.
	Rewrites map[string]string `json:"rewrite"`
}

// A Host is how a registry is reached.
type Host struct {
	Auth *Auth `json:"auth"`
	TLS  *TLS  `json:"tls"`
}

// Auth is a user's name and password, both in Auth as Base64, or a token.
type Auth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identity_token"`
}

// TLS are files, and whether the registry's certificate is believed unseen.
type TLS struct {
	CAFile             string `json:"ca_file"`
	CertFile           string `json:"cert_file"`
	KeyFile            string `json:"key_file"`
	InsecureSkipVerify bool   `json:"insecure_skip_verify"`
}

const (
	// maxFile bounds the file, maxRewrites and maxExpression what a mirror is asked for each name.
	maxFile       = 1 << 20
	maxRewrites   = 100
	maxExpression = 1024
)

// example is an endpoint.
const example = "https://registry.example.com:5000"

// anyRegistry is the mirrors' name for those that have none of their own.
const anyRegistry = "*"

// Read reads a file; without one, nothing is said. must says that there has to be one.
func Read(path string, must bool) (Config, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && !must {
		return Config{}, nil
	}
	if err != nil {
		return Config{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return Config{}, err
	}
	if len(b) > maxFile {
		return Config{}, fmt.Errorf("%s: larger than %d bytes", path, maxFile)
	}
	c, err := Parse(b)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	c.path = path
	return c, nil
}

// Parse reads the text of a file, and says everything that is wrong with it.
func Parse(b []byte) (c Config, err error) {
	if err := yaml.UnmarshalStrict(b, &c); err != nil {
		return Config{}, errors.New(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "))
	}
	var wrong []error
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	for _, name := range slices.Sorted(maps.Keys(c.Mirrors)) {
		if name != anyRegistry && !isHost(name) {
			bad("mirrors: %q is no registry's host; %q is any", name, anyRegistry)
		}
		m := c.Mirrors[name]
		for i, e := range m.Endpoints {
			if _, err := endpoint(e); err != nil {
				bad("mirrors[%q].endpoint[%d]: %w", name, i, err)
			}
		}
		if len(m.Rewrites) > 0 && len(m.Endpoints) == 0 {
			bad("mirrors[%q].rewrite: there is no endpoint that has such names", name)
		}
		if len(m.Rewrites) > maxRewrites {
			bad("mirrors[%q].rewrite: more than %d", name, maxRewrites)
		}
		for _, from := range slices.Sorted(maps.Keys(m.Rewrites)) {
			if _, err := regexp.Compile(from); err != nil || len(from) > maxExpression {
				bad("mirrors[%q].rewrite: %q is no expression, or too long", name, from)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Configs)) {
		h := c.Configs[name]
		if name != anyRegistry && !isHost(name) {
			bad("configs: %q is no host, as in registry.example.com:5000", name)
		}
		if err := h.Auth.check(); err != nil {
			bad("configs[%q].auth.%w", name, err)
		}
		if t := h.TLS; t != nil && (t.CertFile == "") != (t.KeyFile == "") {
			bad("configs[%q].tls: cert_file and key_file go together", name)
		}
	}
	if err := errors.Join(wrong...); err != nil {
		return Config{}, err
	}
	return c, nil
}

// isHost says whether a name is a host, with a port or without, and so the name of a directory.
func isHost(name string) bool {
	u, err := url.Parse("https://" + name)
	return err == nil && name != "" && u.Host == name && u.Hostname() != "" && !strings.HasPrefix(name, ".") && !strings.ContainsAny(name, "/\\_")
}

// endpoint is where a mirror is: a URL, or a host that is reached by https, unless it is this
// machine and not its port for https, as for containerd. What follows the host is where its API
// is, /v2 if nothing does. docker.io is at another host than its name says.
func endpoint(s string) (url.URL, error) {
	full := s
	if !strings.Contains(s, "://") {
		full = "https://" + s
	}
	u, err := url.Parse(full)
	switch {
	case err == nil && u.User != nil:
		return url.URL{}, fmt.Errorf("a name and a password are no part of an endpoint; they belong into configs[%q].auth", u.Host)
	case err != nil && strings.Contains(s, "@"): // it may have a password in it
		return url.URL{}, fmt.Errorf("it is no URL such as %s; a name and a password belong into configs, under the host's name, as auth", example)
	case err != nil || !isHost(u.Host) || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "http" && u.Scheme != "https":
		return url.URL{}, fmt.Errorf("%q is no URL such as %s", s, example)
	}
	at := url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/v2"}
	if port := u.Port(); full != s && port != "" && port != "443" && docker.IsLocalhost(u.Host) {
		at.Scheme = "http"
	}
	if at.Host == "docker.io" {
		at.Host = dockerHub
	}
	if u.Path != "" && u.Path != "/" {
		at.Path = path.Clean(u.Path)
	}
	return at, nil
}

// endpoints are where a mirror is, each once, and those that the file has once more: containerd
// reads nothing of a file that names a host twice.
func (m Mirror) endpoints() (at []url.URL, again []string) {
	for _, e := range m.Endpoints {
		switch u, err := endpoint(e); {
		case err != nil: // Parse refuses it
		case slices.Contains(at, u):
			again = append(again, e)
		default:
			at = append(at, u)
		}
	}
	return at, again
}

// Duplicates are endpoints that a registry has more than once, by its name: once is enough.
func (c Config) Duplicates() map[string][]string {
	found := map[string][]string{}
	for name, m := range c.Mirrors {
		if _, again := m.endpoints(); len(again) > 0 {
			found[name] = again
		}
	}
	return found
}

// host is how a host is reached.
func (c Config) host(name string) Host {
	name, _ = c.entry(name)
	return c.Configs[name]
}

// entry is the name of the entry of configs that says how a host is reached: its own, that of its
// other name, or that of any.
func (c Config) entry(host string) (name string, ok bool) {
	for _, name := range []string{host, alias(host), anyRegistry} {
		if _, ok := c.Configs[name]; ok {
			return name, true
		}
	}
	return "", false
}

// alias is a host's other name, or its only one: that of docker.io is in images, the other one
// is where they are.
func alias(host string) string {
	switch host {
	case "docker.io":
		return dockerHub
	case dockerHub:
		return "docker.io"
	}
	return host
}

// credentials are those of a host; nil: it gets none.
func (c Config) credentials(host string) *Auth {
	name, _ := c.entry(host)
	if name == anyRegistry && !slices.Contains(c.named(), host) && !slices.Contains(c.named(), alias(host)) {
		return nil
	}
	return c.Configs[name].Auth
}

// named are the hosts that the file says images are fetched from.
func (c Config) named() (hosts []string) {
	for name, m := range c.Mirrors {
		if name != anyRegistry {
			hosts = append(hosts, name)
		}
		mirrors, _ := m.endpoints()
		for _, e := range mirrors {
			hosts = append(hosts, e.Host)
		}
	}
	return hosts
}

// check says which field has no effect.
func (a *Auth) check() error {
	switch {
	case a == nil:
		return nil
	case a.Password != "" && a.Username == "" && a.Auth == "" && a.IdentityToken == "":
		return errors.New("password: there is no username that it is of")
	case a.Auth != "":
		if _, _, err := decodeAuth(a.Auth); err != nil {
			return fmt.Errorf("auth: %w", err)
		}
	}
	return nil
}

// decodeAuth reads a name and a password, as files of docker's have them.
func decodeAuth(s string) (user, password string, err error) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return "", "", errors.New("it is not Base64")
	}
	user, password, ok := strings.Cut(string(b), ":")
	if !ok {
		return "", "", errors.New("it has no name and password in it")
	}
	return user, strings.Trim(password, "\x00"), nil
}
