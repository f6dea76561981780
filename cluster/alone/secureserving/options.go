// Package secureserving is the port of a component that is not an API server: health,
// metrics, configuration and profiles over TLS, for users whom the API server knows
// and allows. It reads certificates, kubeconfigs and, in kube-system, the ConfigMap
// extension-apiserver-authentication; it writes the certificate that it makes for
// itself, if it is given a directory for it.
package secureserving

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Options are the flags, named as upstream's.
type Options struct {
	Address                    string
	Port                       int
	CertDir, CertFile, KeyFile string
	MinVersion                 string
	CipherSuites               []string
	SNI                        []string
	Curves                     []int
	Streams                    int
	NoHTTP2                    bool
	SharePort, ShareAddress    bool
	Profiling, Contention      bool
	Metrics                    Metrics

	AuthenticationKubeconfig, AuthorizationKubeconfig string
	SkipLookup, TolerateLookupFailure                 bool
	TokenTTL, AllowTTL, DenyTTL                       time.Duration
	AlwaysAllowPaths                                  []string
	ClientCAFile                                      string

	ProxyCAFile                                         string
	ProxyNames                                          []string
	ProxyUser, ProxyUID, ProxyGroup, ProxyExtraPrefixes []string
}

// Flags binds the options; port is the component's own.
func (o *Options) Flags(f *pflag.FlagSet, port int) {
	f.StringVar(&o.Address, "bind-address", "0.0.0.0", "`address` to serve on")
	f.IntVar(&o.Port, "secure-port", port, "`port` to serve on with TLS; 0: none")
	f.StringVar(&o.CertDir, "cert-dir", "", "`directory` of the certificate made when none is given (default: it is kept in memory)")
	f.StringVar(&o.CertFile, "tls-cert-file", "", "`file` of the serving certificate")
	f.StringVar(&o.KeyFile, "tls-private-key-file", "", "`file` of its key")
	f.StringArrayVar(&o.SNI, "tls-sni-cert-key", nil, "`files` of a certificate, its key, and the names it is for: a.crt,a.key:a.example.com,*.example.org; without names, those in the certificate")
	f.StringVar(&o.MinVersion, "tls-min-version", "", "least `version` of TLS: VersionTLS10 to VersionTLS13 (default: VersionTLS12)")
	f.IntSliceVar(&o.Curves, "tls-curve-preferences", nil, "`numbers` of the key exchanges, best first (default: Go's)")
	f.IntVar(&o.Streams, "http2-max-streams-per-connection", 0, "`number` of requests at once on an HTTP/2 connection (default: 250)")
	f.BoolVar(&o.NoHTTP2, "disable-http2-serving", false, "serve HTTP/1.1 alone")
	f.BoolVar(&o.SharePort, "permit-port-sharing", false, "listen with SO_REUSEPORT, so that several processes may have the port")
	f.BoolVar(&o.ShareAddress, "permit-address-sharing", false, "listen with SO_REUSEADDR, also beside a wildcard address")
	f.StringSliceVar(&o.CipherSuites, "tls-cipher-suites", nil, "`names` of the cipher suites of TLS 1.2 (default: Go's)")
	f.BoolVar(&o.Profiling, "profiling", true, "serve Go's profiles at /debug/pprof/")
	f.BoolVar(&o.Contention, "contention-profiling", false, "record what goroutines wait for, with --profiling")
	o.Metrics.flags(f)
	f.StringVar(&o.AuthenticationKubeconfig, "authentication-kubeconfig", "", "`file` that says which API server knows users, and as whom to ask it")
	f.BoolVar(&o.SkipLookup, "authentication-skip-lookup", false, "do not look up the cluster's authorities of client certificates")
	f.BoolVar(&o.TolerateLookupFailure, "authentication-tolerate-lookup-failure", true, "start also where they cannot be looked up")
	f.DurationVar(&o.TokenTTL, "authentication-token-webhook-cache-ttl", 10*time.Second, "`time` for which answers about tokens are remembered")
	f.StringVar(&o.AuthorizationKubeconfig, "authorization-kubeconfig", "", "`file` that says which API server knows permissions, and as whom to ask it")
	f.DurationVar(&o.AllowTTL, "authorization-webhook-cache-authorized-ttl", 10*time.Second, "`time` for which permissions are remembered")
	f.DurationVar(&o.DenyTTL, "authorization-webhook-cache-unauthorized-ttl", 10*time.Second, "`time` for which refusals are remembered")
	f.StringSliceVar(&o.AlwaysAllowPaths, "authorization-always-allow-paths", []string{"/healthz", "/readyz", "/livez"}, "`paths` open to everybody")
	f.StringVar(&o.ClientCAFile, "client-ca-file", "", "`file` of the authority of client certificates (default: the cluster's)")
	f.StringVar(&o.ProxyCAFile, "requestheader-client-ca-file", "", "`file` of the authority of front proxies, which name users in headers (default: the cluster's)")
	f.StringSliceVar(&o.ProxyNames, "requestheader-allowed-names", nil, "common `names` of front proxies (default: all that their authority signed)")
	f.StringSliceVar(&o.ProxyUser, "requestheader-username-headers", []string{"x-remote-user"}, "`headers` with the user's name")
	f.StringSliceVar(&o.ProxyUID, "requestheader-uid-headers", nil, "`headers` with the user's UID")
	f.StringSliceVar(&o.ProxyGroup, "requestheader-group-headers", []string{"x-remote-group"}, "`headers` with the user's groups")
	f.StringSliceVar(&o.ProxyExtraPrefixes, "requestheader-extra-headers-prefix", []string{"x-remote-extra-"}, "`prefixes` of headers with more about the user")
}

var tlsVersions = map[string]uint16{"": tls.VersionTLS12, "VersionTLS10": tls.VersionTLS10, "VersionTLS11": tls.VersionTLS11, "VersionTLS12": tls.VersionTLS12, "VersionTLS13": tls.VersionTLS13}

// Validate names what is wrong, flag by flag.
func (o *Options) Validate() error {
	var errs []error
	bad := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--"+flag+": "+format, args...))
	}
	if o.Port < 0 || o.Port > 65535 {
		bad("secure-port", "%d is not a port; 0 serves nothing", o.Port)
	}
	if _, err := netip.ParseAddr(o.Address); err != nil {
		bad("bind-address", "%q is not an IP address", o.Address)
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		bad("tls-cert-file", "give it and --tls-private-key-file, or neither")
	}
	if _, known := tlsVersions[o.MinVersion]; !known {
		bad("tls-min-version", "%q is none of VersionTLS10, VersionTLS11, VersionTLS12 and VersionTLS13", o.MinVersion)
	}
	if _, err := cipherSuites(o.CipherSuites); err != nil {
		errs = append(errs, err)
	}
	if _, err := o.named(); err != nil {
		errs = append(errs, err)
	}
	if o.Streams < 0 {
		bad("http2-max-streams-per-connection", "can not be a negative value")
	}
	for _, n := range o.Curves {
		if n <= 0 || n > 65535 {
			bad("tls-curve-preferences", "%d is not the number of a key exchange", n)
		}
	}
	errs = append(errs, o.Metrics.validate())
	for _, p := range o.AlwaysAllowPaths {
		if i := strings.IndexByte(p, '*'); p == "" || i >= 0 && i != len(p)-1 {
			bad("authorization-always-allow-paths", "%q: a * can only be at the end of a path", p)
		}
	}
	return errors.Join(errs...)
}

// cipherSuites are the numbers of the suites of that name.
func cipherSuites(names []string) (ids []uint16, err error) {
	all := slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites())
	for _, name := range names {
		i := slices.IndexFunc(all, func(s *tls.CipherSuite) bool {
			return s.Name == name || s.Name == name+"_SHA256" && strings.HasSuffix(name, "CHACHA20_POLY1305")
		})
		if i < 0 {
			return nil, fmt.Errorf("--tls-cipher-suites: Cipher suite %s not supported or doesn't exist", name)
		}
		ids = append(ids, all[i].ID)
	}
	return ids, nil
}

// open reports whether everybody may see the path.
func (o *Options) open(path string) bool {
	return slices.ContainsFunc(o.AlwaysAllowPaths, func(p string) bool {
		if prefix, found := strings.CutSuffix(p, "*"); found {
			return strings.HasPrefix(path, prefix)
		}
		return path == p
	})
}
