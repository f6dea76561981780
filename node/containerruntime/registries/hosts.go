package registries

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const (
	// marker is the first line of what is written here; other files are the administrator's.
	marker = "# Made of registries.yaml by knarr; a change is lost at the next start.\n"
	// defaultDir is where containerd finds what counts for all registries that are not named.
	defaultDir = "_default"
	// dockerHub is where docker.io is.
	dockerHub = "registry-1.docker.io"
)

// Hosts are the files hosts.toml that containerd reads, by their directory. They have a mirror's
// endpoints in their order, before the registry itself, on which Renamed relies. Pure.
func (c Config) Hosts() map[string]string {
	files := map[string]string{}
	for name := range c.Configs {
		if c.host(name).TLS != nil || c.Configs[anyRegistry].TLS != nil { // which is not for it
			files[directory(name)] = c.file(name)
			files[directory(alias(name))] = c.file(alias(name))
		}
	}
	for name := range c.Mirrors {
		files[directory(name)] = c.file(name)
	}
	return files
}

// file is that of a registry: its mirrors in turn, and then what is asked last, which is
// the registry itself or, without it, the last mirror.
func (c Config) file(registry string) string {
	mirrors, _ := c.mirror(registry).endpoints()
	var b strings.Builder
	b.WriteString(marker)
	last, how := server(registry), c.host(registry)
	if n := len(mirrors); n > 0 && (c.NoDefault || mirrors[n-1] == last) {
		last, how = mirrors[n-1], c.host(mirrors[n-1].Host)
		mirrors = mirrors[:n-1]
	}
	if last.Host != "" { // else it is whichever is asked
		fmt.Fprintf(&b, "server = %s\n", strconv.Quote(last.String()))
	}
	writeReach(&b, "", how)
	for _, m := range mirrors {
		fmt.Fprintf(&b, "\n[host.%s]\n", strconv.Quote(m.String()))
		writeReach(&b, "  ", c.host(m.Host))
	}
	return b.String()
}

// mirror has the images of a registry.
func (c Config) mirror(registry string) Mirror {
	m, ok := c.Mirrors[registry]
	if !ok {
		m = c.Mirrors[anyRegistry]
	}
	return m
}

// server is a registry itself; that of any has no host.
func server(registry string) url.URL {
	if registry == anyRegistry {
		return url.URL{}
	}
	u, _ := endpoint(registry) // Parse refuses what is no host
	return u
}

// writeReach writes how a host is reached, whose URL says where its API is.
func writeReach(b *strings.Builder, indent string, h Host) {
	line := func(format string, args ...any) { fmt.Fprintf(b, indent+format+"\n", args...) }
	line(`capabilities = ["pull", "resolve"]`)
	line("override_path = true")
	t := h.TLS
	if t == nil {
		return
	}
	if t.CAFile != "" {
		line("ca = [%s]", strconv.Quote(t.CAFile))
	}
	if t.CertFile != "" {
		line("client = [[%s, %s]]", strconv.Quote(t.CertFile), strconv.Quote(t.KeyFile))
	}
	if t.InsecureSkipVerify {
		line("skip_verify = true")
	}
}

// directory is where containerd looks a registry up: no name of a file has a colon.
func directory(registry string) string {
	if registry == anyRegistry {
		return defaultDir
	}
	if i := strings.LastIndexByte(registry, ':'); i > 0 && !strings.HasSuffix(registry, "]") {
		return registry[:i] + "_" + registry[i+1:] + "_"
	}
	return registry
}

// Secret says whether images of a registry may have been fetched with credentials of a
// host, its own or a mirror's.
func (c Config) Secret(image string) bool {
	registry, _, _ := strings.Cut(image, "/")
	return slices.ContainsFunc(c.asked(registry), func(h string) bool {
		t := c.host(h).TLS
		return c.credentials(h) != nil || t != nil && t.CertFile != ""
	})
}

// asked are the hosts that may be asked for a registry's images.
func (c Config) asked(registry string) []string {
	hosts := []string{registry}
	mirrors, _ := c.mirror(registry).endpoints()
	for _, e := range mirrors {
		hosts = append(hosts, e.Host)
	}
	return hosts
}

// Credentials are those of a host, by the name that containerd asks it by: a name and a
// password, a token without a name, or nothing.
func (c Config) Credentials(host string) (user, secret string, err error) {
	if host == anyRegistry {
		return "", "", nil
	}
	return c.credentials(host).of()
}

// of is the user's name and password, or a token without a name.
func (a *Auth) of() (user, secret string, err error) {
	switch {
	case a == nil:
		return "", "", nil
	case a.Username != "":
		return a.Username, a.Password, nil
	case a.IdentityToken != "":
		return "", a.IdentityToken, nil
	case a.Auth != "":
		return decodeAuth(a.Auth)
	}
	return "", "", nil
}
