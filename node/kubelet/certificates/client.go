// Package certificates gets a kubelet its certificates from the API server, by
// CertificateSigningRequests as upstream's does: the first one to be a client with by a
// bootstrap kubeconfig, such as kubeadm writes, and successors before they end; and
// one to serve with. It reads kubeconfigs, and writes one and files below a directory.
package certificates

import (
	"context"
	"crypto"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"
)

// A Client is how a kubelet comes to a certificate that the API server knows it by.
type Client struct {
	NodeName string
	// Kubeconfig is the kubelet's own, written if Bootstrap is given and it is not
	// there, or its certificate has ended. If that ends while the kubelet runs, Bootstrap
	// is asked by for the next. Bootstrap may be "".
	Kubeconfig, Bootstrap string
	// Dir is where certificates are kept, kubelet-client-current.pem first of all.
	Dir string
	// Rotate asks for successors.
	Rotate bool
	// client makes a client of what a kubeconfig says; nil but in tests.
	client func(*rest.Config) (kubernetes.Interface, error)
}

// Config is how the API server is reached. It waits for the first certificate until
// ctx ends.
func (c *Client) Config(ctx context.Context) (*rest.Config, error) {
	if c.Bootstrap != "" && !c.valid() {
		if err := c.bootstrap(ctx); err != nil {
			return nil, err
		}
	}
	config, err := c.load("kubeconfig", c.Kubeconfig)
	if err != nil || !c.Rotate {
		return config, err
	}
	return config, c.rotate(ctx, config)
}

func (c *Client) load(flag, file string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	config.QPS = -1
	return config, nil
}

func (c *Client) newClient(config *rest.Config) (kubernetes.Interface, error) {
	if c.client != nil {
		return c.client(config)
	}
	return kubernetes.NewForConfig(config)
}

// valid says whether the kubeconfig has a certificate that has not ended.
func (c *Client) valid() bool {
	if _, err := os.Stat(c.Kubeconfig); errors.Is(err, os.ErrNotExist) {
		return false
	}
	config, err := c.load("kubeconfig", c.Kubeconfig)
	if err == nil {
		err = rest.LoadTLSFiles(config)
	}
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.X509KeyPair(config.CertData, config.KeyData)
	}
	switch {
	case err != nil:
		slog.Warn("the kubeconfig gives no certificate, so a new one is asked for", "file", c.Kubeconfig, "err", err)
		return false
	case time.Now().After(pair.Leaf.NotAfter):
		slog.Warn("the certificate of the kubeconfig has ended, so a new one is asked for", "file", c.Kubeconfig, "end", pair.Leaf.NotAfter)
		return false
	}
	return true
}

// request is who the kubelet wants to be.
func (c *Client) request() *x509.CertificateRequest {
	return &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + c.NodeName, Organization: []string{"system:nodes"}}}
}

// store keeps the certificates.
func (c *Client) store() (certificate.FileStore, error) { return open("kubelet-client", c.Dir) }

// open gives the files of a name in a directory.
func open(name, dir string) (certificate.FileStore, error) {
	err := os.MkdirAll(dir, 0o700)
	if err != nil {
		return nil, fmt.Errorf("--cert-dir: %w", err)
	}
	s, err := certificate.NewFileStore(name, dir, dir, "", "")
	if err != nil {
		return nil, fmt.Errorf("--cert-dir: %w", err)
	}
	return s, nil
}

// keyFile keeps the key until it has a certificate, so that another try, or another
// start, asks with the same request.
const keyFile = "kubelet-client.key.tmp"

// How soon what failed is tried again.
const firstWait, mostWait = time.Second, time.Minute

// bootstrap gets the first certificate and writes the kubeconfig.
func (c *Client) bootstrap(ctx context.Context) error {
	config, err := c.load("bootstrap-kubeconfig", c.Bootstrap)
	if err != nil {
		return err
	}
	client, err := c.newClient(config)
	if err != nil {
		return fmt.Errorf("--bootstrap-kubeconfig: %w", err)
	}
	store, err := c.store()
	if err != nil {
		return err
	}
	for wait := firstWait; ; wait = min(2*wait, mostWait) {
		if err = c.first(ctx, client, store); err == nil {
			break
		}
		if ctx.Err() == nil {
			slog.Warn("ask for this node's first certificate", "server", config.Host, "err", err, "again", wait)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	slog.Info("this node has its first certificate", "file", store.CurrentPath())
	return c.write(config, store.CurrentPath())
}

// first asks once, and waits until somebody has approved the request.
func (c *Client) first(ctx context.Context, client kubernetes.Interface, store certificate.FileStore) error {
	file := filepath.Join(c.Dir, keyFile)
	keyPEM, _, err := keyutil.LoadOrGenerateKeyFile(file)
	if err != nil {
		return err
	}
	key, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	request, err := cert.MakeCSRFromTemplate(key, c.request())
	if err != nil {
		return err
	}
	name, err := requestName(key)
	if err != nil {
		return err
	}
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, request, name, certificatesv1.KubeAPIServerClientKubeletSignerName, nil, certificate.DefaultKubeletClientGetUsages(key), key)
	if err != nil {
		return err
	}
	slog.Info("waiting for this node's first certificate", "certificatesigningrequest", name)
	issued, err := csr.WaitForCertificate(ctx, client, name, uid)
	if err != nil {
		return err
	}
	if _, err := store.Update(issued, keyPEM); err != nil {
		return err
	}
	return os.Remove(file)
}

// requestName is the name of the object with a key's request: the same at each try.
func requestName(key any) (string, error) {
	signer, ok := key.(crypto.Signer)
	if !ok {
		return "", errors.New("the key cannot sign")
	}
	public, err := x509.MarshalPKIXPublicKey(signer.Public())
	if err != nil {
		return "", err
	}
	sum := sha512.Sum512(public)
	return "node-csr-" + base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// write stores the kubeconfig that refers to the certificate's file, as kubeadm
// expects it.
func (c *Client) write(from *rest.Config, pem string) error {
	const cluster, auth, name = "default-cluster", "default-auth", "default-context"
	k := clientcmdapi.NewConfig()
	k.Clusters[cluster] = &clientcmdapi.Cluster{Server: from.Host, InsecureSkipTLSVerify: from.Insecure, CertificateAuthority: from.CAFile}
	if from.CAFile == "" {
		k.Clusters[cluster].CertificateAuthorityData = from.CAData
	}
	k.AuthInfos[auth] = &clientcmdapi.AuthInfo{ClientCertificate: pem, ClientKey: pem}
	k.Contexts[name] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: auth, Namespace: "default"}
	k.CurrentContext = name
	if err := clientcmd.WriteToFile(*k, c.Kubeconfig); err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	return nil
}

// asking is the client that a successor of the current certificate is asked for with.
// While that has ended, which the library tells by giving none, it is the bootstrap
// kubeconfig's, as at a start: nobody believes an ended certificate, so a node that
// slept or was cut off for long would ask with it for ever. Where the file has been
// removed, as kubeadm does, the kubelet's own is tried all the same.
func (c *Client) asking(current *tls.Certificate, own *rest.Config) (kubernetes.Interface, error) {
	if current != nil || c.Bootstrap == "" {
		return c.newClient(own)
	}
	if _, err := os.Stat(c.Bootstrap); errors.Is(err, os.ErrNotExist) {
		slog.Warn("this node's certificate has ended, and there is no bootstrap kubeconfig to ask for another with", "file", c.Bootstrap)
		return c.newClient(own)
	}
	config, err := c.load("bootstrap-kubeconfig", c.Bootstrap)
	if err != nil {
		return nil, err
	}
	slog.Warn("this node's certificate has ended, so a new one is asked for by the bootstrap kubeconfig", "server", config.Host)
	return c.newClient(config)
}

// rotate has successors of the certificate asked for until ctx ends; config goes by
// the file that they are in, which the library reads again.
func (c *Client) rotate(ctx context.Context, config *rest.Config) error {
	store, err := c.store()
	if err != nil {
		return err
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	if len(config.CertData) == 0 {
		return nil // it goes by a token, or by no name
	}
	asked := rest.CopyConfig(config)
	m, err := certificate.NewManager(&certificate.Config{
		Name:                    "client certificate",
		Template:                c.request(),
		SignerName:              certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages:               certificate.DefaultKubeletClientGetUsages,
		CertificateStore:        store,
		BootstrapCertificatePEM: config.CertData, BootstrapKeyPEM: config.KeyData,
		ClientsetFn:             func(current *tls.Certificate) (kubernetes.Interface, error) { return c.asking(current, asked) },
		Ctx:                     &ctx,
		CertificateRenewFailure: ClientFailures,
	})
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	for _, of := range []*rest.Config{config, asked} {
		of.CertData, of.KeyData = nil, nil
		of.CertFile, of.KeyFile = store.CurrentPath(), store.CurrentPath()
	}
	m.Start()
	return nil
}
