package apiserver_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/controlplane/apiserver"
	"knarr/internal/apitest"
)

// world is a server with a user who may do everything.
type world struct {
	*apitest.Server
	t     testing.TB
	ctx   context.Context
	admin *kubernetes.Clientset
}

func newWorld(t testing.TB) *world {
	t.Helper()
	s, _ := apitest.New(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	w := &world{Server: s, t: t, ctx: ctx, admin: s.Client(t)}
	w.account("default", "default")
	return w
}

// newBubble is newWorld in fake time.
func newBubble(t *testing.T, change ...func(*apiserver.Config)) (*world, func()) {
	t.Helper()
	s, stop := apitest.New(t, change...)
	ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
	cfg := s.Config()
	tr := &http.Transport{DialContext: cfg.Dial}
	admin, err := kubernetes.NewForConfigAndClient(cfg, &http.Client{Transport: tr})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Server: s, t: t, ctx: ctx, admin: admin}
	w.account("default", "default")
	return w, func() {
		tr.CloseIdleConnections()
		cancel()
		stop()
	}
}

func (w *world) as(name string, groups ...string) *kubernetes.Clientset {
	return w.Client(w.t, &user.DefaultInfo{Name: name, Groups: groups})
}

func (w *world) node(name string) *kubernetes.Clientset {
	return w.as("system:node:"+name, "system:nodes")
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) account(namespace, name string) *corev1.ServiceAccount {
	w.t.Helper()
	sa, err := w.admin.CoreV1().ServiceAccounts(namespace).Create(w.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	w.must(err)
	return sa
}

func (w *world) namespace(name string) {
	w.t.Helper()
	_, err := w.admin.CoreV1().Namespaces().Create(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	w.must(err)
	w.account(name, "default")
}

func (w *world) pod(name, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	p := podNamed(name, node)
	for _, c := range change {
		c(p)
	}
	got, err := w.admin.CoreV1().Pods("default").Create(w.ctx, p, metav1.CreateOptions{})
	w.must(err)
	return got
}

func podNamed(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

// allow gives subject the rules, in namespace or everywhere.
func (w *world) allow(name, namespace string, subject rbacv1.Subject, rules ...rbacv1.PolicyRule) {
	w.t.Helper()
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	if subject.Kind != rbacv1.ServiceAccountKind {
		subject.APIGroup = rbacv1.GroupName
	}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
	if namespace == "" {
		_, err := w.admin.RbacV1().ClusterRoles().Create(w.ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
		w.must(err)
		_, err = w.admin.RbacV1().ClusterRoleBindings().Create(w.ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: []rbacv1.Subject{subject}}, metav1.CreateOptions{})
		w.must(err)
		w.must(w.Cache().Sync(w.ctx))
		return
	}
	_, err := w.admin.RbacV1().Roles(namespace).Create(w.ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	w.must(err)
	ref.Kind = "Role"
	_, err = w.admin.RbacV1().RoleBindings(namespace).Create(w.ctx, &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: []rbacv1.Subject{subject}}, metav1.CreateOptions{})
	w.must(err)
	w.must(w.Cache().Sync(w.ctx))
}

func rule(verbs, groups, resources string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: strings.Split(verbs, ","), APIGroups: strings.Split(groups, ","), Resources: strings.Split(resources, ","), ResourceNames: names}
}

// refused checks for an error whose message has these words.
func refused(t testing.TB, err error, words string) {
	t.Helper()
	if err == nil {
		t.Errorf("allowed; want %q", words)
	} else if !strings.Contains(err.Error(), words) {
		t.Errorf("got  %v\nwant %s", err, words)
	}
}

func (w *world) may(c kubernetes.Interface, a authorizationv1.ResourceAttributes) bool {
	w.t.Helper()
	r, err := c.AuthorizationV1().SelfSubjectAccessReviews().Create(w.ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &a}}, metav1.CreateOptions{})
	w.must(err)
	return r.Status.Allowed
}

// raw sends a request over the in-memory network without an identity.
func (w *world) raw(method, path, body string, header ...string) (int, http.Header, string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://apiserver"+path, strings.NewReader(body))
	w.must(err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	cfg := w.Config(nil)
	tr := &http.Transport{DialContext: func(ctx context.Context, n, a string) (net.Conn, error) { return cfg.Dial(ctx, n, a) }}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	w.must(err)
	defer resp.Body.Close()
	var b strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := resp.Body.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			break
		}
	}
	return resp.StatusCode, resp.Header, b.String()
}

func (w *world) token(sa string, seconds int64, audiences ...string) string {
	w.t.Helper()
	r, err := w.admin.CoreV1().ServiceAccounts("default").CreateToken(w.ctx, sa, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds, Audiences: audiences}}, metav1.CreateOptions{})
	w.must(err)
	return r.Status.Token
}

func TestRBAC(t *testing.T) {
	w := newWorld(t)
	w.namespace("other")
	bob := rbacv1.Subject{Kind: "User", Name: "bob"}
	w.allow("named", "default", bob, rule("get", "", "secrets", "mine"))
	w.allow("logs", "", rbacv1.Subject{Kind: "Group", Name: "readers"}, rule("get", "", "pods/log"), rule("list", "apps", "*"))
	w.allow("robot", "default", rbacv1.Subject{Kind: "ServiceAccount", Name: "robot", Namespace: "other"}, rule("*", "", "configmaps"))
	w.allow("urls", "", bob, rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics", "/some/*"}})
	asked := func(verb, group, resource, ns, name string) authorizationv1.ResourceAttributes {
		resource, sub, _ := strings.Cut(resource, "/")
		return authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Subresource: sub, Namespace: ns, Name: name}
	}
	b, reader, robot := w.as("bob"), w.as("eve", "readers"), w.as("system:serviceaccount:other:robot")
	for _, c := range []struct {
		who  kubernetes.Interface
		ask  authorizationv1.ResourceAttributes
		want bool
	}{
		{b, asked("get", "", "secrets", "default", "mine"), true},
		{b, asked("get", "", "secrets", "default", "other"), false},
		{b, asked("get", "", "secrets", "default", ""), false},
		{b, asked("get", "", "secrets", "other", "mine"), false},
		{b, asked("list", "", "secrets", "default", "mine"), false},
		{reader, asked("get", "", "pods/log", "default", "x"), true},
		{reader, asked("get", "", "pods", "default", "x"), false},
		{reader, asked("list", "apps", "deployments", "", ""), true},
		{reader, asked("list", "", "pods", "", ""), false},
		{robot, asked("delete", "", "configmaps", "default", "x"), true},
		{robot, asked("delete", "", "configmaps", "other", "x"), false},
		{robot, asked("delete", "", "configmaps", "", "x"), false},
	} {
		for range 2 { // the second answer is remembered
			if got := w.may(c.who, c.ask); got != c.want {
				t.Errorf("%+v: %v", c.ask, got)
			}
		}
	}
	for path, want := range map[string]bool{"/metrics": true, "/some/where": true, "/somewhere": false, "/metrics/x": false} {
		r, err := b.AuthorizationV1().SelfSubjectAccessReviews().Create(w.ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: "get", Path: path}}}, metav1.CreateOptions{})
		w.must(err)
		if r.Status.Allowed != want {
			t.Errorf("%s: %v", path, r.Status.Allowed)
		}
	}
	// The reason is the same when remembered.
	for range 2 {
		r, err := w.admin.AuthorizationV1().SubjectAccessReviews().Create(w.ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:other:robot", ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "configmaps", Namespace: "default"}}}, metav1.CreateOptions{})
		w.must(err)
		if want := `RBAC: allowed by RoleBinding "robot/default" of Role "robot" to ServiceAccount "robot/other"`; r.Status.Reason != want {
			t.Errorf("reason %q\nwant   %q", r.Status.Reason, want)
		}
	}
}

// A group whose name has a comma in it is not two groups.
func TestGroupsAreNotJoined(t *testing.T) {
	w := newWorld(t)
	w.allow("r", "", rbacv1.Subject{Kind: "Group", Name: "b"}, rule("list", "", "secrets"))
	ask := authorizationv1.ResourceAttributes{Verb: "list", Resource: "secrets"}
	if !w.may(w.as("x", "a", "b"), ask) {
		t.Error("a member is refused")
	}
	if w.may(w.as("x", "a,b"), ask) {
		t.Error("another group of a like name is let in")
	}
}

func TestAggregationCountsAtOnce(t *testing.T) {
	w := newWorld(t)
	sel := metav1.LabelSelector{MatchLabels: map[string]string{"to-all": "true"}}
	_, err := w.admin.RbacV1().ClusterRoles().Create(w.ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "all"},
		AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{sel}}}, metav1.CreateOptions{})
	w.must(err)
	_, err = w.admin.RbacV1().ClusterRoleBindings().Create(w.ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "all"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "all"}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "bob"}}}, metav1.CreateOptions{})
	w.must(err)
	ask := authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods"}
	bob := w.as("bob")
	if w.may(bob, ask) {
		t.Fatal("allowed beforehand")
	}
	_, err = w.admin.RbacV1().ClusterRoles().Create(w.ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "part", Labels: sel.MatchLabels},
		Rules: []rbacv1.PolicyRule{rule("list", "", "pods")}}, metav1.CreateOptions{})
	w.must(err)
	w.must(w.Cache().Sync(w.ctx))
	if !w.may(bob, ask) {
		t.Error("not allowed at once")
	}
	w.must(w.admin.RbacV1().ClusterRoles().Delete(w.ctx, "part", metav1.DeleteOptions{}))
	w.must(w.Cache().Sync(w.ctx))
	if w.may(bob, ask) {
		t.Error("still allowed")
	}
}

func TestEscalation(t *testing.T) {
	w := newWorld(t)
	w.allow("author", "", rbacv1.Subject{Kind: "User", Name: "bob"},
		rule("create,update,patch,get", rbacv1.GroupName, "roles,rolebindings,clusterroles,clusterrolebindings"), rule("get,list", "", "pods"))
	bob := w.as("bob", "g")
	role := func(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	}
	_, err := bob.RbacV1().ClusterRoles().Create(w.ctx, role("held", rule("get", "", "pods")), metav1.CreateOptions{})
	w.must(err)
	w.must(w.Cache().Sync(w.ctx))
	_, err = bob.RbacV1().ClusterRoles().Create(w.ctx, role("more", rule("get,delete", "", "pods,secrets")), metav1.CreateOptions{})
	refused(t, err, `clusterroles.rbac.authorization.k8s.io "more" is forbidden: user "bob" (groups=["g" "system:authenticated"]) is attempting to grant RBAC permissions not currently held:
{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}
{APIGroups:[""], Resources:["secrets"], Verbs:["get" "delete"]}`)
	agg := role("agg")
	agg.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"x": "y"}}}}
	_, err = bob.RbacV1().ClusterRoles().Create(w.ctx, agg, metav1.CreateOptions{})
	refused(t, err, "must have cluster-admin privileges to use the aggregationRule")
	// A label decides into which roles a role is collected.
	_, err = bob.RbacV1().ClusterRoles().Patch(w.ctx, "cluster-admin", types.MergePatchType, []byte(`{"metadata":{"labels":{"rbac.authorization.k8s.io/aggregate-to-view":"true"}}}`), metav1.PatchOptions{})
	refused(t, err, "is attempting to grant RBAC permissions not currently held")
	// The collector may do its work.
	_, err = bob.RbacV1().ClusterRoles().Patch(w.ctx, "cluster-admin", types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/x"]}}`), metav1.PatchOptions{})
	w.must(err)
	binding := func(name, role string) *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}}
	}
	_, err = bob.RbacV1().ClusterRoleBindings().Create(w.ctx, binding("b", "cluster-admin"), metav1.CreateOptions{})
	refused(t, err, `clusterrolebindings.rbac.authorization.k8s.io "b" is forbidden: user "bob" (groups=["g" "system:authenticated"]) is attempting to grant RBAC permissions not currently held`)
	_, err = bob.RbacV1().ClusterRoleBindings().Create(w.ctx, binding("b", "nosuch"), metav1.CreateOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("a missing role: %v", err)
	}
	_, err = bob.RbacV1().ClusterRoleBindings().Create(w.ctx, binding("b", "held"), metav1.CreateOptions{})
	w.must(err)
	w.allow("binder", "", rbacv1.Subject{Kind: "User", Name: "bob"}, rule("bind", rbacv1.GroupName, "clusterroles", "cluster-admin"))
	_, err = bob.RbacV1().ClusterRoleBindings().Create(w.ctx, binding("b2", "cluster-admin"), metav1.CreateOptions{})
	w.must(err)
}

// Who may only patch does not create by applying.
func TestApplyNeedsCreate(t *testing.T) {
	w := newWorld(t)
	w.allow("patch", "default", rbacv1.Subject{Kind: "User", Name: "bob"}, rule("patch,update,get", "", "configmaps"))
	bob := w.as("bob")
	apply := []byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}`)
	_, err := bob.CoreV1().ConfigMaps("default").Patch(w.ctx, "a", types.ApplyPatchType, apply, metav1.PatchOptions{FieldManager: "m"})
	refused(t, err, `configmaps "a" is forbidden: User "bob" cannot create resource "configmaps" in API group "" in the namespace "default"`)
}

func TestImpersonation(t *testing.T) {
	w := newWorld(t)
	w.allow("imp", "", rbacv1.Subject{Kind: "User", Name: "bob"}, rule("impersonate", "", "users", "ann"), rule("impersonate", "", "groups", "g"),
		rule("impersonate", "", "serviceaccounts"), rule("impersonate", "authentication.k8s.io", "userextras/scopes", "ro"), rule("impersonate", "authentication.k8s.io", "uids", "1"))
	who := func(i rest.ImpersonationConfig) (*authenticationv1.UserInfo, error) {
		cfg := w.Config(&user.DefaultInfo{Name: "bob"})
		cfg.Impersonate = i
		c, err := kubernetes.NewForConfig(cfg)
		w.must(err)
		r, err := c.AuthenticationV1().SelfSubjectReviews().Create(w.ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		return &r.Status.UserInfo, nil
	}
	got, err := who(rest.ImpersonationConfig{UserName: "ann", UID: "1", Groups: []string{"g"}, Extra: map[string][]string{"scopes": {"ro"}}})
	w.must(err)
	if got.Username != "ann" || got.UID != "1" || strings.Join(got.Groups, " ") != "g system:authenticated" || got.Extra["scopes"][0] != "ro" {
		t.Errorf("%+v", got)
	}
	got, err = who(rest.ImpersonationConfig{UserName: "system:serviceaccount:ns:sa"})
	w.must(err)
	if strings.Join(got.Groups, " ") != "system:serviceaccounts system:serviceaccounts:ns system:authenticated" {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct {
		i    rest.ImpersonationConfig
		want string
	}{
		{rest.ImpersonationConfig{UserName: "eve"}, `users "eve" is forbidden: User "bob" cannot impersonate resource "users" in API group "" at the cluster scope`},
		{rest.ImpersonationConfig{UserName: "ann", Groups: []string{"system:masters"}}, `groups "system:masters" is forbidden: User "bob" cannot impersonate resource "groups" in API group "" at the cluster scope`},
		{rest.ImpersonationConfig{UserName: "ann", UID: "2"}, `uids.authentication.k8s.io "2" is forbidden: User "bob" cannot impersonate resource "uids" in API group "authentication.k8s.io" at the cluster scope`},
		{rest.ImpersonationConfig{UserName: "ann", Extra: map[string][]string{"scopes": {"rw"}}}, `userextras.authentication.k8s.io "rw" is forbidden: User "bob" cannot impersonate resource "userextras/scopes" in API group "authentication.k8s.io" at the cluster scope`},
	} {
		_, err := who(c.i)
		refused(t, err, c.want)
	}
	code, _, body := w.raw("GET", "/api", "", "Authorization", "Bearer "+w.token("default", 600), "Impersonate-Group", "g")
	if code != 400 || !strings.Contains(body, `requested \u0026user.DefaultInfo{Name:\"\", UID:\"\", Groups:[]string{\"g\"}, Extra:map[string][]string(nil)} without impersonating a user name`) {
		t.Errorf("%d %s", code, body)
	}
}

func TestReviews(t *testing.T) {
	w := newWorld(t)
	review := func(token string, audiences ...string) authenticationv1.TokenReviewStatus {
		r, err := w.admin.AuthenticationV1().TokenReviews().Create(w.ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}}, metav1.CreateOptions{})
		w.must(err)
		return r.Status
	}
	if s := review("nonsense"); s.Authenticated || s.Error != "invalid bearer token" {
		t.Errorf("%+v", s)
	}
	tok := w.token("default", 600, "vault")
	if s := review(tok); s.Authenticated || !strings.Contains(s.Error, `token audiences ["vault"] is invalid for the target audiences`) {
		t.Errorf("another's audience: %+v", s)
	}
	s := review(tok, "vault", "x")
	if !s.Authenticated || strings.Join(s.Audiences, ",") != "vault" || s.User.Username != "system:serviceaccount:default:default" ||
		strings.Join(s.User.Groups, " ") != "system:serviceaccounts system:serviceaccounts:default system:authenticated" {
		t.Errorf("%+v", s)
	}
	rules, err := w.node("n").AuthorizationV1().SelfSubjectRulesReviews().Create(w.ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}, metav1.CreateOptions{})
	w.must(err)
	if !rules.Status.Incomplete || rules.Status.EvaluationError != "node authorizer does not support user rule resolution" {
		t.Errorf("%+v", rules.Status)
	}
	_, err = w.admin.AuthorizationV1().SubjectAccessReviews().Create(w.ctx, &authorizationv1.SubjectAccessReview{}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Error(err)
	}
}

func TestTokenRequest(t *testing.T) {
	w := newWorld(t)
	ask := func(sa string, change func(*authenticationv1.TokenRequest)) error {
		r := &authenticationv1.TokenRequest{}
		change(r)
		_, err := w.admin.CoreV1().ServiceAccounts("default").CreateToken(w.ctx, sa, r, metav1.CreateOptions{})
		return err
	}
	seconds := func(n int64) func(*authenticationv1.TokenRequest) {
		return func(r *authenticationv1.TokenRequest) { r.Spec.ExpirationSeconds = &n }
	}
	ref := func(b authenticationv1.BoundObjectReference) func(*authenticationv1.TokenRequest) {
		return func(r *authenticationv1.TokenRequest) { r.Spec.BoundObjectRef = &b }
	}
	w.account("default", "robot")
	w.pod("p", "n")
	refused(t, ask("default", seconds(5)), `TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes`)
	refused(t, ask("default", seconds(1<<32+1)), `may not specify a duration larger than 2^32 seconds`)
	w.must(ask("default", seconds(1<<32)))
	refused(t, ask("nosuch", seconds(600)), `serviceaccounts "nosuch" not found`)
	refused(t, ask("default", ref(authenticationv1.BoundObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "x"})), "cannot bind token to object of type apps/v1, Kind=Deployment")
	refused(t, ask("default", ref(authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "x"})), `pods "x" not found`)
	refused(t, ask("robot", ref(authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p"})), `cannot bind token for serviceaccount "robot" to pod running with different serviceaccount name.`)
	refused(t, ask("default", ref(authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "1"})), `Operation cannot be fulfilled on Pod "p": the UID in the bound object reference (1) does not match the UID in record`)
	refused(t, ask("default", func(r *authenticationv1.TokenRequest) { r.Name = "other" }), `TokenRequest.authentication.k8s.io "default" is invalid: metadata.name: Invalid value: "other": must match the service account name if specified`)
	refused(t, ask("default", func(r *authenticationv1.TokenRequest) { r.UID = "123" }), `Operation cannot be fulfilled on TokenRequest.authentication.k8s.io "default": the UID in the token request (123) does not match the UID of the service account`)
}
