// Package apiserver is the only door of the cluster: it authenticates,
// authorises, admits, validates, stores, and lets everybody watch. It reads and
// writes the store; it gives no orders to other components.
package apiserver

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/admission/plugin"
	"knarr/controlplane/apiserver/aggregation"
	"knarr/controlplane/apiserver/audit"
	"knarr/controlplane/apiserver/authn"
	"knarr/controlplane/apiserver/authn/oidc"
	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/connect"
	"knarr/controlplane/apiserver/egress"
	"knarr/controlplane/apiserver/endpoints"
	"knarr/controlplane/apiserver/extension"
	"knarr/controlplane/apiserver/fairness"
	"knarr/controlplane/apiserver/metrics"
	"knarr/controlplane/apiserver/overload"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/serviceallocation"
	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/apiserver/storage/encryption"
	"knarr/controlplane/apiserver/structured"
	"knarr/controlplane/apiserver/transport"
	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/features"
	"knarr/internal/healthz"
	"knarr/internal/keypair"
	"knarr/internal/run"
)

// Config is what an API server needs; the zero value of a field means its
// default.
type Config struct {
	// Store holds everything. It is not closed by Run.
	Store storage.Store
	// Encryption is encryption at rest. Default: off.
	// ReloadEncryption follows changes of its file.
	Encryption       *encryption.Keys
	ReloadEncryption bool
	// Features are those that are on though they are off by default.
	Features features.Set
	// APIs are versions to be served that are not by themselves.
	APIs []schema.GroupVersion
	// Audit is the audit policy. Default: nothing is logged.
	Audit *audit.Policy
	// ClientCA signs client certificates.
	ClientCA *x509.CertPool
	// ServiceAccountKey signs service-account tokens, ECDSA or RSA.
	ServiceAccountKey crypto.Signer
	// ServiceAccountPublicKeys verify tokens that other keys signed.
	ServiceAccountPublicKeys []crypto.PublicKey
	// Issuers of service-account tokens; the first signs. Default
	// https://kubernetes.default.svc.cluster.local.
	Issuers []string
	// Audiences are those that this server answers to. Default: Issuers.
	Audiences []string
	// JWKSURI is where others find the keys of service-account tokens. Default:
	// at this server.
	JWKSURI string
	// MaxTokenSeconds bounds what a token may be asked for. Default: any time.
	MaxTokenSeconds int64
	// ExactTokens keeps pods' tokens from being good for longer than asked.
	ExactTokens bool
	// Authentication says which other issuers' tokens are believed.
	Authentication *structured.Authentication
	// Anonymous configures anonymous authentication. Default: for the health paths
	// and kube-public/cluster-info alone.
	Anonymous *apiserverapi.AnonymousAuthConfig
	// TokenWebhook reviews the tokens that no authenticator here knows.
	TokenWebhook *TokenWebhook
	// NoBootstrapTokens believes none of the tokens that nodes join with.
	NoBootstrapTokens bool
	// Authorization configures the authorisers. Default: Node, RBAC.
	Authorization *structured.Authorization
	// Tokens are static bearer tokens.
	Tokens map[string]user.Info
	// ServiceCIDRs are the ranges of cluster addresses. Default 10.43.0.0/16.
	ServiceCIDRs []netip.Prefix
	// NodePorts is the range of node ports. Default 30000-32767.
	NodePorts serviceallocation.PortRange
	// Advertise is where the Service kubernetes leads to; when invalid, that
	// Service has no endpoints.
	Advertise netip.AddrPort
	// KubeletClient is the certificate shown to kubelets, KubeletCA who signs
	// theirs.
	KubeletClient *keypair.File
	KubeletCA     *x509.CertPool
	// KubeletNames says that the certificate of a kubelet is of its node's user,
	// system:node:NAME: that of another is refused.
	KubeletNames bool
	// KubeletAddresses are the types of a Node's addresses at which its kubelet is
	// looked for, best first; empty: InternalIP, ExternalIP, Hostname.
	KubeletAddresses []corev1.NodeAddressType
	// Open are paths outside the API that everybody may ask for; their handlers
	// judge for themselves, and bound how many they serve at once.
	Open map[string]http.Handler
	// ClientCAs and FrontProxyCAs are the same certificates in PEM, which
	// aggregated API servers read.
	ClientCAs, FrontProxyCAs []byte
	// FrontProxy is whose word about users is believed.
	FrontProxy *authn.FrontProxy
	// FrontProxyNames are what aggregated API servers are told of the names of
	// front proxies. Default: those of FrontProxy.
	FrontProxyNames []string
	// Identity is shown to aggregated API servers.
	Identity *keypair.File
	// Dial reaches webhooks and aggregated API servers. Default: a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Aggregated are aggregated API servers in this process, by the
	// "namespace/name" of the Service that their APIServices name.
	Aggregated map[string]func(ctx context.Context, network, address string) (net.Conn, error)
	// EnableAdmission and DisableAdmission name admission plugins that run, or
	// do not, though they would not by default, or would.
	EnableAdmission, DisableAdmission []string
	// Admission is what the configuration of admission says to its plugins.
	Admission plugin.Settings
	// Version is what /version says.
	Version *version.Info
	// Inside are the components that share this process and end with it.
	Inside []string
	// NoProfiling takes /debug/pprof away.
	NoProfiling bool
	// MaxReads and MaxWrites together are the requests served at once, which
	// priority levels share; long-running ones are not counted. Defaults 400 and
	// 200, upstream's.
	MaxReads, MaxWrites int
	// RequestTimeout bounds a request that is not long-running. Default 1 m.
	RequestTimeout time.Duration
	// MinWatch is the shortest time a watch lives that does not say. Default 30 m.
	MinWatch time.Duration
	// ShutdownDelay is how long requests are served after /readyz has begun to
	// say that they had better go elsewhere. Default: not at all.
	ShutdownDelay time.Duration
	// ShutdownSendRetryAfter answers 429 to requests that come after that, until those under
	// way have been answered. Default: the listener is closed.
	ShutdownSendRetryAfter bool
	// Streams bounds the requests at once on an HTTP/2 connection. Default 100.
	Streams int
	// GoawayChance is how likely a request is to end its HTTP/2 connection, so
	// that clients spread over several servers. Default: 0.
	GoawayChance float64
}

// A Server is one API server.
type Server struct {
	cfg           Config
	cache         *watchcache.Cache
	tokens        *authn.ServiceAccountTokens
	discovery     []byte        // of the issuer of those; nil: none
	issuers       *oidc.Issuers // elsewhere; nil: none
	authn         *authn.Authenticator
	authz         *authz.Configured
	rbac          *authz.RBAC
	impersonators *impersonators
	admission     *admission.Chain
	api           *endpoints.Server
	custom        *extension.Server
	fairness      *fairness.Dispatcher
	memory        *overload.MemoryLimiter
	others        *aggregation.Aggregator
	kubelets      *kubelets
	handler       http.Handler
	metrics       *metrics.Metrics
	health        health
	healthz       *healthz.Handler
	slis          http.Handler
	inFlight      transport.InFlight // counted for ShutdownSendRetryAfter only
	listening     listening
	versions      *versions // nil: they are not recorded
	started       chan struct{}
}

// New puts an API server together. It starts nothing.
func New(c Config) (*Server, error) {
	if len(c.Issuers) == 0 {
		c.Issuers = []string{"https://kubernetes.default.svc.cluster.local"}
	}
	if len(c.ServiceCIDRs) == 0 {
		c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")}
	}
	if c.NodePorts == (serviceallocation.PortRange{}) {
		c.NodePorts = serviceallocation.PortRange{First: 30000, Last: 32767}
	}
	if c.KubeletAddresses == nil {
		c.KubeletAddresses = defaultAddresses
	}
	if c.MaxReads == 0 {
		c.MaxReads = 400
	}
	if c.MaxWrites == 0 {
		c.MaxWrites = 200
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = time.Minute
	}
	if c.Streams == 0 {
		c.Streams = 100
	}
	counts := metrics.New(c.Version, features.Metric(c.Features, features.Settable))
	c.Store = storage.Timed(c.Store, registry.StoredAs(watchcache.Root), counts.Store.ObserveRequest)
	if c.Encryption != nil {
		c.Store = encryption.New(c.Store, c.Encryption, registry.StoredAs(watchcache.Root))
	}
	kinds := registry.Served(c.APIs, c.Features)
	s := &Server{cfg: c, started: make(chan struct{}), cache: watchcache.New(c.Store, kinds), metrics: counts}
	if c.Features[features.StorageVersions] {
		s.versions = newVersions(kinds)
	}
	if c.Encryption != nil {
		for _, also := range c.Encryption.Collectors() {
			counts.Also(also)
		}
	}
	counts.Also(contents{s.cache, c.Store})
	s.healthz = s.newHealthz()
	s.slis = promhttp.HandlerFor(s.healthz.Metrics(), promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	err := s.authenticators()
	if err != nil {
		return nil, err
	}
	s.rbac = authz.NewRBAC(s.cache)
	s.authz, err = authz.NewConfigured(c.Authorization, authz.NewNode(s.rbac, s.cache), s.rbac)
	if err != nil {
		return nil, fmt.Errorf("invalid authorization config: %w", err)
	}
	s.impersonators = newImpersonators(s.authz)
	plugins, err := plugin.New(plugin.Config{
		Cache: s.cache, RBAC: s.rbac, Authorizer: s.authz, Dial: c.Dial,
		Enable: c.EnableAdmission, Disable: c.DisableAdmission, Settings: c.Admission, Counts: counts.Admission,
	})
	if err != nil {
		return nil, err
	}
	s.admission = admission.NewChain(plugins, counts.Admission)
	guard := &egress.Guard{Own: s.leadsBack}
	s.kubelets = &kubelets{cache: s.cache, client: c.KubeletClient, ca: c.KubeletCA, types: c.KubeletAddresses, named: c.KubeletNames, guard: guard}
	var discards func(context.Context, string) (bool, string, error)
	if c.Features[features.DiscardUnreadable] {
		discards = s.allows
	}
	s.api, err = endpoints.New(endpoints.Config{
		Discards: discards,
		Cache:    s.cache, Resources: kinds, WritesInFlight: storage.InFlight(c.Store),
		Admission: s.admission,
		Changed: func() {
			if s.others != nil {
				s.others.Changed()
			}
		},
		Virtual: s.virtual(), Components: s.components, Watches: counts.Watches, MinWatch: c.MinWatch,
		Connect:      connect.Config{Kubelet: s.kubelets.connect, NodeProxy: s.kubelets.proxy, Dial: guard.DialProxied, Allows: s.allows},
		ServiceCIDRs: c.ServiceCIDRs, NodePorts: c.NodePorts, Version: c.Version,
		Paths: []string{"/healthz", "/livez", "/metrics", "/metrics/slis", "/openid/v1/jwks", "/readyz", "/.well-known/openid-configuration"},
	})
	if err != nil {
		return nil, fmt.Errorf("API handlers: %w", err)
	}
	s.custom = extension.New(extension.Config{Cache: s.cache, API: s.api, Resolve: extension.ResolveService(s.cache)})
	s.others = aggregation.New(aggregation.Config{Cache: s.cache, API: s.api, Identity: c.Identity, Dial: c.Dial, Inside: c.Aggregated})
	counts.Also(s.others)
	s.fairness = fairness.New(s.cache, c.MaxReads+c.MaxWrites, c.RequestTimeout/4)
	s.memory = overload.NewMemoryLimiter(c.RequestTimeout / 4)
	counts.Also(s.fairness)
	counts.Requests.Served = s.api.Serves
	s.handler = transport.GrowStack(s.chain(s.others.Handler(s.paths(s.featured(s.api)))))
	return s, nil
}

// allows reports whether the user may do verb to the object of the request.
func (s *Server) allows(ctx context.Context, verb string) (bool, string, error) {
	info := request.InfoFrom(ctx)
	decision, reason, err := s.authz.Authorize(ctx, &authz.Attributes{
		User: request.UserFrom(ctx), Verb: verb, Namespace: info.Namespace, Name: info.Name,
		Group: info.Group, Version: info.Version, Resource: info.Resource, Subresource: info.Subresource, IsResource: true,
	})
	return decision == authorizer.DecisionAllow, reason, err
}

// Handler is the whole filter chain.
func (s *Server) Handler() http.Handler { return s.handler }

// Cache is what the server serves from.
func (s *Server) Cache() *watchcache.Cache { return s.cache }

// Started is closed once Run has made what every cluster starts with: from
// then on /readyz is ok.
func (s *Server) Started() <-chan struct{} { return s.started }

// Run keeps the cache, and makes what every cluster starts with. It returns
// when ctx ends.
func (s *Server) Run(ctx context.Context) error {
	ctx, broken := context.WithCancelCause(ctx)
	cancel := func() { broken(nil) }
	defer cancel()
	// why is nil when Run was asked to end.
	why := func() error {
		if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
	var wg run.Group
	if s.cfg.Audit != nil {
		wg.Loop(ctx, "audit", s.cfg.Audit.Run)
	}
	wg.Go("watch cache", func() {
		if err := run.Catch("watch cache", func() error { return s.cache.Run(ctx) }); err != nil {
			slog.ErrorContext(ctx, "watch cache", "err", err)
			broken(fmt.Errorf("watch cache: %w", err)) // without it nothing is served rightly
		}
	})
	if e := s.cfg.Encryption; e != nil && (s.cfg.ReloadEncryption || e.Plugins()) {
		wg.Loop(ctx, "encryption configuration", func(ctx context.Context) {
			if err := e.Run(ctx, s.cfg.ReloadEncryption, s.cache.Reread); err != nil {
				slog.ErrorContext(ctx, "reload of the encryption configuration", "err", err)
			}
		})
	}
	defer wg.Wait()
	defer s.admission.Close()
	defer cancel()
	select {
	case <-s.cache.Ready():
	case <-ctx.Done():
		return why()
	}
	wg.Loop(ctx, "custom resources", func(ctx context.Context) {
		if err := s.custom.Run(ctx); err != nil {
			slog.ErrorContext(ctx, "custom resources", "err", err)
		}
	})
	if err := s.bootstrapWithRetries(ctx); err != nil {
		if ctx.Err() != nil {
			return why()
		}
		return fmt.Errorf("make what every cluster starts with: %w", err)
	}
	s.health.made.Store(true)
	select {
	case <-s.custom.Synced(): // after a restart, nothing that was served is missing
	case <-ctx.Done():
		return why()
	}
	wg.Loop(ctx, "authorization configuration", func(ctx context.Context) {
		if err := s.authz.Run(ctx); err != nil {
			slog.ErrorContext(ctx, "reload of the authorization configuration", "err", err)
		}
	})
	if s.issuers != nil {
		wg.Loop(ctx, "authentication configuration", func(ctx context.Context) {
			if err := s.issuers.Run(ctx); err != nil {
				slog.ErrorContext(ctx, "reload of the authentication configuration", "err", err)
			}
		})
	}
	wg.Loop(ctx, "API server leases", s.keepLease)
	wg.Loop(ctx, "aggregation", s.others.Run)
	wg.Loop(ctx, "priority and fairness", func(ctx context.Context) { s.fairness.Run(ctx, s.restoreFlows) })
	if s.versions != nil {
		wg.Loop(ctx, "storage versions", s.keepVersions)
		select {
		case <-s.versions.recorded: // before that, writes are refused
		case <-ctx.Done():
			return why()
		}
	}
	close(s.started)
	<-ctx.Done()
	s.health.stopping.Store(true)
	return why()
}

// quiet passes on what net/http logs at debug level: broken clients are not
// the operator's problem.
type quiet struct{ counts *metrics.Requests }

func (q quiet) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("http: TLS handshake error from")) {
		q.counts.TLSErrors.Add(1)
	}
	slog.Debug("http server", "msg", string(p))
	return len(p), nil
}
