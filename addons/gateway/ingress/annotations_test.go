package ingress

import (
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
)

// served are annotations, the first of which is tested, and what becomes of them.
var served = []struct{ annotations, want string }{
	{"rewrite-target=/$2", "Rewrite:{Path:{Template:/$2}}"},
	{"use-regex=true", "Pattern:(?i)^/a"},
	{"app-root=/start", "Matches:[{PathType:Exact Path:/}] Filters:{Redirect:{Path:{Full:/start} Code:302}}"},
	{"server-alias=Alias.example, *.alias.example", "Hosts:[alias.example]"},
	{"from-to-www-redirect=true", "Hosts:[www.a.example] SingleLabel:true Rules:[{Name:from-to-www-redirect Filters:{Redirect:{Hostname:a.example Code:308}}}]"},
	{"ssl-redirect=false", "{Name:/a Matches:[{PathType:Prefix Path:/a}] Backends"},
	{"force-ssl-redirect=true\nssl-redirect=false", "Redirect:{Scheme:https Code:308 OnlyPlain:true}}"},
	{"permanent-redirect=https://else.example/x", "Redirect:{Code:301 Location:https://else.example/x}"},
	{"permanent-redirect-code=308\npermanent-redirect=https://else.example", "Redirect:{Code:308 Location:https://else.example}"},
	{"temporal-redirect=https://else.example", "Redirect:{Code:302 Location:https://else.example}"},
	{"temporal-redirect-code=307\ntemporal-redirect=https://else.example", "Redirect:{Code:307 Location:https://else.example}"},
	{"ssl-passthrough=true", "{Name:ingress/passthrough/a.example Port:443 PublicPort:443 Protocol:TLS Hostname:a.example Passthrough:true Streams:[{Name:Ingress default/i Hosts:[a.example] Backends:[{Backend:default/web:80 Weight:1}]}]}"},
	{"whitelist-source-range=10.0.0.0/8, 192.0.2.1", "Access:{Allow:[10.0.0.0/8 192.0.2.1/32]}"},
	{"allowlist-source-range=2001:db8::/32", "Access:{Allow:[2001:db8::/32]}"},
	{"denylist-source-range=192.0.2.0/24", "Access:{Deny:[192.0.2.0/24]}"},
	{"auth-type=basic\nauth-secret=users", "Auth:{Realm:Authentication Required Users:[ada=$apr1$x$y bob={SHA}abc=]}"},
	{"auth-secret=default/users\nauth-type=basic", "Users:[ada=$apr1$x$y bob={SHA}abc=]"},
	{"auth-secret-type=auth-map\nauth-type=basic\nauth-secret=map", "Users:[eve={SHA}xyz=]"},
	{"auth-realm=Only us\nauth-type=basic\nauth-secret=users", "Realm:Only us"},
	{"auth-url=http://proxy.auth.svc.cluster.local:4180/oauth2/auth", "Auth:{URL:http://proxy.auth.svc.cluster.local:4180/oauth2/auth Backend:auth/proxy:4180}"},
	{"auth-method=POST\nauth-url=https://auth.example/", "Method:POST"},
	{"auth-signin=https://$host/start\nauth-url=https://$host/auth", "SignIn:https://$host/start?rd=$scheme://$host$escaped_request_uri"},
	{"auth-signin-redirect-param=next\nauth-signin=https://x.example/s?a=b\nauth-url=https://auth.example/", "SignIn:https://x.example/s?a=b&next=$scheme://$host$escaped_request_uri"},
	{"auth-response-headers=X-User, X-Groups\nauth-url=https://auth.example/", "ResponseHeaders:[X-User X-Groups]"},
	{"auth-tls-secret=default/tls", "Auth:{ClientCAs:pool}"},
	{"auth-tls-verify-client=optional\nauth-tls-secret=tls", "Auth:{ClientCAs:pool ClientOptional:true}"},
	{"auth-tls-pass-certificate-to-upstream=true\nauth-tls-secret=tls", "Auth:{ClientCAs:pool PassCertificate:true}"},
	{"limit-rps=10", "Limit:{Rate:10 Burst:50}"},
	{"limit-rpm=60", "Limit:{Rate:1 Burst:300}"},
	{"limit-connections=7", "Limit:{Connections:7}"},
	{"limit-burst-multiplier=2\nlimit-rps=10", "Limit:{Rate:10 Burst:20}"},
	{"limit-whitelist=10.0.0.0/8\nlimit-rps=1", "Exempt:[10.0.0.0/8]"},
	{"limit-allowlist=10.0.0.0/8\nlimit-rps=1", "Exempt:[10.0.0.0/8]"},
	{"enable-cors=true", "CORS:{Origins:[*] Methods:[GET PUT POST DELETE PATCH OPTIONS] Headers:[DNT Keep-Alive User-Agent X-Requested-With If-Modified-Since Cache-Control Content-Type Range Authorization] Credentials:true MaxAge:480h0m0s}"},
	{"cors-allow-origin=https://*.x.example, http://y.example:8080\nenable-cors=true", "Origins:[https://*.x.example http://y.example:8080]"},
	{"cors-allow-methods=GET, PUT\nenable-cors=true", "Methods:[GET PUT] Headers"},
	{"cors-allow-headers=X-One\nenable-cors=true", "Headers:[X-One]"},
	{"cors-expose-headers=X-Two\nenable-cors=true", "Expose:[X-Two]"},
	{"cors-allow-credentials=false\nenable-cors=true", "Authorization] MaxAge"},
	{"cors-max-age=600\nenable-cors=true", "MaxAge:10m0s"},
	{"affinity=cookie", "Session:{Cookie:INGRESSCOOKIE Path:/}"},
	{"session-cookie-name=route\naffinity=cookie", "Cookie:route"},
	{"session-cookie-path=/x\naffinity=cookie", "Session:{Cookie:INGRESSCOOKIE Path:/x}"},
	{"session-cookie-domain=x.example\naffinity=cookie", "Domain:x.example"},
	{"session-cookie-max-age=60\naffinity=cookie", "Session:{Cookie:INGRESSCOOKIE Path:/ MaxAge:1m0s}"},
	{"session-cookie-expires=120\naffinity=cookie", "MaxAge:2m0s"},
	{"session-cookie-secure=true\naffinity=cookie", "Secure:true"},
	{"session-cookie-samesite=Lax\naffinity=cookie", "SameSite:Lax"},
	{"proxy-body-size=8m", "BodyLimit:8388608"},
	{"proxy-connect-timeout=3", "default/web:80 for default/i={Protocol:HTTP ConnectTimeout:3s}"},
	{"proxy-read-timeout=90s", "ReadTimeout:1m30s"},
	{"proxy-send-timeout=9", "WriteTimeout:9s"},
	{"proxy-next-upstream=error http_502 http_503", "Retry:{Attempts:2 Codes:[502 503]}"},
	{"proxy-next-upstream-tries=5\nproxy-next-upstream=http_500", "Retry:{Attempts:4 Codes:[500]}"},
	{"proxy-request-buffering=on", "Buffer:true"},
	{"custom-http-errors=404,503\ndefault-backend=errors", "ErrorPages:{Backend:default/errors:80 Codes:[404 503] Unavailable:true Headers:[{Name:X-Namespace Value:default} {Name:X-Ingress-Name Value:i} {Name:X-Service-Name Value:web}]}"},
	{"default-backend=errors", "ErrorPages:{Backend:default/errors:80 Unavailable:true"},
	{"custom-headers=default/headers", "ResponseHeaders:{Set:[{Name:X-A Value:1} {Name:X-B Value:2}]}"},
	{"upstream-vhost=inner.example", "Rewrite:{Hostname:inner.example}"},
	{"x-forwarded-prefix=/p\nrewrite-target=/", "RequestHeaders:{Set:[{Name:X-Forwarded-Prefix Value:/p}]}"},
	{"mirror-target=http://other.default.svc.cluster.local:9000$request_uri", "Mirrors:[{Backend:default/other:9000 Numerator:1 Denominator:1}]"},
	{"enable-access-log=false", "NoAccessLog:true"},
	{"backend-protocol=HTTPS", "default/web:80 HTTPS={Protocol:HTTPS}"},
	{"backend-protocol=GRPC", "default/web:80 H2C={Protocol:H2C}"},
	{"service-upstream=true", "default/web:80 by its address={Protocol:HTTP}"},
	{"upstream-hash-by=$binary_remote_addr", "HashBy:$remote_addr"},
	{"upstream-hash-by=$http_x_user", "HashBy:$http_x_user"},
	{"proxy-ssl-secret=tls\nbackend-protocol=HTTPS", "Certificate:cert of a.example *.b.example"},
	{"proxy-ssl-verify=on\nbackend-protocol=HTTPS\nproxy-ssl-secret=tls", "CAs:pool"},
	{"proxy-ssl-verify=on\nbackend-protocol=HTTPS", "SystemCAs:true"},
	{"proxy-ssl-name=inner.example\nbackend-protocol=HTTPS", "ServerName:inner.example"},
	{"proxy-ssl-server-name=on", "Protocol:HTTP"},
}

// Each annotation that is served does what it did: what is compiled with it says so, and
// without it does not.
func TestServedAnnotations(t *testing.T) {
	for _, c := range served {
		cl := newCluster(t)
		cl.ingress("i", c.annotations, "a.example/a Prefix web:80", "a.example/ Prefix web:80").Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"a.example"}, SecretName: "tls"}}
		out := cl.compile()
		name, _, _ := strings.Cut(c.annotations, "=")
		if got := describe(out.Listeners) + describe(out.Backends); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s is not in\n%s", c.annotations, c.want, got)
		}
		if got := out.faults("i"); got != "" && name != "custom-headers" {
			t.Errorf("%s: %s", c.annotations, got)
		}
		first, rest, _ := strings.Cut(c.annotations, "\n")
		cl = newCluster(t)
		cl.ingress("i", rest, "a.example/a Prefix web:80", "a.example/ Prefix web:80").Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"a.example"}, SecretName: "tls"}}
		out = cl.compile()
		if got := describe(out.Listeners) + describe(out.Backends); strings.Contains(got, c.want) && name != "proxy-ssl-server-name" && name != "force-ssl-redirect" && first != "ssl-redirect=false" {
			t.Errorf("%s is also there without %s", c.want, name)
		}
		tested[name] = true
	}
	for _, name := range []string{"canary", "canary-by-header", "canary-by-header-value", "canary-by-header-pattern", "canary-by-cookie", "canary-weight", "canary-weight-total"} {
		tested[name] = true // by TestCanary
	}
	for name, a := range Annotations {
		if a.Kind == Served && !tested[name] {
			t.Errorf("the annotation %s has no case", name)
		}
	}
}

var tested = map[string]bool{}

// Every annotation that does not do what it did is named in an event, and one that kept
// clients out lets nobody in.
func TestOtherAnnotations(t *testing.T) {
	for name, a := range Annotations {
		if a.Kind == Served {
			continue
		}
		cl := newCluster(t)
		cl.ingress("i", name+"=something", "a.example/ Prefix web:80")
		out := cl.compile()
		if got := out.faults("i"); !strings.Contains(got, "nginx.ingress.kubernetes.io/"+name) {
			t.Errorf("%s is not named: %q", name, got)
		}
		if got, closed := describe(out.Listeners), a.Guard; strings.Contains(got, "Status:503") != closed {
			t.Errorf("%s: closed is to be %v: %s", name, closed, got)
		}
		if a.Usual == "" {
			continue
		}
		for value := range strings.SplitSeq(a.Usual, "|") {
			cl = newCluster(t)
			cl.ingress("i", name+"="+value, "a.example/ Prefix web:80")
			if got := cl.compile().faults("i"); got != "" {
				t.Errorf("%s=%s asks for what is done anyway: %q", name, value, got)
			}
		}
	}
}

// What cannot be read is told; where it would have kept clients out, nobody is let in.
func TestBadValues(t *testing.T) {
	long := strings.Repeat("x", maxValue+1)
	for _, c := range []struct {
		annotations, fault string
		closed             bool
	}{
		{"whitelist-source-range=10.0.0.0/33", "no range", true},
		{"whitelist-source-range=", "names no range", true},
		{"denylist-source-range=" + long, "longer than", true},
		{"auth-type=digest", "basic is", true},
		{"auth-type=basic", "it is missing", true},
		{"auth-type=basic\nauth-secret=kube-system/x", "not in the Ingress' namespace", true},
		{"auth-type=basic\nauth-secret=none", `Secret "none" was not found`, true},
		{"auth-type=basic\nauth-secret=empty", "has no users", true},
		{"auth-url=ftp://x", "is no URL", true},
		{"auth-url=http://169.254.169.254/latest", "may not be asked", true},
		{"auth-url=http://localhost:10250/", "may not be asked", true},
		{"auth-url=http://none.auth.svc.cluster.local/", `Service "auth/none" was not found`, true},
		{"auth-tls-secret=users", "ca.crt holds no certificate", true},
		{"auth-tls-secret=tls\nauth-tls-verify-client=optional_no_ca", "not served", true},
		{"limit-rps=many", "no number", true},
		{"backend-protocol=FCGI", "HTTP, HTTPS, GRPC and GRPCS are", true},
		{"proxy-ssl-secret=none", "was not found", true},
		{"configuration-snippet=deny all;", "configuration of nginx is not read", true},
		{"permanent-redirect=https://x/\x01", "control character", false},
		{"permanent-redirect=https://x/ y", "no URL", false},
		{"permanent-redirect-code=999", "no number from 300 to 308", false},
		{"proxy-body-size=lots", "no size", false},
		{"proxy-body-size=99999999999g", "no size", false},
		{"proxy-connect-timeout=-1", "no number of seconds", false},
		{"enable-cors=maybe", "neither true nor false", false},
		{"cors-allow-origin=example.com\nenable-cors=true", "no origin", false},
		{"cors-allow-methods=G E T\nenable-cors=true", "no name of a header or method", false},
		{"session-cookie-name=a b\naffinity=cookie", "no name of a cookie", false},
		{"session-cookie-path=/; Secure\naffinity=cookie", "no attribute of a cookie", false},
		{"upstream-hash-by=$a$b", "$remote_addr", false},
		{"upstream-vhost=$host", "variables are not served", false},
		{"server-alias=~^www", "no host name", false},
		{"custom-http-errors=200", "no number from 400", false},
		{"custom-http-errors=404", "names who answers", false},
		{"default-backend=none", "was not found", false},
		{"custom-headers=none", "was not found", false},
		{"mirror-target=https://elsewhere.example", "no Service of the cluster", false},
		{"rewrite-target=no-slash", "does not begin with a slash", false},
		{"proxy-next-upstream=non_idempotent", "not served", false},
		{"no-such-annotation=x", "is not known here", false},
	} {
		cl := newCluster(t)
		cl.ingress("i", "", "a.example/ Prefix web:80").Annotations = annotationsOf(c.annotations)
		out := cl.compile()
		if got := out.faults("i"); !strings.Contains(got, c.fault) {
			t.Errorf("%.60q: %q is not in %q", c.annotations, c.fault, got)
		}
		if got := describe(out.Listeners); strings.Contains(got, "Status:503") != c.closed {
			t.Errorf("%.60q: closed is to be %v: %s", c.annotations, c.closed, got)
		}
	}
}

func annotationsOf(lines string) map[string]string {
	all := map[string]string{}
	for line := range strings.SplitSeq(lines, "\n") {
		k, v, _ := strings.Cut(line, "=")
		all["nginx.ingress.kubernetes.io/"+k] = v
	}
	return all
}

func TestCanary(t *testing.T) {
	for _, c := range []struct{ annotations, want string }{
		{"canary-weight=20", "Backends:[{Backend:default/web:80 Weight:80} {Backend:default/canary:80 Weight:20}]"},
		{"canary-weight=20\ncanary-weight-total=1000", "Backends:[{Backend:default/web:80 Weight:980} {Backend:default/canary:80 Weight:20}]"},
		{"canary-by-header=X-Canary", "Rules:[{Name:/ (canary by header) Matches:[{PathType:Prefix Path:/ Headers:[{Name:X-Canary Exact:always}]}] Backends:[{Backend:default/canary:80 Weight:1}]} {Name:/ (never canary by header) Matches:[{PathType:Prefix Path:/ Headers:[{Name:X-Canary Exact:never}]}] Backends:[{Backend:default/web:80 Weight:1}]} {Name:/ Matches:[{PathType:Prefix Path:/}] Backends:[{Backend:default/web:80 Weight:1}]}]"},
		{"canary-by-header=X-Canary\ncanary-by-header-value=yes", "Headers:[{Name:X-Canary Exact:yes}]}] Backends:[{Backend:default/canary:80 Weight:1}]} {Name:/ Matches:[{PathType:Prefix Path:/}]"},
		{"canary-by-header=X-Canary\ncanary-by-header-pattern=^a+$", "Headers:[{Name:X-Canary Pattern:^a+$}]"},
		{"canary-by-cookie=try", "Cookies:[{Name:try Exact:always}]}] Backends:[{Backend:default/canary:80 Weight:1}]} {Name:/ (never canary by cookie) Matches:[{PathType:Prefix Path:/ Cookies:[{Name:try Exact:never}]}] Backends:[{Backend:default/web:80 Weight:1}]}"},
	} {
		cl := newCluster(t)
		cl.ingress("canary", "canary=true\n"+c.annotations, "a.example/ Prefix canary:80")
		cl.ingress("i", "", "a.example/ Prefix web:80")
		out := cl.compile()
		if got := describe(out.Listeners); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s is not in\n%s", c.annotations, c.want, got)
		}
		if got := out.faults("canary") + out.faults("i"); got != "" {
			t.Errorf("%s: %s", c.annotations, got)
		}
	}
	cl := newCluster(t)
	cl.ingress("first", "canary=true\ncanary-weight=200", "a.example/ Prefix canary:80", "b.example/ Prefix canary:80")
	cl.ingress("second", "canary=true\ncanary-by-header-value=x", "a.example/ Prefix canary:80")
	cl.ingress("third", "canary=true\ncanary-by-header=A\ncanary-by-header-pattern=(", "c.example/ Prefix none:80")
	cl.ingress("i", "", "a.example/ Prefix web:80")
	out := cl.compile()
	for name, want := range map[string]string{
		"first":  "annotation canary-weight is more than the total of 100\nno Ingress that is not a canary serves host b.example, path / (Prefix): nothing is sent to the canary",
		"second": "annotations canary-by-header-value and canary-by-header-pattern need canary-by-header\nhost a.example, path / (Prefix) has the canary default/first, which is older",
		"third":  "annotation canary-by-header-pattern is not followed: error parsing regexp: missing closing ): `(`\npath \"/\" has no canary: Service \"default/none\" was not found",
	} {
		if got := out.faults(name); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
