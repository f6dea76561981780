package apiflags

import (
	"encoding/base64"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// A scenario is a server's flags and files, and what is asked of it.
type scenario struct {
	name    string
	flags   []string
	files   map[string]string
	objects []string
	issuers bool
	usual   claims // what a good token says more
	asks    []ask
}

// says asks with a token of the issuer.
func says(name string, c claims) ask {
	return ask{name: name, token: func(e *elsewhere) string { return e.token(c) }}
}

// review asks by TokenReview, whose answer says why.
func review(a ask) ask {
	return ask{name: a.name + ", reviewed", path: "/apis/authentication.k8s.io/v1/tokenreviews", token: static("root"), review: a.token}
}

func access(name, spec string) ask {
	return ask{name: name, shown: true, path: "/apis/authorization.k8s.io/v1/subjectaccessreviews", token: static("root"),
		body: `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":` + spec + `}`}
}

func rulesOf(user string) ask {
	return ask{name: "rules of " + user, path: "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", token: static(user),
		body: `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectRulesReview","spec":{"namespace":"default"}}`}
}

// untilReloaded asks again until it is answered well: upstream asks a new issuer in
// the background.
func (a ask) untilReloaded() ask {
	a.waitForReload = true
	return a
}

// saysEC is says, signed with the other key.
func saysEC(name string, c claims) ask {
	return ask{name: name, token: func(e *elsewhere) string {
		return e.token(c, func(alg *jose.SignatureAlgorithm, key *jose.JSONWebKey) {
			*alg, *key = jose.ES256, jose.JSONWebKey{Key: e.ec, KeyID: "ec"}
		})
	}}
}

var b64 = base64.RawURLEncoding

// forged are tokens that nobody signed as they claim.
func forged(c claims) []ask {
	part := func(e *elsewhere, n int) string { return strings.Split(e.token(c), ".")[n] }
	head := func(s string) string { return b64.EncodeToString([]byte(s)) }
	return []ask{
		{name: "alg none", token: func(e *elsewhere) string { return head(`{"alg":"none"}`) + "." + part(e, 1) + "." }},
		{name: "alg None", token: func(e *elsewhere) string { return head(`{"alg":"None"}`) + "." + part(e, 1) + "." + part(e, 2) }},
		{name: "alg HS256", token: func(e *elsewhere) string {
			return e.token(c, func(alg *jose.SignatureAlgorithm, key *jose.JSONWebKey) {
				*alg, *key = jose.HS256, jose.JSONWebKey{Key: []byte("a shared secret of thirty-two by."), KeyID: "secret"}
			})
		}},
		{name: "the key of another id", token: func(e *elsewhere) string {
			return e.token(c, func(_ *jose.SignatureAlgorithm, key *jose.JSONWebKey) { key.KeyID = "ec" })
		}},
		{name: "an unknown key id", token: func(e *elsewhere) string {
			return e.token(c, func(_ *jose.SignatureAlgorithm, key *jose.JSONWebKey) { key.KeyID = "../../keys" })
		}},
		{name: "no key id", token: func(e *elsewhere) string {
			return e.token(c, func(_ *jose.SignatureAlgorithm, key *jose.JSONWebKey) { key.KeyID = "" })
		}},
		{name: "four parts", token: func(e *elsewhere) string { return e.token(c) + ".x" }},
		{name: "rubbish", token: static("a.b.c")},
	}
}

var hour = func(n int) int64 { return time.Now().Add(time.Duration(n) * time.Hour).Unix() }

// judged are tokens with what may be wrong with them.
func judged(c claims) (all []ask) {
	with := func(more claims) claims {
		sum := claims{}
		for k, v := range c {
			sum[k] = v
		}
		for k, v := range more {
			sum[k] = v
		}
		return sum
	}
	for _, a := range append([]ask{
		says("good", c),
		says("another audience", with(claims{"aud": "vault"})),
		says("several audiences", with(claims{"aud": []string{"vault", "knarr"}})),
		says("no audience", with(claims{"aud": nil})),
		says("another issuer", with(claims{"iss": "https://evil.example"})),
		says("a service account's issuer", with(claims{"iss": "https://kubernetes.default.svc.cluster.local"})),
	}, forged(c)...) {
		all = append(all, a, review(a))
	}
	// Their messages tell times.
	all = append(all, says("expired", with(claims{"exp": hour(-1)})), says("no end", with(claims{"exp": nil})),
		says("later", with(claims{"nbf": hour(1)})))
	return all
}

var scenarios = []scenario{
	{
		name: "structured", issuers: true, usual: claims{"email": "ann@example.com", "email_verified": true},
		flags: []string{
			"authentication-config=DIR/authn.yaml", "requestheader-client-ca-file=DIR/proxy-ca.pem", "requestheader-allowed-names=proxy",
			"requestheader-username-headers=X-Remote-User,X-User", "requestheader-group-headers=X-Remote-Group", "requestheader-extra-headers-prefix=X-Remote-Extra-",
			"requestheader-uid-headers=X-Remote-Uid",
		},
		files: map[string]string{"authn.yaml": `
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous: {enabled: true, conditions: [{path: /livez}, {path: /openid/v1/jwks}]}
jwt:
- issuer: {url: ISSUER, discoveryURL: ISSUER/elsewhere/discovery, certificateAuthority: CAPEM, audiences: [knarr, other], audienceMatchPolicy: MatchAny}
  claimMappings:
    username: {expression: 'claims.email_verified ? "oidc:" + claims.email : ""'}
    groups: {expression: 'has(claims.split) ? claims.split.split(",") : has(claims.roles) ? claims.roles : []'}
    uid: {claim: sub}
    extra:
    - {key: example.com/tenant, valueExpression: 'has(claims.tenant) ? claims.tenant : ""'}
    - {key: example.com/deep, valueExpression: 'has(claims.deep) ? claims.deep.a__dot__b[0].c : ""'}
  claimValidationRules:
  - {expression: '!has(claims.hd) || claims.hd == "example.com"', message: the domain must be example.com}
  - {expression: 'claims.exp - claims.exp < 86400.0', message: too long}
  userValidationRules:
  - {expression: "!user.username.startsWith('system:')", message: 'username cannot used reserved system: prefix'}
  - {expression: "user.groups.all(g, !g.startsWith('system:'))", message: 'groups cannot used reserved system: prefix'}
`},
		asks: append(judged(claims{"email": "ann@example.com", "email_verified": true}),
			saysEC("ec", claims{"email": "e@x", "email_verified": true, "jti": "one", "roles": []string{"a", "b", "", "c"}, "tenant": "t", "deep": map[string]any{"a.b": []any{map[string]any{"c": []string{"x", "y"}}}}}),
			says("not verified", claims{"email": "e@x", "email_verified": false}),
			says("no email", claims{"email_verified": true}),
			says("another domain", claims{"email": "e@x", "email_verified": true, "hd": "evil"}),
			review(says("another domain", claims{"email": "e@x", "email_verified": true, "hd": "evil"})),
			says("a reserved group", claims{"email": "e@x", "email_verified": true, "roles": []string{"system:masters"}}),
			review(says("a reserved group", claims{"email": "e@x", "email_verified": true, "roles": []string{"system:masters"}})),
			says("a group that is a number", claims{"email": "e@x", "email_verified": true, "roles": []any{"a", 7}}),
			review(says("a group that is a number", claims{"email": "e@x", "email_verified": true, "roles": []any{"a", 7}})),
			says("a group alone", claims{"email": "e@x", "email_verified": true, "roles": "a"}),
			review(says("split groups", claims{"email": "e@x", "email_verified": true, "split": "a,b"})),
			says("a uid that is a number", claims{"email": "e@x", "email_verified": true, "sub": 7}),
			ask{name: "anonymous /livez", path: "/livez"}, ask{name: "anonymous keys", path: "/openid/v1/jwks"}, ask{name: "anonymous /healthz", path: "/healthz"},
			ask{name: "anonymous /api", path: "/api"},
			ask{name: "proxy", cert: "proxy", headers: map[string]string{"X-Remote-User": "carl", "X-Remote-Uid": "9", "X-Remote-Group": "g", "X-Remote-Extra-Acme.com%2fScope": "s"}},
			ask{name: "proxy by the second header", cert: "proxy", headers: map[string]string{"X-User": "carl"}},
			ask{name: "proxy naming system:masters", cert: "proxy", headers: map[string]string{"X-Remote-User": "carl", "X-Remote-Group": "system:masters"}},
			ask{name: "proxy of another name", cert: "mallory", headers: map[string]string{"X-Remote-User": "carl"}},
			ask{name: "proxy of no CA", cert: "!proxy", headers: map[string]string{"X-Remote-User": "carl", "X-Remote-Group": "system:masters"}},
			ask{name: "proxy without certificate", headers: map[string]string{"X-Remote-User": "carl", "X-Remote-Group": "system:masters"}},
			ask{name: "groups injected beside a token", token: static("bob"), headers: map[string]string{"X-Remote-User": "carl", "X-Remote-Group": "system:masters", "X-Remote-Extra-A": "b"}},
			ask{name: "static", token: static("bob")},
			ask{name: "unknown", token: static("nope")},
			ask{name: "forbidden", token: static("bob"), path: "/api/v1/namespaces/default/secrets?labelSelector=a%3Db"},
		),
	},
	{
		name: "flags", issuers: true,
		flags: []string{
			"oidc-issuer-url=ISSUER", "oidc-client-id=knarr", "oidc-ca-file=DIR/issuer-ca.pem", "oidc-groups-claim=groups", "oidc-groups-prefix=o:",
			"oidc-signing-algs=RS256", "oidc-required-claim=hd=example.com", "authentication-token-webhook-config-file=DIR/authn.kubeconfig", "anonymous-auth=false",
			"service-account-issuer=https://first.example", "service-account-issuer=https://second.example", "api-audiences=api,knarr",
			"service-account-max-token-expiration=2h", "service-account-jwks-uri=https://keys.example/jwks",
		},
		usual:   claims{"hd": "example.com"},
		objects: []string{`{"kind":"ServiceAccount","metadata":{"name":"sa"}}`},
		asks: append(judged(claims{"hd": "example.com"}),
			saysEC("not that algorithm", claims{"hd": "example.com"}),
			review(saysEC("not that algorithm", claims{"hd": "example.com"})),
			says("one group", claims{"hd": "example.com", "groups": "g"}),
			says("groups", claims{"hd": "example.com", "groups": []string{"g", "h"}}),
			says("groups elsewhere", claims{"hd": "example.com", "_claim_names": map[string]string{"groups": "s"},
				"_claim_sources": map[string]any{"s": map[string]string{"endpoint": "GROUPS", "access_token": "open"}}}).untilReloaded(),
			says("lacks a claim", claims{}),
			review(says("lacks a claim", claims{})),
			says("another claim", claims{"hd": "evil"}),
			review(says("another claim", claims{"hd": "evil"})),
			says("system:masters is a name like others", claims{"hd": "example.com", "sub": "system:masters"}),
			ask{name: "hooked", token: static("hooked"), shown: true},
			review(ask{name: "hooked", token: static("hooked")}),
			ask{name: "for another audience", token: static("other-audience")},
			review(ask{name: "for another audience", token: static("other-audience")}),
			review(ask{name: "faulty", token: static("faulty")}),
			review(ask{name: "unknown", token: static("nope")}),
			ask{name: "anonymous /livez", path: "/livez"},
			ask{name: "discovery", path: "/.well-known/openid-configuration", token: static("root")},
			ask{name: "token", path: "/api/v1/namespaces/default/serviceaccounts/sa/token", token: static("root"), body: `{"spec":{}}`},
			ask{name: "token for another", path: "/api/v1/namespaces/default/serviceaccounts/sa/token", token: static("root"), body: `{"spec":{"audiences":["vault"],"expirationSeconds":601}}`},
			ask{name: "token too long", path: "/api/v1/namespaces/default/serviceaccounts/sa/token", token: static("root"), body: `{"spec":{"expirationSeconds":86400}}`},
		),
	},
	{
		name:  "authorization file",
		flags: []string{"authorization-config=DIR/authz.yaml"},
		files: map[string]string{"authz.yaml": `
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: first.example.com
  webhook: {timeout: 3s, subjectAccessReviewVersion: v1, matchConditionSubjectAccessReviewVersion: v1, failurePolicy: Deny, authorizedTTL: 1m, unauthorizedTTL: 1m,
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: DIR/hook.kubeconfig},
    matchConditions: [{expression: 'has(request.resourceAttributes)'}, {expression: "!('team' in request.groups)"}, {expression: "request.resourceAttributes.namespace != 'fault' || request.extra['none'][0] == 'x'"}]}
- {type: Node, name: node}
- {type: RBAC, name: rbac}
- type: Webhook
  name: second.example.com
  webhook: {timeout: 3s, subjectAccessReviewVersion: v1beta1, matchConditionSubjectAccessReviewVersion: v1, failurePolicy: NoOpinion,
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: DIR/down.kubeconfig}, matchConditions: [{expression: "has(request.resourceAttributes) && request.resourceAttributes.namespace == 'down'"}]}
- type: Webhook
  name: third.example.com
  webhook: {timeout: 3s, subjectAccessReviewVersion: v1, matchConditionSubjectAccessReviewVersion: v1, failurePolicy: Deny,
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: DIR/down.kubeconfig}, matchConditions: [{expression: "has(request.resourceAttributes) && request.resourceAttributes.namespace == 'closed'"}]}
`},
		objects: []string{
			`{"kind":"ClusterRole","metadata":{"name":"impersonator"},"rules":[` +
				`{"verbs":["impersonate:user-info"],"apiGroups":["authentication.k8s.io"],"resources":["users"],"resourceNames":["carl"]},` +
				`{"verbs":["impersonate:user-info"],"apiGroups":["authentication.k8s.io"],"resources":["groups"]},` +
				`{"verbs":["impersonate:arbitrary-node"],"apiGroups":["authentication.k8s.io"],"resources":["nodes"]},` +
				`{"verbs":["impersonate-on:user-info:create","impersonate-on:arbitrary-node:create"],"apiGroups":["authentication.k8s.io"],"resources":["selfsubjectreviews"]}]}`,
			`{"kind":"ClusterRoleBinding","metadata":{"name":"impersonator"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"impersonator"},` +
				`"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"staff"}]}`,
			`{"kind":"ClusterRole","metadata":{"name":"old"},"rules":[{"verbs":["impersonate"],"apiGroups":[""],"resources":["users","groups"]}]}`,
			`{"kind":"ClusterRoleBinding","metadata":{"name":"old"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"old"},` +
				`"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"nobody"}]}`,
		},
		asks: []ask{
			{name: "allowed", token: static("allowed"), path: "/api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Da,type!%3Db&labelSelector=a+in+(b,c),!d,e", shown: true},
			{name: "denied", token: static("denied"), path: "/api/v1/namespaces/default/secrets"},
			{name: "both", token: static("both"), path: "/api/v1/namespaces/default/secrets"},
			{name: "no opinion", token: static("nobody"), path: "/api/v1/namespaces/default/secrets"},
			{name: "a path is not asked about", token: static("denied"), path: "/apis/rbac.authorization.k8s.io"},
			{name: "a team is not asked about", token: static("bob"), path: "/api/v1/namespaces/default/secrets"},
			{name: "down, no opinion", token: static("bob"), path: "/api/v1/namespaces/down/secrets/x", shown: true},
			{name: "down, deny", token: static("bob"), path: "/api/v1/namespaces/closed/secrets"},
			{name: "a faulty condition", token: static("nobody"), path: "/api/v1/namespaces/fault/secrets"},
			{name: "masters are not asked about", token: static("root"), path: "/api/v1/namespaces/default/secrets"},
			access("review allowed", `{"user":"allowed","resourceAttributes":{"verb":"list","resource":"pods","fieldSelector":{"requirements":[{"key":"spec.nodeName","operator":"In","values":["n"]}]},"labelSelector":{"rawSelector":"a in (b,c),!d"}}}`),
			access("review denied", `{"user":"denied","resourceAttributes":{"verb":"list","resource":"pods"}}`),
			access("review both", `{"user":"both","resourceAttributes":{"verb":"list","resource":"pods"}}`),
			access("review no opinion", `{"user":"x","resourceAttributes":{"verb":"list","resource":"pods"}}`),
			access("review down", `{"user":"x","groups":["team"],"resourceAttributes":{"verb":"list","resource":"pods","namespace":"down"}}`),
			access("review closed", `{"user":"x","groups":["team"],"resourceAttributes":{"verb":"list","resource":"pods","namespace":"closed"}}`),
			access("review of a bad selector", `{"user":"x","groups":["team"],"resourceAttributes":{"verb":"list","resource":"pods","namespace":"down","fieldSelector":{"rawSelector":"!!"},"labelSelector":{"requirements":[{"key":"a","operator":"Exists"},{"key":"a","operator":"Odd","values":["b"]}]}}}`),
			access("review with both selectors", `{"user":"x","resourceAttributes":{"verb":"list","resource":"pods","fieldSelector":{"rawSelector":"a=b","requirements":[{"key":"a","operator":"In","values":["b"]}]}}}`),
			access("review without question", `{"user":"x"}`),
			access("review without user", `{"nonResourceAttributes":{"path":"/x","verb":"get"}}`),
			access("review of a path", `{"user":"x","nonResourceAttributes":{"path":"/x","verb":"get"}}`),
			rulesOf("nobody"),
			{name: "as carl", token: static("bob"), headers: map[string]string{"Impersonate-User": "carl", "Impersonate-Group": "g"}},
			{name: "as carl elsewhere", token: static("bob"), path: "/api/v1/namespaces/default/secrets", headers: map[string]string{"Impersonate-User": "carl"}},
			{name: "as dora", token: static("bob"), headers: map[string]string{"Impersonate-User": "dora"}},
			{name: "as a master", token: static("bob"), headers: map[string]string{"Impersonate-User": "carl", "Impersonate-Group": "system:masters"}},
			{name: "as a node", token: static("bob"), headers: map[string]string{"Impersonate-User": "system:node:n1"}},
			{name: "as a node of other groups", token: static("bob"), headers: map[string]string{"Impersonate-User": "system:node:n1", "Impersonate-Group": "g"}},
			{name: "as a service account", token: static("bob"), headers: map[string]string{"Impersonate-User": "system:serviceaccount:default:default"}},
			{name: "as dora the old way", token: static("nobody"), headers: map[string]string{"Impersonate-User": "dora", "Impersonate-Group": "system:masters"}},
			{name: "as dora with extra", token: static("nobody"), headers: map[string]string{"Impersonate-User": "dora", "Impersonate-Extra-a": "b"}},
			{name: "as nobody", token: static("nobody"), headers: map[string]string{"Impersonate-Group": "g"}},
			{name: "as nobody new", token: static("allowed"), path: "/apis/rbac.authorization.k8s.io", headers: map[string]string{"Impersonate-User": "dora"}},
		},
	},
	{
		name: "ABAC",
		flags: []string{
			"authorization-mode=ABAC,Webhook", "authorization-policy-file=DIR/policy.jsonl", "authorization-webhook-config-file=DIR/hook.kubeconfig",
			"authorization-webhook-version=v1", "authorization-webhook-cache-authorized-ttl=0s", "anonymous-auth=true",
		},
		files: map[string]string{"policy.jsonl": `# who may
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"bob","namespace":"*","resource":"secrets","apiGroup":"*","readonly":true}}

{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"group":"staff","nonResourcePath":"/api/*"}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"*","nonResourcePath":"/apis"}}
{"user":"old","resource":"pods"}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"group":"system:authenticated","apiGroup":"authorization.k8s.io","resource":"selfsubjectrulesreviews"}}
`},
		asks: []ask{
			{name: "reads", token: static("bob"), path: "/api/v1/namespaces/default/secrets"},
			{name: "writes", token: static("bob"), path: "/api/v1/namespaces/default/secrets", body: `{"metadata":{"name":"x"}}`},
			{name: "a path below", token: static("bob"), path: "/api/v1"},
			{name: "the path itself", token: static("bob"), path: "/api"},
			{name: "not the path", token: static("bob"), path: "/version"},
			{name: "everybody", token: static("nobody"), path: "/apis/"},
			{name: "anonymous is not everybody", path: "/apis"},
			{name: "anonymous", path: "/api/v1/namespaces/default/secrets"},
			{name: "anonymous asks who", path: whoPath, body: whoami},
			{name: "denied by the hook", token: static("denied"), path: "/api/v1/namespaces/default/secrets"},
			access("old", `{"user":"old","resourceAttributes":{"verb":"create","resource":"pods","namespace":"x","group":"apps"}}`),
			access("old elsewhere", `{"user":"old","resourceAttributes":{"verb":"create","resource":"secrets"}}`),
			rulesOf("bob"), rulesOf("nobody"),
		},
	},
}
