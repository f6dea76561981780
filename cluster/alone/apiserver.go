package alone

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"knarr/cluster/apiflags"
	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/serviceallocation"
	"knarr/controlplane/apiserver/storage"
	"knarr/internal/buildinfo"
	"knarr/internal/keypair"
	"knarr/internal/run"
	"knarr/internal/version"
)

type apiServer struct {
	apiflags.Flags
	etcd                                 storage.Remote
	bind, advertise                      string
	port                                 int
	certDir, certFile, keyFile, clientCA string
	signingKey                           string
	verifyKeys                           []string
	serviceRanges, nodePorts             string
	kubeletCert, kubeletKey, kubeletCA   string
	kubeletAddresses                     []string
	proxyCert, proxyKey                  string
	privileged                           bool
	maxReads, maxWrites                  int
	forget                               time.Duration
}

func (a *apiServer) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&a.etcd.Endpoints, "etcd-servers", []string{"http://127.0.0.1:2379"}, "`URLs` of etcd")
	f.StringVar(&a.etcd.CAFile, "etcd-cafile", "", "`file` of who signed etcd's certificate")
	f.StringVar(&a.etcd.CertFile, "etcd-certfile", "", "`file` of the certificate shown to etcd")
	f.StringVar(&a.etcd.KeyFile, "etcd-keyfile", "", "`file` of its key")
	f.DurationVar(&a.forget, "etcd-compaction-interval", storage.History, "`time` for which etcd remembers what was; 0 leaves it to others")
	f.StringVar(&a.bind, "bind-address", "0.0.0.0", "`address` to listen on")
	f.IntVar(&a.port, "secure-port", 6443, "`port` to listen on")
	f.StringVar(&a.advertise, "advertise-address", "", "`address` that members of the cluster reach this server at (default: that of the default route)")
	f.StringVar(&a.certDir, "cert-dir", "/var/run/kubernetes", "`directory` for a certificate made when --tls-cert-file is not given")
	f.StringVar(&a.certFile, "tls-cert-file", "", "`file` of the serving certificate")
	f.StringVar(&a.keyFile, "tls-private-key-file", "", "`file` of its key")
	f.StringVar(&a.clientCA, "client-ca-file", "", "`file` of who signs client certificates")
	f.StringVar(&a.signingKey, "service-account-signing-key-file", "", "`file` of the key that signs service-account tokens")
	f.StringSliceVar(&a.verifyKeys, "service-account-key-file", nil, "`files` of more keys that verify service-account tokens")
	f.StringVar(&a.serviceRanges, "service-cluster-ip-range", "10.0.0.0/24", "`ranges` of service addresses")
	f.StringVar(&a.nodePorts, "service-node-port-range", "30000-32767", "`range` of node ports")
	f.StringVar(&a.kubeletCert, "kubelet-client-certificate", "", "`file` of the certificate shown to kubelets")
	f.StringVar(&a.kubeletKey, "kubelet-client-key", "", "`file` of its key")
	f.StringVar(&a.kubeletCA, "kubelet-certificate-authority", "", "`file` of who signs kubelets' certificates")
	f.StringSliceVar(&a.kubeletAddresses, "kubelet-preferred-address-types", []string{"Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"},
		"`types` of a Node's addresses at which its kubelet is looked for, best first")
	f.StringVar(&a.proxyCert, "proxy-client-cert-file", "", "`file` of the certificate shown to aggregated API servers, which lets them believe who is said to ask")
	f.StringVar(&a.proxyKey, "proxy-client-key-file", "", "`file` of its key")
	f.BoolVar(&a.privileged, "allow-privileged", true, "let containers be privileged; false is not built")
	f.IntVar(&a.maxReads, "max-requests-inflight", 400, "`number` of reads served at once")
	f.IntVar(&a.maxWrites, "max-mutating-requests-inflight", 200, "`number` of writes served at once")
	a.Bind(f)
}

func (a *apiServer) run(ctx context.Context) error {
	cfg, serving, err := a.config()
	if err != nil {
		return err
	}
	client, err := storage.Dial(ctx, a.etcd)
	if err != nil {
		return fmt.Errorf("--etcd-servers: %w", err)
	}
	store := storage.NewEtcd(client)
	defer store.Close()
	cfg.Store = store
	api, err := apiserver.New(*cfg)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(a.bind, strconv.Itoa(a.port)))
	if err != nil {
		return fmt.Errorf("--secure-port: %w", err)
	}
	// What serves requests goes on until the last one has been answered.
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	ctx, stop := context.WithCancelCause(ctx)
	if a.forget > 0 {
		run.Go("compaction", func() { storage.Forget(running, store, a.forget) })
	}
	ended := make(chan error, 1)
	run.Go("API server", func() {
		err := run.Catch("API server", func() error { return api.Run(running) })
		stop(err)
		ended <- err
	})
	err = api.Serve(ctx, l, &tls.Config{
		GetCertificate: serving.Serving, MinVersion: tls.VersionTLS12,
		ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2", "http/1.1"},
	})
	stop(err)
	end()
	return errors.Join(err, <-ended)
}

// addressTypes are those that a Node's addresses may have.
var addressTypes = []corev1.NodeAddressType{corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeInternalIP, corev1.NodeExternalDNS, corev1.NodeExternalIP}

// config reads the files that the flags name.
func (a *apiServer) config() (*apiserver.Config, *keypair.File, error) {
	if !a.privileged {
		return nil, nil, errors.New("--allow-privileged: false is not built; use Pod Security instead")
	}
	advertise, err := a.advertised()
	if err != nil {
		return nil, nil, err
	}
	c := &apiserver.Config{
		MaxReads: a.maxReads, MaxWrites: a.maxWrites,
		Advertise: netip.AddrPortFrom(advertise, uint16(a.port)),
		Version:   buildinfo.Of(version.Kubernetes + "+knarr"),
	}
	for s := range strings.SplitSeq(a.serviceRanges, ",") {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, nil, fmt.Errorf("--service-cluster-ip-range: %q is not a range such as 10.43.0.0/16", s)
		}
		c.ServiceCIDRs = append(c.ServiceCIDRs, p.Masked())
	}
	ports, err := utilnet.ParsePortRange(a.nodePorts)
	if err != nil {
		return nil, nil, fmt.Errorf("--service-node-port-range: %w", err)
	}
	c.NodePorts = serviceallocation.PortRange{First: int32(ports.Base), Last: int32(ports.Base + ports.Size - 1)}
	if c.ClientCA, err = pool("client-ca-file", a.clientCA); err != nil {
		return nil, nil, err
	}
	if a.clientCA != "" {
		if c.ClientCAs, err = os.ReadFile(a.clientCA); err != nil {
			return nil, nil, fmt.Errorf("--client-ca-file: %w", err)
		}
	}
	for _, t := range a.kubeletAddresses {
		if !slices.Contains(addressTypes, corev1.NodeAddressType(t)) {
			return nil, nil, fmt.Errorf("--kubelet-preferred-address-types: %q is none of %v", t, addressTypes)
		}
		c.KubeletAddresses = append(c.KubeletAddresses, corev1.NodeAddressType(t))
	}
	if c.KubeletCA, err = pool("kubelet-certificate-authority", a.kubeletCA); err != nil {
		return nil, nil, err
	}
	if a.kubeletCert != "" {
		if c.KubeletClient, err = keypair.Open(a.kubeletCert, a.kubeletKey); err != nil {
			return nil, nil, fmt.Errorf("--kubelet-client-certificate: %w", err)
		}
	}
	if (a.proxyCert == "") != (a.proxyKey == "") {
		return nil, nil, errors.New("--proxy-client-cert-file and --proxy-client-key-file: give both or neither")
	}
	if a.proxyCert != "" {
		if c.Identity, err = keypair.Open(a.proxyCert, a.proxyKey); err != nil {
			return nil, nil, fmt.Errorf("--proxy-client-cert-file: %w", err)
		}
	}
	if err := a.keys(c); err != nil {
		return nil, nil, err
	}
	if err := a.Load(); err != nil {
		return nil, nil, err
	}
	if err := a.Apply(c); err != nil {
		return nil, nil, err
	}
	serving, err := a.serving(advertise, c.ServiceCIDRs[0])
	return c, serving, err
}

func (a *apiServer) advertised() (netip.Addr, error) {
	host := a.advertise
	if host == "" {
		ip, err := utilnet.ResolveBindAddress(net.ParseIP(a.bind))
		if err != nil {
			ip = net.IPv4(127, 0, 0, 1)
		}
		host = ip.String()
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return addr, fmt.Errorf("--advertise-address: %q is not an IP address", host)
	}
	return addr.Unmap(), nil
}

// keys reads those of service-account tokens.
func (a *apiServer) keys(c *apiserver.Config) error {
	if a.signingKey == "" {
		return errors.New("--service-account-signing-key-file: name the key that signs service-account tokens")
	}
	key, err := keyutil.PrivateKeyFromFile(a.signingKey)
	if err != nil {
		return fmt.Errorf("--service-account-signing-key-file: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return fmt.Errorf("--service-account-signing-key-file: %T cannot sign", key)
	}
	c.ServiceAccountKey = signer
	for _, file := range a.verifyKeys {
		keys, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return fmt.Errorf("--service-account-key-file: %w", err)
		}
		for _, k := range keys {
			if same, ok := k.(interface{ Equal(crypto.PublicKey) bool }); !ok || !same.Equal(signer.Public()) {
				c.ServiceAccountPublicKeys = append(c.ServiceAccountPublicKeys, k)
			}
		}
	}
	return nil
}

// serving is the certificate that clients see, made once when none is given.
func (a *apiServer) serving(advertise netip.Addr, services netip.Prefix) (*keypair.File, error) {
	if a.certFile == "" {
		a.certFile, a.keyFile = filepath.Join(a.certDir, "apiserver.crt"), filepath.Join(a.certDir, "apiserver.key")
		if readable, _ := cert.CanReadCertAndKey(a.certFile, a.keyFile); !readable {
			certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey(advertise.String(),
				[]net.IP{net.IPv4(127, 0, 0, 1), services.Addr().Next().AsSlice()},
				[]string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"})
			if err != nil {
				return nil, fmt.Errorf("--cert-dir: %w", err)
			}
			if err := errors.Join(cert.WriteCert(a.certFile, certPEM), keyutil.WriteKey(a.keyFile, keyPEM)); err != nil {
				return nil, fmt.Errorf("--cert-dir: %w", err)
			}
		}
	}
	pair, err := keypair.Open(a.certFile, a.keyFile)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert-file: %w", err)
	}
	return pair, nil
}

func pool(flag, file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	p, err := cert.NewPool(file)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return p, nil
}
