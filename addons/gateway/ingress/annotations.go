package ingress

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"knarr/addons/gateway/route"
)

// A Kind says what becomes of an annotation.
type Kind int

// The kinds of annotations.
const (
	// Served annotations do what they did.
	Served Kind = iota
	// Tuning was about nginx's buffers and connections: there is nothing here to be set.
	Tuning
	// Unserved annotations do nothing here; the Ingress is served without them.
	Unserved
	// Refused annotations are never followed.
	Refused
)

// An Annotation is one of ingress-nginx.
type Annotation struct {
	Kind Kind
	// Guard says that it keeps clients out: what cannot be followed lets nobody in.
	Guard bool
	// Usual are values, separated by "|", that ask for what is done anyway.
	Usual string
	// Note says why it is not served, or how it differs.
	Note string
	read func(w *settings, value string) error
}

const (
	snippet   = "configuration of nginx is not read; say what it did by other annotations, or in the application"
	streaming = "requests and answers are passed on as they come"
	traces    = "no traces are written for an Ingress"
	lua       = "it was about Lua in nginx"
	global    = "limits are counted by each node"
	waf       = "there is no ModSecurity"
	cache     = "each request is asked for"
	keepalive = "connections to the authentication server are kept and reused anyway"
	ciphers   = "the ciphers are Go's choice, all of them with forward secrecy"
	answers   = "answers of the backend are passed on as they are"
)

// Annotations are all that ingress-nginx reads, and what becomes of each.
var Annotations = map[string]Annotation{
	// Paths, and where requests lead.
	"rewrite-target":          {read: func(w *settings, v string) error { return target(&w.rewrite, v) }},
	"use-regex":               {read: func(w *settings, v string) error { return boolean(&w.regexps, v) }, Note: "expressions are RE2's: look-around and back references are refused"},
	"app-root":                {read: func(w *settings, v string) error { return target(&w.appRoot, v) }},
	"server-alias":            {read: func(w *settings, v string) error { return aliases(w, v) }, Note: "aliases are names; expressions are refused"},
	"from-to-www-redirect":    {read: func(w *settings, v string) error { return boolean(&w.www, v) }},
	"ssl-redirect":            {read: func(w *settings, v string) error { return boolean(&w.sslRedirect, v) }},
	"force-ssl-redirect":      {read: func(w *settings, v string) error { return boolean(&w.forceSSL, v) }},
	"permanent-redirect":      {read: func(w *settings, v string) error { return location(&w.permanent, v) }},
	"permanent-redirect-code": {read: func(w *settings, v string) error { return number(&w.permanentCode, v, 300, 308) }},
	"temporal-redirect":       {read: func(w *settings, v string) error { return location(&w.temporal, v) }},
	"temporal-redirect-code":  {read: func(w *settings, v string) error { return number(&w.temporalCode, v, 300, 308) }},
	"ssl-passthrough":         {read: func(w *settings, v string) error { return boolean(&w.passthrough, v) }},

	// Who is let in.
	"whitelist-source-range": {Guard: true, read: func(w *settings, v string) error { return ranges(&w.access.Allow, v) }},
	"allowlist-source-range": {Guard: true, read: func(w *settings, v string) error { return ranges(&w.access.Allow, v) }},
	"denylist-source-range":  {Guard: true, read: func(w *settings, v string) error { return ranges(&w.access.Deny, v) }},
	"auth-type": {Guard: true, read: func(w *settings, v string) error {
		if v != "basic" {
			return fmt.Errorf("%q is not served; basic is", clipped(v))
		}
		return text(&w.auth.kind, v)
	}},
	"auth-secret":      {Guard: true, read: func(w *settings, v string) error { return text(&w.auth.secret, v) }},
	"auth-secret-type": {Guard: true, read: func(w *settings, v string) error { return oneOf(&w.auth.secretType, v, "auth-file", "auth-map") }},
	"auth-realm":       {read: func(w *settings, v string) error { return text(&w.auth.realm, v) }},
	"auth-url":         {Guard: true, read: func(w *settings, v string) error { return location(&w.auth.url, v) }, Note: "a Service of another namespace needs a ReferenceGrant there that allows it"},
	"auth-method": {Guard: true, read: func(w *settings, v string) error {
		return oneOf(&w.auth.method, v, "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE")
	}},
	"auth-signin":                           {read: func(w *settings, v string) error { return location(&w.auth.signIn, v) }},
	"auth-signin-redirect-param":            {read: func(w *settings, v string) error { return text(&w.auth.parameter, v) }},
	"auth-response-headers":                 {read: func(w *settings, v string) error { return names(&w.auth.responseHeaders, v) }},
	"auth-tls-secret":                       {Guard: true, read: func(w *settings, v string) error { return text(&w.clients.secret, v) }},
	"auth-tls-verify-client":                {Guard: true, read: func(w *settings, v string) error { return oneOf(&w.clients.verify, v, "on", "off", "optional") }, Note: "optional_no_ca is refused"},
	"auth-tls-pass-certificate-to-upstream": {read: func(w *settings, v string) error { return boolean(&w.clients.pass, v) }},
	"limit-rps":                             {Guard: true, read: func(w *settings, v string) error { return number(&w.limit.perSecond, v, 0, 1e6) }},
	"limit-rpm":                             {Guard: true, read: func(w *settings, v string) error { return number(&w.limit.perMinute, v, 0, 1e6) }},
	"limit-connections":                     {Guard: true, read: func(w *settings, v string) error { return number(&w.limit.connections, v, 0, 1e6) }},
	"limit-burst-multiplier":                {read: func(w *settings, v string) error { return number(&w.limit.multiplier, v, 1, 1e4) }},
	"limit-whitelist":                       {read: func(w *settings, v string) error { return ranges(&w.limit.exempt, v) }},
	"limit-allowlist":                       {read: func(w *settings, v string) error { return ranges(&w.limit.exempt, v) }},

	// What browsers of other sites may do.
	"enable-cors":            {read: func(w *settings, v string) error { return boolean(&w.cors.on, v) }},
	"cors-allow-origin":      {read: func(w *settings, v string) error { return origins(&w.cors.Origins, v) }},
	"cors-allow-methods":     {read: func(w *settings, v string) error { return names(&w.cors.Methods, v) }},
	"cors-allow-headers":     {read: func(w *settings, v string) error { return names(&w.cors.Headers, v) }},
	"cors-expose-headers":    {read: func(w *settings, v string) error { return names(&w.cors.Expose, v) }},
	"cors-allow-credentials": {read: func(w *settings, v string) error { return boolean(&w.cors.Credentials, v) }},
	"cors-max-age":           {read: func(w *settings, v string) error { return seconds(&w.cors.MaxAge, v) }},

	// Sessions.
	"affinity": {read: func(w *settings, v string) error {
		var kind string
		if err := oneOf(&kind, v, "cookie"); err != nil {
			return err
		}
		w.cookie()
		w.sticky = true
		return nil
	}},
	"affinity-mode":           {Usual: "persistent|balanced", Kind: Unserved, Note: "a client stays where it is for as long as that is there"},
	"session-cookie-name":     {read: func(w *settings, v string) error { return cookieName(&w.cookie().Cookie, v) }},
	"session-cookie-path":     {read: func(w *settings, v string) error { return attribute(&w.cookie().Path, v) }},
	"session-cookie-domain":   {read: func(w *settings, v string) error { return attribute(&w.cookie().Domain, v) }},
	"session-cookie-max-age":  {read: func(w *settings, v string) error { return seconds(&w.cookie().MaxAge, v) }},
	"session-cookie-expires":  {read: func(w *settings, v string) error { return seconds(&w.expires, v) }},
	"session-cookie-secure":   {read: func(w *settings, v string) error { return boolean(&w.cookie().Secure, v) }},
	"session-cookie-samesite": {read: func(w *settings, v string) error { return oneOf(&w.cookie().SameSite, v, "Strict", "Lax", "None") }},
	"session-cookie-hash":     {Kind: Tuning, Note: "what a session's cookie says has one form"},

	// Canaries.
	"canary":                   {read: func(w *settings, v string) error { return boolean(&w.canary.on, v) }},
	"canary-by-header":         {read: func(w *settings, v string) error { return header(&w.canary.header, v) }},
	"canary-by-header-value":   {read: func(w *settings, v string) error { return text(&w.canary.value, v) }},
	"canary-by-header-pattern": {read: func(w *settings, v string) error { return text(&w.canary.pattern, v) }, Note: "expressions are RE2's"},
	"canary-by-cookie":         {read: func(w *settings, v string) error { return cookieName(&w.canary.cookie, v) }},
	"canary-weight":            {read: func(w *settings, v string) error { return number(&w.canary.weight, v, 0, 1e6) }},
	"canary-weight-total":      {read: func(w *settings, v string) error { return number(&w.canary.total, v, 1, 1e6) }},

	// Requests on their way to the backend, and answers on their way back.
	"proxy-body-size":             {read: func(w *settings, v string) error { return size(&w.bodyLimit, v) }, Note: "without it there is no limit, where nginx had 1m"},
	"proxy-connect-timeout":       {read: func(w *settings, v string) error { return seconds(&w.backend.ConnectTimeout, v) }},
	"proxy-read-timeout":          {read: func(w *settings, v string) error { return seconds(&w.backend.ReadTimeout, v) }},
	"proxy-send-timeout":          {read: func(w *settings, v string) error { return seconds(&w.backend.WriteTimeout, v) }},
	"proxy-next-upstream":         {read: nextUpstream, Note: "only requests that may be repeated, and of which no answer was begun"},
	"proxy-next-upstream-tries":   {read: func(w *settings, v string) error { return number(&w.tries, v, 0, 100) }},
	"proxy-next-upstream-timeout": {Usual: "0", Kind: Unserved, Note: "tries are bounded by their number"},
	"proxy-request-buffering": {read: func(w *settings, v string) error {
		var s string
		err := oneOf(&s, v, "on", "off")
		w.buffer = s == "on"
		return err
	}},
	"custom-http-errors": {read: func(w *settings, v string) error { return codes(&w.errorCodes, v, 400) }},
	"default-backend":    {read: func(w *settings, v string) error { return text(&w.defaultBackend, v) }},
	"custom-headers":     {read: func(w *settings, v string) error { return text(&w.headers, v) }},
	"upstream-vhost":     {read: func(w *settings, v string) error { return location(&w.vhost, v) }, Note: "variables are refused"},
	"x-forwarded-prefix": {read: func(w *settings, v string) error { return text(&w.prefix, v) }},
	"mirror-target":      {read: func(w *settings, v string) error { return location(&w.mirror, v) }, Note: "only a Service of the cluster, of another namespace where a ReferenceGrant there allows it"},
	"enable-access-log": {read: func(w *settings, v string) error {
		on := true
		err := boolean(&on, v)
		w.noAccessLog = !on
		return err
	}},

	// Backends.
	"backend-protocol":      {Guard: true, read: protocol, Note: "FCGI and AUTO_HTTP are refused"},
	"service-upstream":      {read: func(w *settings, v string) error { return boolean(&w.clusterIP, v) }},
	"upstream-hash-by":      {read: hashBy, Note: "one variable: $remote_addr, $request_uri, $uri, $host, $http_NAME, $cookie_NAME or $arg_NAME"},
	"proxy-ssl-secret":      {Guard: true, read: func(w *settings, v string) error { return text(&w.proxySecret, v) }},
	"proxy-ssl-verify":      {Guard: true, read: func(w *settings, v string) error { return onOff(&w.verify, v) }},
	"proxy-ssl-name":        {read: func(w *settings, v string) error { return location(&w.backend.ServerName, v) }},
	"proxy-ssl-server-name": {read: func(w *settings, v string) error { return onOff(&w.nameGiven, v) }, Note: "a server name is sent in any case"},

	// What the application sees no difference of.
	"proxy-buffering":              {Kind: Tuning, Note: streaming, Usual: "off"},
	"proxy-buffers-number":         {Kind: Tuning, Note: streaming},
	"proxy-buffer-size":            {Kind: Tuning, Note: streaming},
	"proxy-busy-buffers-size":      {Kind: Tuning, Note: streaming},
	"proxy-max-temp-file-size":     {Kind: Tuning, Note: streaming},
	"client-body-buffer-size":      {Kind: Tuning, Note: streaming},
	"proxy-http-version":           {Kind: Tuning, Note: "the newest version that the backend speaks is used", Usual: "1.1"},
	"connection-proxy-header":      {Kind: Tuning, Note: "connections to backends are kept and reused anyway", Usual: "keep-alive"},
	"load-balance":                 {Kind: Tuning, Note: "the endpoint with the fewest requests under way is asked", Usual: "round_robin|ewma"},
	"http2-push-preload":           {Kind: Tuning, Note: "browsers do not take pushed answers any more", Usual: "false"},
	"enable-rewrite-log":           {Kind: Tuning, Note: "there is no log of rewrites", Usual: "false"},
	"auth-keepalive":               {Kind: Tuning, Note: keepalive},
	"auth-keepalive-requests":      {Kind: Tuning, Note: keepalive},
	"auth-keepalive-timeout":       {Kind: Tuning, Note: keepalive},
	"auth-keepalive-share-vars":    {Kind: Tuning, Note: keepalive},
	"enable-global-auth":           {Kind: Tuning, Note: "there is no authentication for all Ingresses"},
	"upstream-hash-by-subset":      {Kind: Tuning, Note: "all endpoints are used", Usual: "false"},
	"upstream-hash-by-subset-size": {Kind: Tuning, Note: "all endpoints are used"},
	"ssl-prefer-server-ciphers":    {Kind: Tuning, Note: ciphers},
	"lua-resty-waf":                {Kind: Tuning, Note: lua},
	"secure-verify-ca-secret":      {Kind: Refused, Guard: true, Note: "give proxy-ssl-secret and proxy-ssl-verify"},

	// What is not served.
	"satisfy":                                  {Kind: Unserved, Usual: "all", Note: "a client must pass everything that is asked for"},
	"affinity-canary-behavior":                 {Kind: Unserved, Usual: "legacy", Note: "a canary's share of clients is drawn for each request"},
	"session-cookie-change-on-failure":         {Kind: Unserved, Usual: "true", Note: "a client whose endpoint fails is led to another and stays there"},
	"session-cookie-conditional-samesite-none": {Kind: Unserved, Usual: "false", Note: "SameSite=None is sent to every browser"},
	"auth-tls-verify-depth":                    {Kind: Unserved, Note: "a chain of any length is taken if it ends at one of the authorities"},
	"auth-tls-error-page":                      {Kind: Unserved, Note: "clients without a certificate get 403"},
	"auth-tls-match-cn":                        {Kind: Refused, Guard: true, Note: "certificates are told apart by their authority only"},
	"auth-cache-key":                           {Kind: Unserved, Note: cache},
	"auth-cache-duration":                      {Kind: Unserved, Note: cache},
	"auth-always-set-cookie":                   {Kind: Unserved, Usual: "false", Note: "cookies of the authentication server are passed on with its refusals only"},
	"auth-proxy-set-headers":                   {Kind: Unserved, Note: "the authentication server gets the request's own headers"},
	"limit-rate":                               {Kind: Unserved, Usual: "0", Note: "answers are as fast as they can be"},
	"limit-rate-after":                         {Kind: Unserved, Usual: "0", Note: "answers are as fast as they can be"},
	"global-rate-limit":                        {Kind: Unserved, Note: global},
	"global-rate-limit-window":                 {Kind: Unserved, Note: global},
	"global-rate-limit-key":                    {Kind: Unserved, Note: global},
	"global-rate-limit-ignored-cidrs":          {Kind: Unserved, Note: global},
	"proxy-cookie-domain":                      {Kind: Unserved, Usual: "off", Note: answers},
	"proxy-cookie-path":                        {Kind: Unserved, Usual: "off", Note: answers},
	"proxy-redirect-from":                      {Kind: Unserved, Usual: "off", Note: answers},
	"proxy-redirect-to":                        {Kind: Unserved, Usual: "off", Note: answers},
	"disable-proxy-intercept-errors":           {Kind: Unserved, Usual: "false", Note: "leave custom-http-errors out where the backend's own answers are wanted"},
	"preserve-trailing-slash":                  {Kind: Unserved, Usual: "true", Note: "redirects keep the path as it is"},
	"ssl-ciphers":                              {Kind: Unserved, Note: ciphers},
	"proxy-ssl-ciphers":                        {Kind: Unserved, Note: ciphers},
	"proxy-ssl-protocols":                      {Kind: Unserved, Note: "TLS 1.2 and 1.3 are spoken to backends"},
	"proxy-ssl-verify-depth":                   {Kind: Unserved, Note: "a chain of any length is taken if it ends at one of the authorities"},
	"enable-modsecurity":                       {Kind: Unserved, Usual: "false", Note: waf},
	"enable-owasp-core-rules":                  {Kind: Unserved, Usual: "false", Note: waf},
	"modsecurity-transaction-id":               {Kind: Unserved, Note: waf},
	"enable-opentracing":                       {Kind: Unserved, Usual: "false", Note: traces},
	"opentracing-trust-incoming-span":          {Kind: Unserved, Note: traces},
	"enable-opentelemetry":                     {Kind: Unserved, Usual: "false", Note: traces},
	"opentelemetry-trust-incoming-span":        {Kind: Unserved, Note: traces},
	"opentelemetry-operation-name":             {Kind: Unserved, Note: traces},
	"mirror-request-body":                      {Kind: Unserved, Usual: "on", Note: "copies are whole"},
	"mirror-host":                              {Kind: Unserved, Note: "copies keep the request's host"},
	"relative-redirects":                       {Kind: Unserved, Usual: "false", Note: "redirects name scheme and host"},
	"use-port-in-redirects":                    {Kind: Unserved, Usual: "false", Note: "redirects name the port that is not the usual one"},

	// Snippets.
	"configuration-snippet": {Kind: Refused, Guard: true, Note: snippet},
	"server-snippet":        {Kind: Refused, Guard: true, Note: snippet},
	"auth-snippet":          {Kind: Refused, Guard: true, Note: snippet},
	"stream-snippet":        {Kind: Refused, Guard: true, Note: snippet},
	"modsecurity-snippet":   {Kind: Refused, Guard: true, Note: snippet},
}

func oneOf(to *string, value string, of ...string) error {
	for _, o := range of {
		if strings.EqualFold(o, value) {
			*to = o
			return nil
		}
	}
	return fmt.Errorf("%q is not served; %s is", clipped(value), strings.Join(of, ", "))
}

func onOff(to *bool, value string) error {
	var s string
	err := oneOf(&s, value, "on", "off", "true", "false")
	*to = s == "on" || s == "true"
	return err
}

// target takes a path that requests get.
func target(to *string, value string) error {
	if !strings.HasPrefix(value, "/") && !strings.HasPrefix(value, "$") {
		return fmt.Errorf("%q does not begin with a slash", clipped(value))
	}
	return location(to, value)
}

// location takes what becomes of a URL or a part of one.
func location(to *string, value string) error {
	if value == "" || strings.ContainsAny(value, " \t\"<>\\^`{|}") {
		return fmt.Errorf("%q is no URL", clipped(value))
	}
	return text(to, value)
}

func header(to *string, value string) error {
	if !token(value) {
		return fmt.Errorf("%q is no name of a header", clipped(value))
	}
	*to = value
	return nil
}

func cookieName(to *string, value string) error {
	if !token(value) {
		return fmt.Errorf("%q is no name of a cookie", clipped(value))
	}
	*to = value
	return nil
}

func attribute(to *string, value string) error {
	if strings.ContainsAny(value, ";, ") {
		return fmt.Errorf("%q is no attribute of a cookie", clipped(value))
	}
	return text(to, value)
}

// cookie is the session that annotations ask for.
func (w *settings) cookie() *route.Session {
	if w.session == nil {
		w.session = &route.Session{Cookie: "INGRESSCOOKIE", Path: "/"}
	}
	return w.session
}

func aliases(w *settings, value string) error {
	all, err := list(value)
	if err != nil {
		return err
	}
	if len(all) > maxAliases {
		return fmt.Errorf("it has more than %d names", maxAliases)
	}
	for _, one := range all {
		one = strings.ToLower(one)
		if !hostname(one) {
			return fmt.Errorf("%q is no host name", clipped(one))
		}
		w.aliases = append(w.aliases, one)
	}
	return nil
}

// hostname says whether a text is a name of a host, with or without a leading wildcard.
func hostname(s string) bool {
	rest := strings.TrimPrefix(s, "*.")
	if rest == "" || len(rest) > 253 {
		return false
	}
	for label := range strings.SplitSeq(rest, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

func origins(to *[]string, value string) error {
	all, err := list(value)
	if err != nil {
		return err
	}
	for _, one := range all {
		u, err := url.Parse(strings.Replace(one, "*", "x", 1))
		if one != "*" && (err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" || strings.ContainsAny(one, " \"'\r\n")) {
			return fmt.Errorf("%q is no origin such as https://example.com", clipped(one))
		}
	}
	if len(all) == 0 {
		return errors.New("it names no origin")
	}
	*to = all
	return nil
}

func nextUpstream(w *settings, value string) error {
	var retry route.Retry
	off := false
	for _, one := range strings.Fields(value) {
		switch one {
		case "off":
			off = true
		case "error", "timeout", "invalid_header":
		case "http_403", "http_404", "http_429", "http_500", "http_502", "http_503", "http_504":
			var code int
			if err := number(&code, one[len("http_"):], 400, 599); err != nil {
				return err
			}
			retry.Codes = append(retry.Codes, code)
		default: // non_idempotent among them
			return fmt.Errorf("%q is not served", clipped(one))
		}
	}
	if w.retry = retry; !off {
		w.retry.Attempts = 1 // the number of tries says how many
	}
	return nil
}

func protocol(w *settings, value string) error {
	switch strings.ToUpper(value) {
	case "HTTP":
		w.backend.Protocol = route.BackendHTTP
	case "HTTPS", "GRPCS":
		w.backend.Protocol = route.BackendHTTPS
	case "GRPC":
		w.backend.Protocol = route.BackendH2C
	default:
		return fmt.Errorf("%q is not served; HTTP, HTTPS, GRPC and GRPCS are", clipped(value))
	}
	return nil
}

func hashBy(w *settings, value string) error {
	switch {
	case value == "$binary_remote_addr":
		value = "$remote_addr"
	case value == "$uri":
		value = "$request_uri"
	case value == "$remote_addr", value == "$request_uri", value == "$host":
	case strings.HasPrefix(value, "$http_") || strings.HasPrefix(value, "$cookie_") || strings.HasPrefix(value, "$arg_"):
		if !token(value[1:]) || strings.Contains(value[1:], "$") {
			return fmt.Errorf("%q is not served; one variable is", clipped(value))
		}
	default:
		return fmt.Errorf("%q is not served; $remote_addr, $request_uri, $host, $http_NAME, $cookie_NAME and $arg_NAME are", clipped(value))
	}
	w.backend.HashBy = value
	return nil
}

// rate is what a number of requests in a time comes to.
func rate(requests int, in time.Duration) float64 { return float64(requests) / in.Seconds() }
