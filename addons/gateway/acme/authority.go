package acme

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/acme"
)

// An Account keeps the key of the account at the authority.
type Account interface {
	// Load is the key as PEM, nil if there is none yet.
	Load(ctx context.Context) ([]byte, error)
	Store(ctx context.Context, key []byte) error
}

// Open is the authority that a Config names. Nothing is asked yet.
func Open(c Config, account Account) Authority {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: c.Roots, MinVersion: tls.VersionTLS12}
	transport.MaxIdleConnsPerHost, transport.IdleConnTimeout = 1, 10*time.Second
	return &authority{config: c, account: account, http: &http.Client{Transport: transport, Timeout: 30 * time.Second}}
}

type authority struct {
	config  Config
	account Account
	http    *http.Client

	mu     sync.Mutex
	client *acme.Client // nil until there is an account
}

// Thumbprint is of Authority.
func (a *authority) Thumbprint(ctx context.Context) (string, error) {
	client, err := a.registered(ctx)
	if err != nil {
		return "", err
	}
	return acme.JWKThumbprint(client.Key.Public())
}

// registered is a client with an account.
func (a *authority) registered(ctx context.Context) (*acme.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != nil {
		return a.client, nil
	}
	key, err := a.key(ctx)
	if err != nil {
		return nil, err
	}
	client := &acme.Client{Key: key, HTTPClient: a.http, DirectoryURL: a.config.Directory, UserAgent: "knarr", RetryBackoff: backoff}
	if client.DirectoryURL == "" {
		client.DirectoryURL = LetsEncrypt
	}
	of := &acme.Account{}
	if a.config.Email != "" {
		of.Contact = []string{"mailto:" + a.config.Email}
	}
	if _, err := client.Register(ctx, of, acme.AcceptTOS); err != nil && !errors.Is(err, acme.ErrAccountAlreadyExists) {
		return nil, fmt.Errorf("register at %s: %w", client.DirectoryURL, err)
	}
	a.client = client
	return client, nil
}

// backoff tries a request three times more.
func backoff(n int, _ *http.Request, _ *http.Response) time.Duration {
	const most = 3
	if n > most {
		return -1
	}
	return time.Duration(n) * time.Second
}

// key is the account's, made if there is none.
func (a *authority) key(ctx context.Context) (crypto.Signer, error) {
	text, err := a.account.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the account's key: %w", err)
	}
	if text != nil {
		block, _ := pem.Decode(text)
		if block == nil {
			return nil, errors.New("the Secret of the account holds no key")
		}
		key, err := x509.ParseECPrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read the account's key: %w", err)
		}
		return key, nil
	}
	key, text, err := newKey()
	if err != nil {
		return nil, err
	}
	if err := a.account.Store(ctx, text); err != nil {
		return nil, fmt.Errorf("keep the account's key: %w", err)
	}
	return key, nil
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// Issue is of Authority.
func (a *authority) Issue(ctx context.Context, hosts []string) (chain, key []byte, err error) {
	client, err := a.registered(ctx)
	if err != nil {
		return nil, nil, err
	}
	order, err := client.AuthorizeOrder(ctx, acme.DomainIDs(hosts...))
	if err != nil {
		return nil, nil, fmt.Errorf("order: %w", err)
	}
	for _, url := range order.AuthzURLs {
		if err := authorize(ctx, client, url); err != nil {
			return nil, nil, err
		}
	}
	ready, err := client.WaitOrder(ctx, order.URI)
	if err != nil {
		return nil, nil, fmt.Errorf("order: %w", err)
	}
	private, key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: hosts}, private)
	if err != nil {
		return nil, nil, err
	}
	issued, _, err := client.CreateOrderCert(ctx, ready.FinalizeURL, request, true)
	if err != nil {
		// Some authorities take their time, and do not say again where the order is.
		if done, waitErr := client.WaitOrder(ctx, order.URI); waitErr == nil && done.Status == acme.StatusValid {
			issued, err = client.FetchCert(ctx, done.CertURL, true)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("finalize the order: %w", err)
	}
	for _, der := range issued {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return chain, key, check(chain, key, hosts)
}

// authorize has the authority validate one host.
func authorize(ctx context.Context, client *acme.Client, url string) error {
	auth, err := client.GetAuthorization(ctx, url)
	if err != nil {
		return fmt.Errorf("authorization: %w", err)
	}
	if auth.Status == acme.StatusValid {
		return nil
	}
	for _, challenge := range auth.Challenges {
		if challenge.Type != "http-01" {
			continue
		}
		if _, err := client.Accept(ctx, challenge); err != nil {
			return fmt.Errorf("challenge for %s: %w", auth.Identifier.Value, err)
		}
		if _, err := client.WaitAuthorization(ctx, auth.URI); err != nil {
			return fmt.Errorf("host %s: %w", auth.Identifier.Value, err)
		}
		return nil
	}
	return fmt.Errorf("host %s: the authority does not offer to validate it by HTTP", auth.Identifier.Value)
}

// check makes sure that what was issued can be served.
func check(chain, key []byte, hosts []string) error {
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return fmt.Errorf("the authority's certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return fmt.Errorf("the authority's certificate: %w", err)
	}
	for _, host := range hosts {
		if err := leaf.VerifyHostname(host); err != nil {
			return fmt.Errorf("the authority's certificate: %w", err)
		}
	}
	return nil
}

// reason is what the authority says is wrong, in its words.
func reason(err error) string {
	if auth, ok := errors.AsType[*acme.AuthorizationError](err); ok {
		var all []string
		for _, each := range auth.Errors {
			if of, ok := errors.AsType[*acme.Error](each); ok && of.Detail != "" {
				each = errors.New(of.Detail)
			}
			all = append(all, each.Error())
		}
		return fmt.Sprintf("the authority could not validate %s: %s", auth.Identifier, strings.Join(all, "; "))
	}
	if of, ok := errors.AsType[*acme.Error](err); ok && of.Detail != "" {
		return fmt.Sprintf("the authority says: %s", of.Detail)
	}
	return err.Error()
}
