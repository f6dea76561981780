package secureserving

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/delegation"
	"knarr/internal/follow"
	"knarr/internal/informer"
	"knarr/internal/keypair"
	"knarr/internal/run"
)

// clusterAuthorities is the ConfigMap in which API servers publish the authorities of
// client certificates.
const clusterAuthorities = "extension-apiserver-authentication"

// authorities are those of client certificates and of front proxies: of files, which
// may change, or of the cluster.
type authorities struct {
	options *Options
	lookup  kubernetes.Interface // nil: only files count
	clients atomic.Pointer[x509.CertPool]
	proxy   atomic.Pointer[delegation.FrontProxy]
}

// delegator asks as the flags say.
func (o *Options) delegator(ctx context.Context) (*delegation.Delegator, *authorities, error) {
	authentication, err := client("authentication-kubeconfig", o.AuthenticationKubeconfig)
	if err != nil {
		return nil, nil, err
	}
	authorization, err := client("authorization-kubeconfig", o.AuthorizationKubeconfig)
	if err != nil {
		return nil, nil, err
	}
	a := &authorities{options: o}
	if !o.SkipLookup && (o.ClientCAFile == "" || o.ProxyCAFile == "") {
		a.lookup = authentication
	}
	if err := a.readClients(); err != nil {
		return nil, nil, err
	}
	if err := a.readProxies(); err != nil {
		return nil, nil, err
	}
	if a.lookup != nil && !o.TolerateLookupFailure {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if _, err := a.lookup.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, clusterAuthorities, metav1.GetOptions{}); err != nil {
			return nil, nil, fmt.Errorf("--authentication-kubeconfig: unable to load configmap based request-header-client-ca-file: %w; or set --authentication-tolerate-lookup-failure", err)
		}
	}
	return &delegation.Delegator{
		Authentication: authentication, Authorization: authorization, ClientCA: a.clients.Load, Proxy: a.proxy.Load,
		TokenTTL: o.TokenTTL, AllowTTL: o.AllowTTL, DenyTTL: o.DenyTTL,
	}, a, nil
}

// readPool is the pool of a file; nil for no file.
func readPool(flag, file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	p, err := keypair.Authorities(file)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return p, nil
}

func (a *authorities) readClients() error {
	p, err := readPool("client-ca-file", a.options.ClientCAFile)
	if err == nil && p != nil {
		a.clients.Store(p)
	}
	return err
}

func (a *authorities) readProxies() error {
	o := a.options
	p, err := readPool("requestheader-client-ca-file", o.ProxyCAFile)
	if err == nil && p != nil {
		a.proxy.Store(&delegation.FrontProxy{CA: p, Names: o.ProxyNames, User: o.ProxyUser, UID: o.ProxyUID, Group: o.ProxyGroup, Extra: o.ProxyExtraPrefixes})
	}
	return err
}

// follow keeps the authorities up to date until ctx ends.
func (a *authorities) follow(ctx context.Context) {
	var wg run.Group
	defer wg.Wait()
	for file, read := range map[string]func() error{a.options.ClientCAFile: a.readClients, a.options.ProxyCAFile: a.readProxies} {
		if file == "" {
			continue
		}
		wg.Go("secure port: follow a certificate authority", func() {
			err := follow.File(ctx, file, func() time.Duration {
				if err := read(); err != nil { // half written, perhaps: what was there counts
					slog.WarnContext(ctx, "read a certificate authority", "err", err)
				}
				return 0
			})
			if err != nil && ctx.Err() == nil {
				slog.WarnContext(ctx, "follow a certificate authority", "file", file, "err", err)
			}
		})
	}
	if a.lookup == nil {
		return
	}
	inf := coreinformers.NewFilteredConfigMapInformer(a.lookup, metav1.NamespaceSystem, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", clusterAuthorities).String()
	})
	on := func(o any) {
		if m, ok := informer.Object(o).(*corev1.ConfigMap); ok {
			a.take(m.Data)
		}
	}
	if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: on, UpdateFunc: func(_, o any) { on(o) }}); err == nil {
		wg.Go("secure port: watch authorities", func() { inf.RunWithContext(ctx) })
	}
}

// take uses the cluster's authorities where no file says otherwise.
func (a *authorities) take(data map[string]string) {
	pool := func(key string) *x509.CertPool {
		p := x509.NewCertPool()
		if !p.AppendCertsFromPEM([]byte(data[key])) {
			return nil
		}
		return p
	}
	if a.options.ClientCAFile == "" {
		a.clients.Store(pool("client-ca-file"))
	}
	if a.options.ProxyCAFile != "" {
		return
	}
	list := func(key string) (all []string) {
		_ = json.Unmarshal([]byte(data[key]), &all) // what cannot be read names nobody
		return all
	}
	p := &delegation.FrontProxy{CA: pool("requestheader-client-ca-file"), Names: list("requestheader-allowed-names"),
		User: list("requestheader-username-headers"), UID: list("requestheader-uid-headers"),
		Group: list("requestheader-group-headers"), Extra: list("requestheader-extra-headers-prefix")}
	if p.CA == nil {
		p = nil
	}
	a.proxy.Store(p)
}
