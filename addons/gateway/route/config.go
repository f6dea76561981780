// Package route holds what the gateway's data plane serves: listeners, routes and
// backends, in a form that Ingresses and the Gateway API's routes both become, and the
// immutable table that a request is matched against. It reads and writes nothing.
package route

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"regexp"
	"time"
)

// A Config is everything that one node serves. It is not changed once it was handed
// over, and replaces the one before as a whole.
type Config struct {
	Listeners []Listener
	// Backends are those that the routes name, by their name. Where they are is told
	// apart from the Config, because endpoints change more often than routes. If none has
	// changed, it is the very map of the Config before.
	Backends map[string]Backend
	// Nodes are the addresses of the cluster's nodes. URLs that tenants name lead there only
	// to ports that Listeners have.
	Nodes []netip.Addr
}

// A Protocol is what a Listener speaks.
type Protocol string

// The protocols, named as in the Gateway API.
const (
	HTTP  Protocol = "HTTP"
	HTTPS Protocol = "HTTPS"
	TLS   Protocol = "TLS"
	TCP   Protocol = "TCP"
	UDP   Protocol = "UDP"
)

// A Listener is a port and what is served there. Listeners may share a port if their
// protocols allow it (HTTP with HTTP; HTTPS with HTTPS and TLS) and their host names
// differ; the one with the most specific host name serves a request.
type Listener struct {
	// Name is unique: "ingress/http", "gateway NAMESPACE/NAME/SECTION".
	Name string
	// Addresses are those of this machine that it listens at; none means all.
	Addresses []netip.Addr
	// Port is the one that is listened at, PublicPort the one that clients ask, which
	// redirects name. They differ where a Service leads here.
	Port, PublicPort uint16
	Protocol         Protocol
	// Hostname is exact, begins with "*." for any number of labels, or is empty for any.
	Hostname string
	// Own are names, exact or with a leading "*.", that are this one's although the host name
	// of another listener covers them. TLS and HTTPS.
	Own []string
	// Certificates are chosen by the server name of the client; the first one serves
	// clients that send another name or none. HTTPS, and TLS that ends here.
	Certificates []*tls.Certificate
	// Names are the certificates of certain server names, exact ones or with a leading
	// "*." for one label. They go before Certificates, whatever names these bear.
	Names map[string]*tls.Certificate
	// Passthrough leads TLS connections on by their server name, without ending them.
	Passthrough bool
	// ClientCAs, if set, asks clients for certificates of these authorities. A client
	// without one is refused unless ClientOptional.
	ClientCAs      *x509.CertPool
	ClientOptional bool
	// ClientUnverified asks for certificates and lets in whoever shows any, or none.
	ClientUnverified bool
	// MinVersion is tls.VersionTLS12 or above; 0 means TLS 1.2.
	MinVersion uint16
	// ProxyProtocol expects each connection from TrustedProxies to begin with a PROXY header
	// of version 1 or 2.
	ProxyProtocol bool
	// TrustedProxies may say in X-Forwarded-For, or by the PROXY protocol, whom they speak for.
	TrustedProxies []netip.Prefix
	// HTTP3Port, if set, is the port of UDP where HTTP/3 is served as well, which clients ask
	// at PublicPort. HTTP3Hosts are the names that are served so; a wildcard is for one
	// label, and none of them means all names.
	HTTP3Port  uint16
	HTTP3Hosts []string
	// Challenge, if set, is the thumbprint of the account whose challenges of ACME are
	// answered for ChallengeHosts, before anything else.
	Challenge      string
	ChallengeHosts []string
	// Routes are for HTTP and HTTPS, Streams for TLS, TCP and UDP. A route that has not changed
	// is the very one of the Config before.
	Routes  []*Route
	Streams []Stream
}

// A Route is one Ingress or one HTTPRoute or GRPCRoute, attached to a Listener.
type Route struct {
	// Name is "Ingress NAMESPACE/NAME", "HTTPRoute NAMESPACE/NAME" and so on: it is the
	// label of metrics and the field of logs.
	Name string
	// Created and Name decide between equal matches: the older one, then by name.
	Created time.Time
	// Hosts are those of this route: exact or with a leading "*." label; none means all
	// those of the listener. In an Ingress a wildcard covers one label: SingleLabel.
	Hosts       []string
	SingleLabel bool
	Rules       []Rule
}

// A Rule is what is done with the requests that any of its matches covers.
type Rule struct {
	// Name is the rule's place or name, for metrics.
	Name    string
	Matches []Match // none: all requests
	Filters Filters
	// Backends share the requests by their weights. With none, or all of weight 0, the
	// answer is Status, or 500.
	Backends []Share
	// Status, if set, is answered without asking a backend.
	Status int
	// Timeout bounds a request as a whole, BackendTimeout one attempt; 0 means none.
	Timeout, BackendTimeout time.Duration
	Retry                   Retry
	Session                 *Session
	// BodyLimit refuses longer request bodies with 413; 0 means no limit.
	BodyLimit int64
	// Buffer reads a request whole before a backend is asked.
	Buffer bool
	// NoAccessLog leaves its requests out of the access log.
	NoAccessLog bool
}

// A Share is a backend and its part of the requests.
type Share struct {
	Backend string // a key of Config.Backends
	Weight  int
	// Invalid backends take their part of the requests and answer them with 500.
	Invalid bool
	// Filters are done for this backend alone.
	Filters Filters
}

// A PathType says how a Match compares paths.
type PathType string

// The path types. Prefix compares elements, as both APIs define it; Regular expressions
// are anchored at their begin, and without regard to case if the pattern says so.
const (
	PathPrefix PathType = "Prefix"
	PathExact  PathType = "Exact"
	PathRegexp PathType = "Regexp"
)

// A Match covers a request if all that it says holds.
type Match struct {
	PathType PathType // empty: Prefix
	Path     string   // empty: "/"
	Pattern  *regexp.Regexp
	Method   string
	Headers  []Value
	Query    []Value
	Cookies  []Value
	// Sources, if there are any, are the addresses that a client may have.
	Sources []netip.Prefix
	// GRPC marks a match of a GRPCRoute.
	GRPC bool
}

// A Value is a header, parameter or cookie that a request must have: with Exact as its
// value, or one that Pattern matches as a whole; with Present any.
type Value struct {
	Name    string
	Exact   string
	Pattern *regexp.Regexp
	Present bool
}

// Filters are done in the order of the fields.
type Filters struct {
	Access          *Access
	Auth            *Auth
	CORS            *CORS
	Limit           *Limit
	RequestHeaders  *Headers
	ResponseHeaders *Headers
	Redirect        *Redirect
	Rewrite         *Rewrite
	Mirrors         []Mirror
	// ErrorPages are asked, instead of passing a backend's answer of one of these codes on.
	ErrorPages *ErrorPages
}

// Headers are changes of headers: Set, then Add, then Remove.
type Headers struct {
	Set, Add []Header
	Remove   []string
}

// A Header is a name and a value.
type Header struct{ Name, Value string }

// A Redirect answers with another place.
type Redirect struct {
	Scheme, Hostname string // empty: the request's
	Port             uint16 // 0: as the Gateway API says: by Scheme, else the listener's public one
	Path             *PathChange
	Code             int // 0: 302
	// Location, if set, is the whole answer.
	Location string
	// OnlyPlain redirects no request that came by TLS, and all others before any other
	// filter, so that no password is asked for in plain text.
	OnlyPlain bool
}

// A Rewrite changes what the backend is asked.
type Rewrite struct {
	Hostname string
	Path     *PathChange
}

// A PathChange gives a request another path: Full as a whole, or Prefix in place of the
// prefix that matched, or Template with the groups $1 to $9 of the match's pattern.
type PathChange struct {
	Full, Prefix *string
	Template     string
}

// A Mirror sends copies of requests to a backend whose answers nobody reads: all, or
// Numerator of each Denominator.
type Mirror struct {
	Backend                string
	Numerator, Denominator int
}

// CORS answers preflight requests and adds the headers of others.
type CORS struct {
	Origins          []string // exact, "*", or with one "*" in it
	Methods, Headers []string
	Expose           []string
	Credentials      bool
	MaxAge           time.Duration
}

// Access lets only some client addresses in.
type Access struct{ Allow, Deny []netip.Prefix }

// A Limit bounds one client's requests: Rate a second with Burst at once, and
// Connections at the same time; 0 means none. Who is over gets 503, or Code.
type Limit struct {
	Rate        float64
	Burst       int
	Connections int
	Code        int
	// Exempt are addresses that are not bounded.
	Exempt []netip.Prefix
}

// Auth asks who a client is: a list of users and their hashed passwords, or another
// server.
type Auth struct {
	// Realm and Users (name to hash, in the forms of htpasswd) are HTTP's basic authentication.
	Realm string
	Users map[string]string
	// URL is asked with the request's headers; 2xx lets the request pass, and
	// ResponseHeaders of that answer go along to the backend. 401 leads to SignIn if set. In
	// URL and SignIn, $scheme, $host, $request_uri and $escaped_request_uri are the request's.
	URL, SignIn, Method string
	ResponseHeaders     []string
	// Backend, if set, is asked instead of URL's host.
	Backend string
	// ClientCAs asks for a client's certificate where the listener does not: 403 without
	// one of theirs, also by a connection to another server name. With ClientOptional a
	// client may have none, but not another's.
	ClientCAs      *x509.CertPool
	ClientOptional bool
	// PassCertificate tells the backend of it in headers.
	PassCertificate bool
}

// ErrorPages are a backend and the codes whose answers it gives instead.
type ErrorPages struct {
	Backend string
	Codes   []int
	// Unavailable asks it also when the rule's backend has no endpoint.
	Unavailable bool
	// Headers are sent along, beside X-Code, X-Format and X-Original-URI.
	Headers []Header
}

// Retry is for requests that may be repeated and of which no answer was begun.
type Retry struct {
	Attempts int   // further ones; 0 means none but for connections that were not made
	Codes    []int // of answers that lead to another attempt
	Backoff  time.Duration
}

// A Session keeps a client at the endpoint that it was led to first, by a cookie or by
// a header.
type Session struct {
	Cookie, Header string
	Path, Domain   string
	MaxAge         time.Duration // 0: as long as the browser runs
	Secure         bool
	SameSite       string
}

// A BackendProtocol is what a backend speaks.
type BackendProtocol string

// The protocols of backends.
const (
	BackendHTTP  BackendProtocol = "HTTP"
	BackendH2C   BackendProtocol = "H2C"
	BackendHTTPS BackendProtocol = "HTTPS" // HTTP/2 if it is offered
)

// A Backend is a port of a Service.
type Backend struct {
	Protocol BackendProtocol
	// ServerName, CAs and Names are how its certificate is checked, if it speaks TLS:
	// without CAs and unless SystemCAs, it is not (as ingress-nginx does). Certificate is
	// shown to it.
	ServerName  string
	CAs         *x509.CertPool
	SystemCAs   bool
	Names       []string
	Certificate *tls.Certificate
	// ConnectTimeout, ReadTimeout and WriteTimeout bound the steps of a connection; 0
	// means the data plane's defaults.
	ConnectTimeout, ReadTimeout, WriteTimeout time.Duration
	// HashBy spreads by a property of requests instead of by load: "$remote_addr",
	// "$request_uri", "$host", "$http_NAME", "$cookie_NAME", "$arg_NAME".
	HashBy string
	// ProxyProtocol begins each connection with a PROXY header of this version, 1 or 2.
	ProxyProtocol int
}

// A Stream leads connections, or datagrams of one client, to a backend.
type Stream struct {
	Name    string
	Created time.Time
	// Hosts are server names, for TLS: as in a Route; none means all of the listener.
	Hosts    []string
	Backends []Share
}

// An Endpoint is one address of a backend.
type Endpoint struct {
	Address netip.AddrPort
	// Zone is where it is, Hinted says that EndpointSlices mean it for this node or its zone:
	// such endpoints are asked as long as they answer.
	Zone   string
	Hinted bool
	// Terminating endpoints serve only while there is no other.
	Terminating bool
}
