package alone

import (
	"cmp"
	"context"
	"crypto"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/oauth2"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/keyutil"

	"knarr/cluster/alone/secureserving"
	"knarr/cluster/componentflags"
	"knarr/cluster/controllerflags"
	"knarr/controlplane/controllermanager"
	"knarr/internal/features"
	"knarr/internal/healthz"
)

type controllerManager struct {
	client
	controllerflags.Flags
	secure                  secureserving.Options
	compatible              componentflags.Compatibility
	gates                   componentflags.Gates
	ownAccounts, nodeCIDRs  bool
	rootCA, tokenKey        string
	clusterCIDR, serviceIPs string
	signers                 signers
	masks                   struct{ both, ipv4, ipv6 int }
	clusterName             string
	values                  func() map[string]string
}

func (m *controllerManager) flags(f *pflag.FlagSet) {
	m.values = values(f)
	m.client.flags(f)
	m.secure.Flags(f, 10257)
	f.BoolVar(&m.ownAccounts, "use-service-account-credentials", false, "run each controller as a service account of its own")
	f.StringVar(&m.rootCA, "root-ca-file", "", "`file` of the certificate authority published as kube-root-ca.crt (default: the one in --kubeconfig)")
	f.StringVar(&m.tokenKey, "service-account-private-key-file", "", "`file` of the key that signs the tokens in Secrets (default: they get none)")
	f.StringVar(&m.clusterCIDR, "cluster-cidr", "", "`ranges` of pod addresses, which nodes get parts of with --allocate-node-cidrs")
	f.StringVar(&m.serviceIPs, "service-cluster-ip-range", "", "`ranges` of service addresses, kept out of the nodes' parts")
	f.BoolVar(&m.nodeCIDRs, "allocate-node-cidrs", false, "give nodes parts of --cluster-cidr")
	f.IntVar(&m.masks.both, "node-cidr-mask-size", 0, "`bits` of a node's part of a single range (default: 24, of IPv6 64)")
	f.IntVar(&m.masks.ipv4, "node-cidr-mask-size-ipv4", 0, "`bits` of a node's part of an IPv4 range (default: 24)")
	f.IntVar(&m.masks.ipv6, "node-cidr-mask-size-ipv6", 0, "`bits` of a node's part of an IPv6 range (default: 64)")
	f.StringVar(&m.clusterName, "cluster-name", "kubernetes", "`name` of the cluster, for cloud providers")
	m.compatible.Bind(f)
	m.gates.Bind(f, features.ScaleToZero+"=true lets autoscalers go down to no pod. With an API server that serves their kinds: "+
		features.StorageVersionMigrator+"=true has stored objects written anew where StorageVersionMigrations ask for it, "+
		features.TrustBundles+"=true publishes the API server's authority in a ClusterTrustBundle, "+
		features.PodCertificates+"=true deletes PodCertificateRequests that have ended, "+
		features.StorageVersions+"=true removes from StorageVersions what API servers have said that are gone", append(controllerFeatures, flagz, statusz)...)
	m.signers.flags(f)
	m.Bind(f)
}

func (m *controllerManager) run(ctx context.Context) error {
	if err := m.Load(); err != nil {
		return err
	}
	if err := errors.Join(m.secure.Validate(), m.Validate(), m.compatible.Validate(), m.gates.Validate(), m.validate()); err != nil {
		return err
	}
	kube, err := m.config("kube-controller-manager")
	if err != nil {
		return err
	}
	m.Connection.Apply(kube)
	healthy := m.Election.Watch()
	cfg := controllermanager.Config{Kube: kube, LeaderElect: m.Election.On, Features: m.gates.On()}
	m.Apply(&cfg)
	if m.rootCA != "" {
		if cfg.RootCA, err = os.ReadFile(m.rootCA); err != nil {
			return fmt.Errorf("--root-ca-file: %w", err)
		}
	} else {
		cfg.RootCA = kube.CAData
	}
	if cfg.Signers, err = m.signers.authorities(); err != nil {
		return err
	}
	if m.tokenKey != "" {
		key, err := keyutil.PrivateKeyFromFile(m.tokenKey)
		if err != nil {
			return fmt.Errorf("--service-account-private-key-file: %w", err)
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return fmt.Errorf("--service-account-private-key-file: %T cannot sign", key)
		}
		cfg.TokenKey = signer
	}
	if cfg.ClusterCIDRs, err = ranges("cluster-cidr", m.clusterCIDR); err != nil {
		return err
	}
	if !m.nodeCIDRs {
		cfg.ClusterCIDRs = nil
	}
	cfg.NodeCIDRMaskSizeIPv4, cfg.NodeCIDRMaskSizeIPv6 = cmp.Or(m.masks.ipv4, m.masks.both), cmp.Or(m.masks.ipv6, m.masks.both)
	if cfg.ServiceCIDRs, err = ranges("service-cluster-ip-range", m.serviceIPs); err != nil {
		return err
	}
	if m.ownAccounts {
		c, err := kubernetes.NewForConfig(kube)
		if err != nil {
			return err
		}
		cfg.ClientFor = func(name string) *rest.Config { return asServiceAccount(ctx, c, kube, name) }
	}
	manager, err := controllermanager.New(cfg)
	if err != nil {
		return err
	}
	return m.secure.With(ctx, secureserving.Component{
		Name: "kube-controller-manager", Flags: m.values, NoFlagz: !m.gates.Enabled(flagz), NoStatusz: !m.gates.Enabled(statusz),
		Config: map[string]any{"kubecontrollermanager.config.k8s.io": m.Configuration()},
		Checks: func(string) []healthz.Check {
			checks := elected(healthy)
			for _, name := range manager.Running() {
				checks = append(checks, healthz.Check{Name: name, Fails: healthz.Always})
			}
			return checks
		},
	}, manager.Run)
}

// validate names what cannot be.
func (m *controllerManager) validate() error {
	var errs []error
	bad := func(when bool, flag, why string) {
		if when {
			errs = append(errs, fmt.Errorf("--%s: %s", flag, why))
		}
	}
	bad(m.nodeCIDRs && m.clusterCIDR == "", "allocate-node-cidrs", "give the ranges of pod addresses with --cluster-cidr")
	bad(m.masks.both < 0 || m.masks.both > 128, "node-cidr-mask-size", "is not a number of bits")
	bad(m.masks.ipv4 < 0 || m.masks.ipv4 > 32, "node-cidr-mask-size-ipv4", "is not a number of bits")
	bad(m.masks.ipv6 < 0 || m.masks.ipv6 > 128, "node-cidr-mask-size-ipv6", "is not a number of bits")
	return errors.Join(errs...)
}

// controllerFeatures are those that controllers know.
var controllerFeatures = []string{features.ScaleToZero, features.StorageVersionMigrator, features.TrustBundles, features.PodCertificates, features.StorageVersions}

func ranges(flag, s string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for part := range strings.SplitSeq(s, ",") {
		if part == "" {
			continue
		}
		p, err := netip.ParsePrefix(part)
		if err != nil {
			return nil, fmt.Errorf("--%s: %q is not a range such as 10.42.0.0/16", flag, part)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// asServiceAccount is kube, as kube-system's service account of that name: its
// tokens come from TokenRequests, asked for by kube's own user.
func asServiceAccount(ctx context.Context, c kubernetes.Interface, kube *rest.Config, name string) *rest.Config {
	cfg := rest.AnonymousClientConfig(kube)
	cfg.QPS, cfg.UserAgent, cfg.ContentConfig = kube.QPS, kube.UserAgent+"/"+name, kube.ContentConfig
	cfg.Wrap(transport.ResettableTokenSourceWrapTransport(transport.NewCachedTokenSource(&tokens{ctx, c, name})))
	return cfg
}

// tokens asks for a service account's tokens; the account is made when it is
// not there yet.
type tokens struct {
	ctx  context.Context
	c    kubernetes.Interface
	name string
}

func (t *tokens) Token() (*oauth2.Token, error) {
	accounts := t.c.CoreV1().ServiceAccounts(metav1.NamespaceSystem)
	seconds := int64(3600)
	ask := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	got, err := accounts.CreateToken(t.ctx, t.name, ask, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: t.name}}
		if _, err = accounts.Create(t.ctx, account, metav1.CreateOptions{}); err == nil || apierrors.IsAlreadyExists(err) {
			got, err = accounts.CreateToken(t.ctx, t.name, ask, metav1.CreateOptions{})
		}
	}
	if err != nil {
		return nil, fmt.Errorf("token of service account %s: %w", t.name, err)
	}
	return &oauth2.Token{AccessToken: got.Status.Token, TokenType: "Bearer", Expiry: got.Status.ExpirationTimestamp.Time}, nil
}
