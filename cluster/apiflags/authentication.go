package apiflags

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/util/cert"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/authn"
	"knarr/controlplane/apiserver/structured"
)

// authentication holds the values of the flags that configure authentication.
type authentication struct {
	file, tokenFile      string
	anonymous, bootstrap bool
	audiences            []string
	oidc                 oidcFlags
	proxyCA              string
	proxy                authn.ProxyHeaders
	proxyNames           []string
	issuers              []string
	keysAt               string
	longest              time.Duration
	extend               bool
	webhook              apiserver.TokenWebhook

	config    *structured.Authentication
	anybody   *apiserverapi.AnonymousAuthConfig
	tokens    map[string]user.Info
	proxyPEM  []byte
	proxyPool *x509.CertPool
}

type oidcFlags struct {
	issuer, client, ca, username, usernamePrefix, groups, groupsPrefix string
	algorithms, required                                               []string
}

func (a *authentication) bind(f *pflag.FlagSet) {
	f.StringVar(&a.file, "authentication-config", "", "`file` that says which issuers' tokens are believed, and who may come without credentials; followed")
	f.StringVar(&a.tokenFile, "token-auth-file", "", "CSV `file` of tokens: token,user,uid,\"group,group\"")
	f.BoolVar(&a.anonymous, "anonymous-auth", true, "let anybody ask, as system:anonymous: for the health paths and kube-public/cluster-info or, when this is given as true, for anything")
	f.BoolVar(&a.bootstrap, "enable-bootstrap-token-auth", a.bootstrap, "believe the tokens of Secrets bootstrap.kubernetes.io/token in kube-system")
	f.StringSliceVar(&a.audiences, "api-audiences", nil, "`names` of this API that tokens may be for (default: the issuers of service-account tokens)")
	o := &a.oidc
	f.StringVar(&o.issuer, "oidc-issuer-url", "", "`URL` of an OpenID issuer whose tokens are believed")
	f.StringVar(&o.client, "oidc-client-id", "", "`name` that its tokens must be for")
	f.StringVar(&o.ca, "oidc-ca-file", "", "`file` of who signed its certificate (default: whom this host trusts)")
	f.StringVar(&o.username, "oidc-username-claim", "sub", "`claim` that is the user's name")
	f.StringVar(&o.usernamePrefix, "oidc-username-prefix", "", "`text` before names; - is none (default: the issuer's URL and #, but nothing before an email)")
	f.StringVar(&o.groups, "oidc-groups-claim", "", "`claim` that is the user's groups")
	f.StringVar(&o.groupsPrefix, "oidc-groups-prefix", "", "`text` before groups")
	f.StringSliceVar(&o.algorithms, "oidc-signing-algs", []string{"RS256"}, "`algorithms` its tokens may be signed with")
	f.StringArrayVar(&o.required, "oidc-required-claim", nil, "`claim=value` that its tokens must have")
	f.StringVar(&a.proxyCA, "requestheader-client-ca-file", "", "`file` of who signs the certificates of front proxies, which name users in headers")
	f.StringSliceVar(&a.proxyNames, "requestheader-allowed-names", nil, "common `names` of front proxies (default: any that this CA signed)")
	f.StringSliceVar(&a.proxy.User, "requestheader-username-headers", nil, "`headers` that name the user")
	f.StringSliceVar(&a.proxy.UID, "requestheader-uid-headers", nil, "`headers` that tell his UID")
	f.StringSliceVar(&a.proxy.Group, "requestheader-group-headers", nil, "`headers` that name his groups")
	f.StringSliceVar(&a.proxy.ExtraPrefix, "requestheader-extra-headers-prefix", nil, "`prefixes` of headers that say more of him")
	f.StringArrayVar(&a.issuers, "service-account-issuer", nil, "issuer `URL` of service-account tokens; several are believed, the first signs")
	f.StringVar(&a.keysAt, "service-account-jwks-uri", "", "`URL` where others find the keys of service-account tokens (default: at this server)")
	f.DurationVar(&a.longest, "service-account-max-token-expiration", 0, "longest `time` of a service-account token (default: any)")
	f.BoolVar(&a.extend, "service-account-extend-token-expiration", true, "let pods' tokens be good for a year, for programs that read them only once")
	f.StringVar(&a.webhook.Kubeconfig, "authentication-token-webhook-config-file", "", "kubeconfig `file` of a webhook that knows whose tokens are")
	f.StringVar(&a.webhook.Version, "authentication-token-webhook-version", "v1beta1", "`version` of the TokenReviews it is sent: v1 or v1beta1")
	f.DurationVar(&a.webhook.TTL, "authentication-token-webhook-cache-ttl", 2*time.Minute, "`time` to remember its answers; 0 is not at all")
}

// load judges the flags and reads the files that they name. given says that a
// flag was.
func (a *authentication) load(given func(string) bool, alwaysAllow bool) (err error) {
	if err := joined(append(a.serviceAccounts(), a.headers()...)); err != nil {
		return err
	}
	if a.tokenFile != "" {
		if a.tokens, err = readTokens(a.tokenFile); err != nil {
			return fmt.Errorf("--token-auth-file: %w", err)
		}
	}
	if a.proxyCA != "" {
		if a.proxyPEM, err = os.ReadFile(a.proxyCA); err == nil {
			a.proxyPool, err = cert.NewPoolFromBytes(a.proxyPEM)
		}
		if err != nil {
			return fmt.Errorf("--requestheader-client-ca-file: %w", err)
		}
	}
	withOIDC := slices.ContainsFunc([]string{"issuer-url", "client-id", "ca-file", "username-claim", "username-prefix",
		"groups-claim", "groups-prefix", "signing-algs", "required-claim"}, func(name string) bool { return given("oidc-" + name) })
	switch {
	case a.file != "" && withOIDC:
		return errors.New("authentication-config file and oidc-* flags are mutually exclusive")
	case a.file != "":
		a.config, err = structured.ReadAuthentication(a.file)
	case withOIDC && (a.oidc.issuer == "" || a.oidc.client == ""):
		return errors.New("oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set")
	case withOIDC:
		a.config, err = a.oidc.config()
	}
	if err != nil {
		return err
	}
	if a.config != nil {
		if err := a.config.Validate(nil); err != nil {
			return err
		}
	}
	return a.setAnonymous(given("anonymous-auth"), alwaysAllow)
}

// setAnonymous decides which requests are served without credentials.
func (a *authentication) setAnonymous(given, alwaysAllow bool) error {
	switch {
	case a.config != nil && a.config.Anonymous != nil && given:
		return field.Forbidden(field.NewPath("anonymous"), "--anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file")
	case a.config != nil && a.config.Anonymous != nil:
		a.anybody = a.config.Anonymous
	case alwaysAllow:
		if given && a.anonymous {
			slog.Warn("AnonymousAuth is not allowed with the AlwaysAllow authorizer. Resetting AnonymousAuth to false. You should use a different authorizer")
		}
		a.anybody = &apiserverapi.AnonymousAuthConfig{}
	case given:
		a.anybody = &apiserverapi.AnonymousAuthConfig{Enabled: a.anonymous}
	}
	return nil
}

// serviceAccounts judges the flags about their tokens.
func (a *authentication) serviceAccounts() (errs []error) {
	seen := map[string]bool{}
	for _, issuer := range a.issuers {
		_, err := url.Parse(issuer)
		switch {
		case strings.Contains(issuer, ":") && err != nil:
			errs = append(errs, fmt.Errorf("service-account-issuer %q contained a ':' but was not a valid URL: %w", issuer, err))
		case issuer == "":
			errs = append(errs, errors.New("service-account-issuer should not be an empty string"))
		case seen[issuer]:
			errs = append(errs, fmt.Errorf("service-account-issuer %q is already specified", issuer))
		}
		seen[issuer] = true
	}
	if a.keysAt != "" {
		if u, err := url.Parse(a.keysAt); err != nil {
			errs = append(errs, fmt.Errorf("service-account-jwks-uri must be a valid URL: %w", err))
		} else if u.Scheme != "https" {
			errs = append(errs, fmt.Errorf("service-account-jwks-uri requires https scheme, parsed as: %v", u))
		}
	}
	if a.longest != 0 && (a.longest < time.Hour || a.longest > (1<<32)*time.Second) {
		errs = append(errs, errors.New("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds"))
	}
	return errs
}

// headers judges the flags about front proxies.
func (a *authentication) headers() (errs []error) {
	for _, l := range []struct {
		flag, standard string
		names          []string
	}{
		{"requestheader-username-headers", authn.UserHeader, a.proxy.User},
		{"requestheader-group-headers", authn.GroupHeader, a.proxy.Group},
		{"requestheader-extra-headers-prefix", authn.ExtraPrefix, a.proxy.ExtraPrefix},
		{"requestheader-allowed-names", "", a.proxyNames},
		{"requestheader-uid-headers", authn.UIDHeader, a.proxy.UID},
	} {
		has := false
		for i, name := range l.names {
			if strings.TrimSpace(name) == "" {
				errs = append(errs, fmt.Errorf("empty value in %q", l.flag))
			}
			has = has || strings.EqualFold(name, l.standard)
			if l.standard != "" {
				l.names[i] = strings.TrimSpace(name)
			}
		}
		if len(l.names) == 0 || l.standard == "" || has {
			continue
		}
		lacks := fmt.Sprintf("--%s is set without specifying the standard %s header - API aggregation will not work", l.flag, l.standard)
		if l.standard == authn.UIDHeader {
			errs = append(errs, errors.New(lacks))
		} else {
			slog.Warn(lacks)
		}
	}
	return errs
}

var errOverlap = errors.New("--requestheader-client-ca-file and --client-ca-file contain overlapping certificates; --requestheader-allowed-names must be specified to ensure regular client certificates cannot set authenticating proxy headers for arbitrary users")

// overlap refuses a CA whose ordinary clients could pass for front proxies.
func (a *authentication) overlap(clientCAs []byte) error {
	if len(a.proxyNames) > 0 || len(a.proxyPEM) == 0 || len(clientCAs) == 0 {
		return nil
	}
	ours, err1 := cert.ParseCertsPEM(clientCAs)
	theirs, err2 := cert.ParseCertsPEM(a.proxyPEM)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	for _, c := range ours {
		if slices.ContainsFunc(theirs, c.Equal) {
			return errOverlap
		}
	}
	return nil
}

func (a *authentication) apply(c *apiserver.Config) error {
	if err := a.overlap(c.ClientCAs); err != nil {
		return err
	}
	if len(a.issuers) > 0 {
		c.Issuers = a.issuers
	}
	c.Audiences, c.JWKSURI, c.ExactTokens, c.MaxTokenSeconds = a.audiences, a.keysAt, !a.extend, int64(a.longest/time.Second)
	c.Authentication, c.Anonymous, c.NoBootstrapTokens = a.config, a.anybody, !a.bootstrap
	if a.tokens != nil {
		c.Tokens = a.tokens
	}
	if a.webhook.Kubeconfig != "" {
		c.TokenWebhook = &a.webhook
	}
	if a.proxyPool != nil {
		// Aggregated servers must go on believing this one's own certificate.
		names := a.proxyNames
		if c.FrontProxy != nil && len(names) > 0 {
			names = append(slices.Clone(names), c.FrontProxy.Names...)
		}
		c.FrontProxyCAs = append(slices.Clone(c.FrontProxyCAs), a.proxyPEM...)
		c.FrontProxyNames = names
		c.FrontProxy = &authn.FrontProxy{CA: a.proxyPool, Names: a.proxyNames, Headers: &a.proxy}
	}
	return nil
}

// joined is several errors in one line, as upstream prints them.
func joined(errs []error) error {
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	var texts []string
	for _, err := range errs {
		texts = append(texts, err.Error())
	}
	return errors.New("[" + strings.Join(texts, ", ") + "]")
}
