package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	reviewv1 "k8s.io/api/admission/v1"
	reviewv1beta1 "k8s.io/api/admission/v1beta1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	wire "k8s.io/client-go/transport"

	"knarr/controlplane/apiserver/backend"
	"knarr/controlplane/apiserver/watchcache"
)

// A Dialer opens connections.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// maxAnswer bounds what a webhook may answer: more than any object is large.
const maxAnswer = 8 << 20

// reviews is the codec of AdmissionReview.
var reviews = sync.OnceValue(func() runtime.NegotiatedSerializer {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{reviewv1.AddToScheme, reviewv1beta1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // two fixed lists of types
		}
	}
	return serializer.NegotiatedSerializerWrapper(runtime.SerializerInfo{
		Serializer: serializer.NewCodecFactory(s).LegacyCodec(reviewv1beta1.SchemeGroupVersion, reviewv1.SchemeGroupVersion),
	})
})

// clients are the connections to webhooks, shared by those that are reached
// the same way.
type clients struct {
	cache       *watchcache.Cache
	dial        Dialer
	credentials *Credentials
	mu          sync.Mutex
	by          map[string]*client
}

func newClients(c Config) *clients {
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	return &clients{cache: c.Cache, dial: c.Dial, credentials: c.Credentials, by: map[string]*client{}}
}

// A client reaches one webhook.
type client struct {
	key       string
	rest      *rest.RESTClient
	transport *http.Transport
	err       error
}

// of is the client for a configuration; err in it says what is wrong with that.
func (c *clients) of(name string, cfg *admissionv1.WebhookClientConfig) *client {
	to, err := targetOf(name, cfg)
	if err != nil {
		return &client{err: err}
	}
	key := to.base + "\n" + to.path + "\n" + string(cfg.CABundle)
	c.mu.Lock()
	defer c.mu.Unlock()
	if have := c.by[key]; have != nil {
		return have
	}
	made := c.connect(to, cfg.CABundle)
	made.key = key
	c.by[key] = made
	return made
}

// keep drops the clients that nobody uses any longer.
func (c *clients) keep(used map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, have := range c.by {
		if !used[key] {
			delete(c.by, key)
			have.close()
		}
	}
}

func (c *clients) close() { c.keep(nil) }

func (c *client) close() {
	if c.transport != nil {
		c.transport.CloseIdleConnections()
	}
}

// A target is where a webhook is.
type target struct {
	base, path, host string
	service          *admissionv1.ServiceReference
}

func targetOf(name string, cfg *admissionv1.WebhookClientConfig) (target, error) {
	if s := cfg.Service; s != nil {
		host := net.JoinHostPort(s.Name+"."+s.Namespace+".svc", strconv.Itoa(int(portOf(s))))
		t := target{base: "https://" + host, host: host, service: s}
		if s.Path != nil {
			t.path = *s.Path
		}
		return t, nil
	}
	if cfg.URL == nil || *cfg.URL == "" {
		return target{}, &callError{name: name, reason: errors.New("webhook configuration must have either service or URL")}
	}
	u, err := url.Parse(*cfg.URL)
	if err != nil {
		return target{}, &callError{name: name, reason: fmt.Errorf("Unparsable URL: %w", err)}
	}
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(host, "443")
	}
	return target{base: u.Scheme + "://" + u.Host, path: u.Path, host: host}, nil
}

func portOf(s *admissionv1.ServiceReference) int32 {
	if s.Port == nil || *s.Port == 0 {
		return 443
	}
	return *s.Port
}

func (c *clients) connect(to target, ca []byte) *client {
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if len(ca) > 0 {
		tlsConfig.RootCAs = x509.NewCertPool()
		if !tlsConfig.RootCAs.AppendCertsFromPEM(ca) {
			return &client{err: fmt.Errorf("unable to load root certificates: unable to parse bytes as PEM block")}
		}
	}
	// One connection would be one server behind a Service, so HTTP/1.1.
	transport := &http.Transport{
		TLSClientConfig: tlsConfig, TLSHandshakeTimeout: 10 * time.Second, DialContext: c.dial,
		MaxIdleConnsPerHost: 25, IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: 1 << 20,
	}
	if s := to.service; s != nil {
		tlsConfig.ServerName = s.Name + "." + s.Namespace + ".svc"
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			address, err := backend.Find(c.cache, s.Namespace, s.Name, portOf(s))
			if err != nil {
				return nil, err
			}
			return c.dial(ctx, network, address)
		}
	} else {
		transport.Proxy = http.ProxyFromEnvironment
	}
	shown, err := show(c.credentials.of(to.host)).TransportConfig()
	if err != nil {
		return &client{err: err}
	}
	if own, err := wire.TLSConfigFor(shown); err != nil {
		return &client{err: err}
	} else if own != nil {
		tlsConfig.Certificates, tlsConfig.GetClientCertificate = own.Certificates, own.GetClientCertificate
	}
	authenticated, err := wire.HTTPWrappersForConfig(shown, bounded{transport})
	if err != nil {
		return &client{err: err}
	}
	httpClient := &http.Client{
		Transport: authenticated,
		// A webhook may not send the server elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	r, err := rest.UnversionedRESTClientForConfigAndClient(&rest.Config{
		Host: to.base, APIPath: to.path, UserAgent: "kube-apiserver-admission", QPS: -1,
		ContentConfig: rest.ContentConfig{NegotiatedSerializer: reviews(), ContentType: runtime.ContentTypeJSON},
	}, httpClient)
	return &client{rest: r, transport: transport, err: err}
}

// bounded reads no more of an answer than maxAnswer.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = &boundedBody{resp.Body, maxAnswer}
	}
	return resp, err
}

type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the answer is larger than %d bytes", maxAnswer)
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
