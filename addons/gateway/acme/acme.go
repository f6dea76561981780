// Package acme gets certificates for the hosts of Ingresses and Gateways that ask for them
// from an authority that speaks ACME (RFC 8555), and renews them. It reads and writes the
// Secrets that these name, and the Secret of the account; it speaks to the authority.
//
// Hosts are validated by HTTP-01: what a node answers to a challenge is its token and the
// thumbprint of the account's key, which is no secret, so that every node can answer.
package acme

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"golang.org/x/crypto/acme"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Config is which authority is asked. Giving one accepts its terms of service.
type Config struct {
	// Directory is the authority's URL. Default: Let's Encrypt's.
	Directory string
	// Email is whom the authority tells of trouble. Default: nobody.
	Email string
	// Roots are the authorities of the directory's own certificate. Default: the system's.
	Roots *x509.CertPool
}

// LetsEncrypt is the directory that is asked where none is given.
const LetsEncrypt = acme.LetsEncryptURL

// Validate reports what is wrong with it.
func (c *Config) Validate() error {
	if c.Directory == "" {
		return nil
	}
	u, err := url.Parse(c.Directory)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%q is no URL such as %s", c.Directory, LetsEncrypt)
	}
	return nil
}

// Private says that the authority is not the public one: it may know names that are not.
func (c *Config) Private() bool { return c != nil && c.Directory != "" && c.Directory != LetsEncrypt }

// A Want is a certificate that an object asks for.
type Want struct {
	// Secret is where it is kept.
	Secret types.NamespacedName
	Hosts  []string
	// Owner is the object, on which events tell of it.
	Owner runtime.Object
	// Have is the Secret as it is; nil if there is none.
	Have *corev1.Secret
}

// maxHosts is how many names one certificate has at most, as with Let's Encrypt.
const maxHosts = 100

// refusal says why no certificate is ordered for hosts.
func refusal(hosts []string, private bool) error {
	switch {
	case len(hosts) == 0:
		return errors.New("no host of it is this namespace's own")
	case len(hosts) > maxHosts:
		return fmt.Errorf("it has more than %d hosts; use several Secrets", maxHosts)
	}
	for _, host := range hosts {
		if strings.HasPrefix(host, "*") {
			return fmt.Errorf("host %s is a wildcard, which can only be validated by DNS; name its hosts", host)
		}
		if !private && !public(host) {
			return fmt.Errorf("host %s is no public name, for which no public authority gives certificates; --acme-directory names another one", host)
		}
	}
	return nil
}

// notPublic are the ends of names that nobody owns.
var notPublic = []string{"localhost", "local", "internal", "test", "example", "invalid", "onion", "arpa", "lan", "home", "corp", "intranet", "private",
	"example.com", "example.net", "example.org"}

// public says whether a name may be known all over the world.
func public(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil || !strings.Contains(host, ".") {
		return false
	}
	for _, end := range notPublic {
		if host == end || strings.HasSuffix(host, "."+end) {
			return false
		}
	}
	return true
}
