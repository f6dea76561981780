package alone

import (
	"context"
	"crypto"
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

	"knarr/controlplane/controllermanager"
)

type controllerManager struct {
	client
	elect, ownAccounts      bool
	rootCA, tokenKey        string
	clusterCIDR, serviceIPs string
	controllers             []string
	signers                 signers
}

func (m *controllerManager) flags(f *pflag.FlagSet) {
	m.client.flags(f)
	f.BoolVar(&m.elect, "leader-elect", true, "take turns with other controller managers of the cluster")
	f.BoolVar(&m.ownAccounts, "use-service-account-credentials", false, "run each controller as a service account of its own")
	f.StringVar(&m.rootCA, "root-ca-file", "", "`file` of the certificate authority published as kube-root-ca.crt")
	f.StringVar(&m.tokenKey, "service-account-private-key-file", "", "`file` of the key that signs the tokens in Secrets (default: they get none)")
	f.StringVar(&m.clusterCIDR, "cluster-cidr", "", "`ranges` of pod addresses, which nodes get parts of (default: they get none)")
	f.StringVar(&m.serviceIPs, "service-cluster-ip-range", "", "`ranges` of service addresses, kept out of the nodes' parts")
	m.signers.flags(f)
	f.StringSliceVar(&m.controllers, "controllers", []string{"*"}, "`names` of controllers to run; * is all, -name leaves one out")
}

func (m *controllerManager) run(ctx context.Context) error {
	kube, err := m.config("kube-controller-manager")
	if err != nil {
		return err
	}
	cfg := controllermanager.Config{Kube: kube, LeaderElect: m.elect, Controllers: m.controllers}
	if m.rootCA != "" {
		if cfg.RootCA, err = os.ReadFile(m.rootCA); err != nil {
			return fmt.Errorf("--root-ca-file: %w", err)
		}
	}
	cfg.SigningDuration = m.signers.duration
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
	return manager.Run(ctx)
}

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
