package proxy

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"knarr/addons/gateway/backend"
	"knarr/addons/gateway/route"
)

const (
	maxAuthAnswer = 64 << 10
	authTimeout   = 10 * time.Second
	maxVerified   = 1024 // passwords that are remembered to be right
	maxHashing    = 2    // passwords that are hashed at once, by all routes together
)

// An authenticator does a route.Auth.
type authenticator struct {
	*route.Auth
	upstream *Upstream
	proxy    *Proxy

	mu       sync.Mutex
	verified map[[32]byte]bool
	hashing  chan struct{} // held while a password is hashed: one at once for a route
}

func newAuthenticator(a *route.Auth, p *Proxy) *authenticator {
	made := &authenticator{Auth: a, proxy: p, verified: map[[32]byte]bool{}, hashing: make(chan struct{}, 1)}
	if a.Backend != "" {
		made.upstream = p.upstreams[a.Backend]
	}
	return made
}

// authenticated reports whether the client may go on; otherwise it was answered.
func (x *exchange) authenticated(a *authenticator) bool {
	if a.ClientCAs != nil {
		if status := x.certified(a); status != 0 {
			x.answer(status)
			return false
		}
	}
	x.passCertificate(a)
	if len(a.Users) > 0 || a.Realm != "" {
		user, password, ok := x.r.BasicAuth()
		if !ok || !a.knows(x.r.Context(), user, password) {
			x.w.Header().Set("WWW-Authenticate", fmt.Sprintf("Basic realm=%q, charset=\"UTF-8\"", a.Realm))
			x.answer(http.StatusUnauthorized)
			return false
		}
	}
	if a.URL != "" {
		return x.authorized(a)
	}
	return true
}

// knows checks a password. Right ones are remembered by a hash, because the good forms
// take the processor a tenth of a second.
func (a *authenticator) knows(ctx context.Context, user, password string) bool {
	hash, ok := a.Users[user]
	if !ok || len(password) > 1024 {
		return false
	}
	key := sha256.Sum256([]byte(user + "\x00" + hash + "\x00" + password))
	a.mu.Lock()
	known := a.verified[key]
	a.mu.Unlock()
	if known {
		return true
	}
	for _, turn := range []chan struct{}{a.hashing, a.proxy.hashing} {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return false
		}
	}
	if !checkPassword(hash, password) {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.verified) >= maxVerified {
		clear(a.verified)
	}
	a.verified[key] = true
	return true
}

// certified checks that the client's certificate is of the wanted authorities; else it
// says how to answer.
func (x *exchange) certified(a *authenticator) (status int) {
	state := x.r.TLS
	switch {
	case state != nil && len(state.PeerCertificates) > 0:
	case a.ClientOptional && state != nil:
		return 0
	case state != nil && !strings.EqualFold(state.ServerName, x.request.Host):
		return http.StatusMisdirectedRequest // a connection to the right name is asked for one
	default:
		return http.StatusForbidden
	}
	options := x509.VerifyOptions{Roots: a.ClientCAs, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(c)
	}
	if _, err := state.PeerCertificates[0].Verify(options); err != nil {
		return http.StatusForbidden
	}
	return 0
}

// passCertificate tells the backend of the client's certificate in ingress-nginx' headers,
// which no client may send.
func (x *exchange) passCertificate(a *authenticator) {
	h := x.r.Header
	for _, name := range []string{"Ssl-Client-Cert", "Ssl-Client-Verify", "Ssl-Client-Subject-Dn", "Ssl-Client-Issuer-Dn"} {
		delete(h, name)
	}
	if !a.PassCertificate || x.r.TLS == nil {
		return
	}
	if len(x.r.TLS.PeerCertificates) == 0 {
		h["Ssl-Client-Verify"] = []string{"NONE"}
		return
	}
	leaf := x.r.TLS.PeerCertificates[0]
	h["Ssl-Client-Verify"] = []string{"SUCCESS"}
	h["Ssl-Client-Subject-Dn"] = []string{leaf.Subject.String()}
	h["Ssl-Client-Issuer-Dn"] = []string{leaf.Issuer.String()}
	h["Ssl-Client-Cert"] = []string{url.QueryEscape(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})))}
}

// authorized asks another server whether the request may pass.
func (x *exchange) authorized(a *authenticator) bool {
	target, err := url.Parse(x.expanded(a.URL))
	if err != nil || target.Scheme != "http" && target.Scheme != "https" || target.Host == "" {
		x.answer(http.StatusInternalServerError)
		return false
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), authTimeout)
	defer cancel()
	method := a.Method
	if method == "" {
		method = http.MethodGet
	}
	ask := (&http.Request{Method: method, URL: target, Host: target.Host, Header: x.r.Header.Clone(), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}).WithContext(ctx)
	dropHopByHop(ask.Header)
	for _, name := range []string{"Content-Length", "Expect"} {
		delete(ask.Header, name)
	}
	original := x.scheme + "://" + x.forwardedHost + x.request.Path
	if x.request.RawQuery != "" {
		original += "?" + x.request.RawQuery
	}
	for name, value := range map[string]string{"X-Original-Url": original, "X-Original-Method": x.r.Method, "X-Auth-Request-Redirect": x.request.Path,
		"X-Forwarded-Method": x.r.Method, "X-Forwarded-Uri": strings.TrimPrefix(original, x.scheme+"://"+x.forwardedHost), "X-Sent-From": "knarr"} {
		ask.Header[name] = []string{value}
	}
	answer, err := a.ask(ask)
	if err != nil {
		if x.r.Context().Err() != nil {
			x.failed(err)
		} else {
			x.answer(http.StatusInternalServerError)
		}
		return false
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 200 && answer.StatusCode < 300 {
		for _, name := range a.ResponseHeaders {
			name = http.CanonicalHeaderKey(name)
			if values, ok := answer.Header[name]; ok {
				x.r.Header[name] = values
			} else {
				delete(x.r.Header, name) // a client does not speak for the server that was asked
			}
		}
		return true
	}
	x.refused(a, answer, original)
	return false
}

// expanded puts what the client asked in place of ingress-nginx' variables.
func (x *exchange) expanded(template string) string {
	if !strings.Contains(template, "$") {
		return template
	}
	uri := x.request.Path
	if x.request.RawQuery != "" {
		uri += "?" + x.request.RawQuery
	}
	return strings.NewReplacer("$scheme", x.scheme, "$host", x.request.Host, "$request_uri", uri,
		"$escaped_request_uri", url.QueryEscape(uri)).Replace(template)
}

func (a *authenticator) ask(r *http.Request) (*http.Response, error) {
	if a.Backend == "" {
		return a.proxy.auth.RoundTrip(r)
	}
	if a.upstream == nil {
		return nil, errors.New("the backend that is to be asked does not exist")
	}
	e := a.upstream.Set.Pick(backend.Wish{})
	if e == nil {
		return nil, errors.New("the backend that is to be asked has no endpoint")
	}
	defer e.Done()
	r.RequestURI = r.URL.RequestURI()
	return e.Transport.(*transport).RoundTrip(r)
}

// refused passes a refusal on: to the page where one signs in, if there is one.
func (x *exchange) refused(a *authenticator, answer *http.Response, original string) {
	h := x.w.Header()
	switch {
	case answer.StatusCode == http.StatusUnauthorized && a.SignIn != "":
		at := x.expanded(a.SignIn)
		if u, err := url.Parse(at); err == nil && !u.Query().Has("rd") {
			separator := "?"
			if u.RawQuery != "" {
				separator = "&"
			}
			at += separator + "rd=" + url.QueryEscape(original)
		}
		h["Location"] = []string{at}
		x.answer(http.StatusFound)
	case answer.StatusCode == http.StatusUnauthorized, answer.StatusCode == http.StatusForbidden,
		answer.StatusCode >= 300 && answer.StatusCode < 400 && answer.Header["Location"] != nil:
		dropHopByHop(answer.Header)
		for _, name := range []string{"Www-Authenticate", "Location", "Set-Cookie", "Content-Type"} {
			if values, ok := answer.Header[name]; ok {
				h[name] = values
			}
		}
		x.record.Status = answer.StatusCode
		x.w.WriteHeader(answer.StatusCode)
		if x.r.Method != http.MethodHead {
			n, _ := io.Copy(x.w, io.LimitReader(answer.Body, maxAuthAnswer))
			x.record.Sent = n
		}
	default:
		x.answer(http.StatusInternalServerError)
	}
}

// newAuthTransport reaches the servers of URLs that tenants name, where may lets it.
func newAuthTransport(may func(netip.AddrPort) error) http.RoundTripper {
	dialer := &net.Dialer{Timeout: connectTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return may(at)
	}}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    connectTimeout,
		ResponseHeaderTimeout:  authTimeout,
		MaxIdleConnsPerHost:    32,
		MaxIdleConns:           256,
		IdleConnTimeout:        idleTimeout,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxAuthAnswer,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
	}
}
