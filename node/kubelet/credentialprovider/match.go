package credentialprovider

import (
	"net"
	"net/url"
	"path"
	"strings"
)

// parse reads a registry, with a path or without, that has no scheme.
func parse(name string) (*url.URL, error) { return url.Parse("https://" + name) }

// Matches says whether a pattern of registries, such as *.example.com:5000/team, is for
// an image: as many parts in the host, each matched by itself, the same port, and a path
// that begins with the pattern's.
func Matches(pattern, image string) bool {
	p, err := parse(pattern)
	if err != nil || strings.ContainsAny(pattern, "@?#") { // of a URL, but not of an image
		return false
	}
	i, err := parse(image)
	if err != nil {
		return false
	}
	want, wantPort := split(p.Host)
	have, havePort := split(i.Host)
	if wantPort != havePort || len(want) != len(have) || !strings.HasPrefix(i.Path, p.Path) {
		return false
	}
	for n := range want {
		if ok, err := path.Match(want[n], have[n]); err != nil || !ok {
			return false
		}
	}
	return true
}

func split(host string) (parts []string, port string) {
	if h, p, err := net.SplitHostPort(host); err == nil {
		host, port = h, p
	}
	return strings.Split(host, "."), port
}
