package apiflags

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/keyutil"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/storage"
)

const refused = "testdata/refusals.json"

const (
	authnHead = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
	authzHead = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n"
	hookOf    = "{timeout: 3s, subjectAccessReviewVersion: v1, matchConditionSubjectAccessReviewVersion: v1, failurePolicy: Deny, connectionInfo: {type: KubeConfigFile, kubeConfigFile: DIR/hook.kubeconfig}"
)

// refusals are flags and files that no server starts with.
var refusals = []struct {
	name  string
	flags []string
	file  string // DIR/f
}{
	{"no such authentication file", []string{"authentication-config=DIR/none"}, ""},
	{"empty authentication file", []string{"authentication-config=DIR/f"}, ""},
	{"no YAML", []string{"authentication-config=DIR/f"}, "{"},
	{"another kind", []string{"authentication-config=DIR/f"}, authzHead},
	{"unknown field", []string{"authentication-config=DIR/f"}, authnHead + "jwts: []\n"},
	{"unknown version", []string{"authentication-config=DIR/f"}, "apiVersion: apiserver.config.k8s.io/v7\nkind: AuthenticationConfiguration\n"},
	{"issuer without https", []string{"authentication-config=DIR/f"}, authnHead + "jwt: [{issuer: {url: 'http://x', audiences: [a]}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n"},
	{"issuer without anything", []string{"authentication-config=DIR/f"}, authnHead + "jwt: [{}]\n"},
	{"claim and expression", []string{"authentication-config=DIR/f"}, authnHead + "jwt: [{issuer: {url: 'https://x', audiences: [a, b], audienceMatchPolicy: MatchAny}, claimMappings: {username: {claim: sub, prefix: '', expression: claims.sub}, extra: [{key: k8s.io/x, valueExpression: '1'}]}}]\n"},
	{"bad expression", []string{"authentication-config=DIR/f"}, authnHead + "jwt: [{issuer: {url: 'https://x', audiences: [a]}, claimMappings: {username: {expression: 'claims.'}}, userValidationRules: [{expression: 'user.name == 1'}]}]\n"},
	{"email without email_verified", []string{"authentication-config=DIR/f"}, authnHead + "jwt: [{issuer: {url: 'https://x', audiences: [a]}, claimMappings: {username: {expression: claims.email}}}]\n"},
	{"twice the same issuer", []string{"authentication-config=DIR/f"}, authnHead + "jwt: [{issuer: {url: 'https://x', audiences: [a]}, claimMappings: {username: {claim: sub, prefix: ''}}}, {issuer: {url: 'https://x', audiences: [a]}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n"},
	{"the service accounts' issuer", []string{"authentication-config=DIR/f"}, authnHead + "jwt: [{issuer: {url: 'https://kubernetes.default.svc.cluster.local', audiences: [a]}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n"},
	{"bad CA", []string{"authentication-config=DIR/f"}, authnHead + "jwt: [{issuer: {url: 'https://x', audiences: [a], certificateAuthority: no}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n"},
	{"egress", []string{"authentication-config=DIR/f"}, authnHead + "jwt: [{issuer: {url: 'https://x', audiences: [a], egressSelectorType: cluster}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n"},
	{"anonymous conditions of nobody", []string{"authentication-config=DIR/f"}, authnHead + "anonymous: {enabled: false, conditions: [{path: /x}]}\n"},
	{"anonymous twice", []string{"authentication-config=DIR/f", "anonymous-auth=true"}, authnHead + "anonymous: {enabled: true}\n"},
	{"file and flags", []string{"authentication-config=DIR/f", "oidc-issuer-url=https://x"}, authnHead},
	{"half of OIDC", []string{"oidc-client-id=x"}, ""},
	{"OIDC without https", []string{"oidc-client-id=x", "oidc-issuer-url=http://x"}, ""},
	{"OIDC algorithm", []string{"oidc-client-id=x", "oidc-issuer-url=https://x", "oidc-signing-algs=HS256"}, ""},
	{"empty username header", []string{"requestheader-username-headers= "}, ""},
	{"uid header of another name", []string{"requestheader-uid-headers=X-Uid"}, ""},
	{"issuers twice", []string{"service-account-issuer=https://a", "service-account-issuer=https://a"}, ""},
	{"issuer of no form", []string{"service-account-issuer=ht tp://a:b"}, ""},
	{"keys without https", []string{"service-account-jwks-uri=http://a"}, ""},
	{"tokens too short", []string{"service-account-max-token-expiration=1m"}, ""},
	{"token file", []string{"token-auth-file=DIR/f"}, "a,b\n"},
	{"token webhook version", []string{"authentication-token-webhook-config-file=DIR/authn.kubeconfig", "authentication-token-webhook-version=v2"}, ""},
	{"no such mode", []string{"authorization-mode=RBAC,Fun"}, ""},
	{"a mode twice", []string{"authorization-mode=RBAC,RBAC"}, ""},
	{"ABAC without policies", []string{"authorization-mode=ABAC"}, ""},
	{"policies without ABAC", []string{"authorization-mode=RBAC", "authorization-policy-file=DIR/f"}, ""},
	{"Webhook without kubeconfig", []string{"authorization-mode=Webhook"}, ""},
	{"kubeconfig without Webhook", []string{"authorization-mode=RBAC", "authorization-webhook-config-file=DIR/f"}, ""},
	{"webhook version", []string{"authorization-mode=Webhook", "authorization-webhook-config-file=DIR/hook.kubeconfig", "authorization-webhook-version=v2"}, ""},
	{"policy that is no JSON", []string{"authorization-mode=ABAC", "authorization-policy-file=DIR/f"}, "# a\n{\"apiVersion\":\n"},
	{"authorization file and mode", []string{"authorization-config=DIR/f", "authorization-mode=RBAC"}, authzHead},
	{"no such authorization file", []string{"authorization-config=DIR/none"}, ""},
	{"no authorisers", []string{"authorization-config=DIR/f"}, authzHead},
	{"empty authorization file", []string{"authorization-config=DIR/f"}, ""},
	{"unknown authoriser", []string{"authorization-config=DIR/f"}, authzHead + "authorizers: [{type: Fun, name: fun}]\n"},
	{"misnamed authoriser", []string{"authorization-config=DIR/f"}, authzHead + "authorizers: [{type: RBAC, name: mine}]\n"},
	{"RBAC twice", []string{"authorization-config=DIR/f"}, authzHead + "authorizers: [{type: RBAC, name: rbac}, {type: RBAC, name: rbac}]\n"},
	{"webhook without anything", []string{"authorization-config=DIR/f"}, authzHead + "authorizers: [{type: Webhook, name: a, webhook: {}}]\n"},
	{"webhook with a bad condition", []string{"authorization-config=DIR/f"}, authzHead + "authorizers: [{type: Webhook, name: a, webhook: " + hookOf + ", matchConditions: [{expression: 'request.users'}]}}]\n"},
	{"webhooks of one name", []string{"authorization-config=DIR/f"}, authzHead + "authorizers: [{type: Webhook, name: a, webhook: " + hookOf + "}}, {type: Webhook, name: a, webhook: " + hookOf + "}}]\n"},
	{"audit log of no form", []string{"audit-log-path=DIR/log", "audit-log-mode=fast", "audit-log-format=xml", "audit-log-maxage=-1", "audit-log-maxbackup=-1", "audit-log-maxsize=-1", "audit-log-version=audit.k8s.io/v1beta1"}, ""},
	{"audit batches of nothing", []string{"audit-log-path=DIR/log", "audit-log-mode=batch", "audit-log-batch-max-size=0"}, ""},
	{"audit events of nothing", []string{"audit-webhook-config-file=DIR/hook.kubeconfig", "audit-webhook-truncate-max-event-size=0", "audit-webhook-batch-throttle-burst=0", "audit-webhook-version=a/b/c"}, ""},
	{"audit batches smaller than events", []string{"audit-log-path=DIR/log", "audit-log-truncate-max-batch-size=1"}, ""},
}

// TestRefusals: what upstream refuses to start with, in its words.
func TestRefusals(t *testing.T) {
	want := map[string]string{}
	text, err := os.ReadFile(refused)
	if err == nil {
		err = json.Unmarshal(text, &want)
	}
	if err != nil && !*update {
		t.Fatal(err)
	}
	for _, r := range refusals {
		t.Run(r.name, func(t *testing.T) {
			e := newElsewhere(t)
			e.file("f", r.file)
			var flags []string
			for _, f := range r.flags {
				flags = append(flags, e.fill(f))
			}
			if *update {
				want[r.name] = e.blank(e.refusal(flags))
			}
			flagsOf, err := Parse(flags)
			if err == nil {
				cfg := apiserver.Config{Store: storage.NewMemory(), ServiceAccountKey: e.rsa}
				if err = flagsOf.Apply(&cfg); err == nil {
					_, err = apiserver.New(cfg)
				}
				cfg.Store.Close()
			}
			if err == nil {
				t.Fatalf("accepted; upstream says %s", want[r.name])
			}
			if got := e.blank(err.Error()); want[r.name] == "" || !strings.Contains(got, want[r.name]) {
				t.Errorf("\n got %s\nwant %s", got, want[r.name])
			}
		})
	}
	if *update {
		if err := os.WriteFile(refused, append(indented(want), '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func indented(v any) []byte {
	var out bytes.Buffer
	if err := json.Indent(&out, jsonOf(v), "", "  "); err != nil {
		panic(err)
	}
	return out.Bytes()
}

var failure = regexp.MustCompile(`(?s)"command failed" err=("[^\n]*"\n|<.*?\n >)`)

// refusal is what upstream's server ends with.
func (e *elsewhere) refusal(flags []string) string {
	e.t.Helper()
	key, err := keyutil.MarshalPrivateKeyToPEM(e.rsa)
	e.must(err)
	e.file("sa.key", string(key))
	args := []string{
		"--etcd-servers=" + os.Getenv("KNARR_ETCD"), "--etcd-prefix=/refusals", "--bind-address=127.0.0.1", "--secure-port=17449", "--cert-dir=" + e.path("certs"),
		"--service-account-key-file=" + e.path("sa.key"), "--service-account-signing-key-file=" + e.path("sa.key"),
	}
	all := strings.Join(flags, " ")
	if !strings.Contains(all, "service-account-issuer") {
		args = append(args, "--service-account-issuer=https://kubernetes.default.svc.cluster.local")
	}
	if !strings.Contains(all, "authorization-") {
		args = append(args, "--authorization-mode=RBAC")
	}
	for _, f := range flags {
		args = append(args, "--"+f)
	}
	cmd := exec.Command(os.Getenv("KNARR_KUBE_APISERVER"), args...)
	var log bytes.Buffer
	cmd.Stderr = &log
	e.must(cmd.Start())
	limit := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	_ = cmd.Wait()
	m := failure.FindStringSubmatch(log.String())
	if m == nil {
		e.t.Errorf("upstream did not refuse %s", all)
		return ""
	}
	if several, ok := strings.CutPrefix(m[1], "<"); ok {
		return strings.ReplaceAll(strings.TrimSuffix(several, "\n >"), "\n\t", "\n")[1:]
	}
	message, err := strconv.Unquote(strings.TrimSpace(m[1]))
	e.must(err)
	return message
}
