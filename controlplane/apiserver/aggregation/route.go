package aggregation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/transport"

	"knarr/controlplane/apiserver/backend"
	"knarr/controlplane/apiserver/request"
	"knarr/internal/keypair"
)

// A target is how a server is reached.
type target struct {
	namespace, name string
	port            int32
	insecure        bool
	ca              string
}

func (t target) service() string    { return t.namespace + "/" + t.name }
func (t target) serverName() string { return t.name + "." + t.namespace + ".svc" }
func (t target) host() string {
	return net.JoinHostPort(t.serverName(), strconv.Itoa(int(t.port)))
}

// A route leads a group version's requests to its server.
type route struct {
	target
	available bool
	transport *keypair.Transport
}

// transport speaks to one server behind the Service, as the front proxy.
func (a *Aggregator) transport(to target) *keypair.Transport {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: to.serverName(), NextProtos: []string{"http/1.1"}, InsecureSkipVerify: to.insecure}
	if to.ca != "" {
		cfg.RootCAs = x509.NewCertPool()
		cfg.RootCAs.AppendCertsFromPEM([]byte(to.ca))
	}
	if a.cfg.Identity != nil {
		cfg.GetClientCertificate = a.cfg.Identity.Client
	}
	return keypair.NewTransport(&http.Transport{
		DialTLSContext:  a.cfg.Inside[to.service()],
		TLSClientConfig: cfg, TLSHandshakeTimeout: 10 * time.Second, MaxIdleConnsPerHost: 25, IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: 1 << 20,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			address, err := backend.Find(a.cfg.Cache, to.namespace, to.name, to.port)
			if err != nil {
				return nil, err
			}
			return a.cfg.Dial(ctx, network, address)
		},
	}, a.cfg.Identity)
}

// serve passes one request on. The server is somebody else's: it gets the
// user's name and none of his credentials, and may send nobody elsewhere. A
// connection becomes a tunnel only once the server has agreed to that.
func (r *route) serve(w http.ResponseWriter, req *http.Request) {
	if !r.available {
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	who := request.UserFrom(req.Context())
	if who == nil {
		http.Error(w, "missing user", http.StatusInternalServerError)
		return
	}
	delete(w.Header(), "Cache-Control") // it is the server's to say
	proxy := &httputil.ReverseProxy{
		Transport: r.transport, FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "https", r.host(), r.host()
			p.SetXForwarded()
			p.Out.Header.Set("X-Forwarded-Uri", p.In.URL.Path)
			for key := range p.Out.Header {
				if key == "Authorization" || strings.HasPrefix(key, "Impersonate-") || strings.HasPrefix(key, "X-Remote-") {
					delete(p.Out.Header, key)
				}
			}
			transport.SetAuthProxyHeaders(p.Out, who.GetName(), who.GetUID(), who.GetGroups(), who.GetExtra())
		},
		ModifyResponse: func(resp *http.Response) error {
			if resp.StatusCode >= 300 && resp.StatusCode < 400 && resp.StatusCode != http.StatusNotModified {
				return errRedirect
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, req *http.Request, err error) {
			switch {
			case req.Context().Err() != nil: // the client has left
			case err == errRedirect:
				http.Error(w, err.Error(), http.StatusBadGateway)
			default:
				http.Error(w, fmt.Sprintf("error trying to reach service: %v", err), http.StatusServiceUnavailable)
			}
		},
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	request.AuditFrom(req.Context()).SetProxied()
	request.Started(req.Context()) // what goes on elsewhere takes no seat here
	proxy.ServeHTTP(w, req)
}

type constError string

func (e constError) Error() string { return string(e) }

const errRedirect = constError("the backend attempted to redirect this request, which is not permitted")
