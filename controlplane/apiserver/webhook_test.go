package apiserver_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	reviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"knarr/controlplane/apiserver"
	"knarr/internal/memnet"
)

// serving makes a certificate for names, its own authority.
func serving(t testing.TB, names ...string) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: names, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Unix(0, 0), NotAfter: time.Now().AddDate(50, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// hooked is a server, in fake time, beside a webhook server.
type hooked struct {
	*world
	ca   []byte
	mu   sync.Mutex
	seen []*reviewv1.AdmissionRequest
	path []string
}

// answer is what the webhook server says under a path, given the request.
type answer func(q *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse

func allow(*reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse {
	return &reviewv1.AdmissionResponse{Allowed: true}
}

func patched(ops string) answer {
	return func(*reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse {
		return &reviewv1.AdmissionResponse{Allowed: true, Patch: []byte(ops), PatchType: new(reviewv1.PatchTypeJSONPatch)}
	}
}

func denied(s *metav1.Status) answer {
	return func(*reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse {
		return &reviewv1.AdmissionResponse{Result: s}
	}
}

// withHooks runs f beside a webhook server with these answers.
func withHooks(t *testing.T, answers map[string]answer, f func(h *hooked)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &hooked{}
		cert, ca := serving(t, "hook.example.com", "hook.default.svc")
		h.ca = ca
		l := memnet.Listen()
		srv := &http.Server{
			Handler: h.serve(answers), TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}},
			ErrorLog: log.New(discard{}, "", 0),
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = srv.ServeTLS(l, "", "") })
		w, done := newBubble(t, func(c *apiserver.Config) { c.Dial = l.Dial })
		h.world = w
		f(h)
		done()
		l.Close()
		srv.Close()
		wg.Wait()
	})
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func (h *hooked) serve(answers map[string]answer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review reviewv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		h.mu.Lock()
		h.seen, h.path = append(h.seen, review.Request), append(h.path, r.URL.Path)
		h.mu.Unlock()
		switch r.URL.Path {
		case "/broken":
			http.Error(w, "out of order", http.StatusInternalServerError)
			return
		case "/elsewhere":
			http.Redirect(w, r, "/allow", http.StatusTemporaryRedirect)
			return
		case "/slow":
			select {
			case <-time.After(time.Minute):
			case <-r.Context().Done():
			}
			return
		case "/large":
			fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","x":%q`, strings.Repeat("x", 9<<20))
			return
		}
		review.Response = answers[r.URL.Path](review.Request)
		if review.Response != nil && review.Response.UID == "" {
			review.Response.UID = review.Request.UID
		}
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review)
	})
}

// took gives what the webhook server has seen, as "path operation resource/sub".
func (h *hooked) took() (out []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, q := range h.seen {
		what := q.Resource.Resource
		if q.SubResource != "" {
			what += "/" + q.SubResource
		}
		out = append(out, fmt.Sprintf("%s %s %s %s", h.path[i], q.Operation, what, q.Kind.Kind))
	}
	h.seen, h.path = nil, nil
	return out
}

func anyRule(resources ...string) []admissionv1.RuleWithOperations {
	return []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{"*"},
		Rule: admissionv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: resources}}}
}

// mutating is a webhook under path with the rest as change says.
func (h *hooked) mutating(path string, change ...func(*admissionv1.MutatingWebhook)) admissionv1.MutatingWebhook {
	m := admissionv1.MutatingWebhook{
		Name: strings.Trim(path, "/") + ".example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: new(admissionv1.SideEffectClassNone),
		ClientConfig: admissionv1.WebhookClientConfig{URL: new("https://hook.example.com" + path), CABundle: h.ca}, Rules: anyRule("configmaps"),
	}
	for _, c := range change {
		c(&m)
	}
	return m
}

func (h *hooked) mutate(name string, hooks ...admissionv1.MutatingWebhook) {
	h.t.Helper()
	_, err := h.admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(h.ctx,
		&admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: hooks}, metav1.CreateOptions{})
	h.must(err)
}

// validate makes the same a validating configuration.
func (h *hooked) validate(name string, hooks ...admissionv1.MutatingWebhook) {
	h.t.Helper()
	c := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, m := range hooks {
		c.Webhooks = append(c.Webhooks, admissionv1.ValidatingWebhook{Name: m.Name, ClientConfig: m.ClientConfig, Rules: m.Rules,
			FailurePolicy: m.FailurePolicy, MatchPolicy: m.MatchPolicy, NamespaceSelector: m.NamespaceSelector, ObjectSelector: m.ObjectSelector,
			SideEffects: m.SideEffects, TimeoutSeconds: m.TimeoutSeconds, AdmissionReviewVersions: m.AdmissionReviewVersions, MatchConditions: m.MatchConditions})
	}
	_, err := h.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(h.ctx, c, metav1.CreateOptions{})
	h.must(err)
}

func (h *hooked) unvalidate(name string) {
	h.t.Helper()
	h.must(h.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(h.ctx, name, metav1.DeleteOptions{}))
}

func (h *hooked) configMap(name string, opts metav1.CreateOptions) (*corev1.ConfigMap, error) {
	return h.admin.CoreV1().ConfigMaps("default").Create(h.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}, Data: map[string]string{"x": "y"}}, opts)
}

func TestMutatingWebhooks(t *testing.T) {
	add := func(key string) answer {
		return func(q *reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse {
			var cm corev1.ConfigMap
			if err := json.Unmarshal(q.Object.Raw, &cm); err != nil {
				return denied(&metav1.Status{Message: err.Error()})(q)
			}
			// The number of keys tells the order.
			return patched(fmt.Sprintf(`[{"op":"add","path":"/data/%s","value":"%d"}]`, key, len(cm.Data)))(q)
		}
	}
	withHooks(t, map[string]answer{"/one": add("one"), "/two": add("two")}, func(h *hooked) {
		h.mutate("b", h.mutating("/two"))
		h.mutate("a", h.mutating("/one"))
		cm, err := h.configMap("a", metav1.CreateOptions{})
		h.must(err)
		if cm.Data["one"] != "1" || cm.Data["two"] != "2" {
			t.Errorf("data %v", cm.Data)
		}
		h.mu.Lock()
		q := h.seen[0]
		h.mu.Unlock()
		if q.Name != "a" || q.Namespace != "default" || q.UserInfo.Username != "system:admin" || *q.DryRun || q.RequestKind.Kind != "ConfigMap" ||
			!strings.Contains(string(q.Object.Raw), `"kind":"ConfigMap","apiVersion":"v1"`) || string(q.OldObject.Raw) != "null" && q.OldObject.Raw != nil ||
			!strings.Contains(string(q.Options.Raw), `"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1"`) {
			t.Errorf("request %+v\nobject %s\nold %s\noptions %s", q, q.Object.Raw, q.OldObject.Raw, q.Options.Raw)
		}
		h.took()

		// A change by a later one shows the object to the earlier once more.
		h.must(h.admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(h.ctx, "a", metav1.DeleteOptions{}))
		h.mutate("a", h.mutating("/one", func(m *admissionv1.MutatingWebhook) {
			m.ReinvocationPolicy = new(admissionv1.IfNeededReinvocationPolicy)
		}))
		cm, err = h.configMap("b", metav1.CreateOptions{})
		h.must(err)
		if got := h.took(); len(got) != 3 || cm.Data["one"] != "3" {
			t.Errorf("asked %v, data %v", got, cm.Data)
		}
		cm.Data = map[string]string{"z": "z"}
		cm, err = h.admin.CoreV1().ConfigMaps("default").Update(h.ctx, cm, metav1.UpdateOptions{})
		h.must(err)
		if cm.Data["two"] == "" || cm.Data["z"] != "z" {
			t.Errorf("data %v", cm.Data)
		}
		cm, err = h.admin.CoreV1().ConfigMaps("default").Patch(h.ctx, "b", types.ApplyPatchType,
			[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"},"data":{"p":"q"}}`), metav1.PatchOptions{FieldManager: "m"})
		h.must(err)
		if cm.Data["p"] != "q" || cm.Data["one"] == "" {
			t.Errorf("data %v", cm.Data)
		}
		h.mu.Lock()
		if q := h.seen[len(h.seen)-1]; q.Operation != reviewv1.Update || !strings.Contains(string(q.Options.Raw), `"kind":"UpdateOptions"`) {
			t.Errorf("a patch is shown as %s %s", q.Operation, q.Options.Raw)
		}
		h.mu.Unlock()
	})
}

// A webhook that spoils the managed fields changes nothing there.
func TestMutatedManagedFields(t *testing.T) {
	spoil := patched(`[{"op":"replace","path":"/metadata/managedFields","value":[{"manager":"x","operation":"Odd"}]}]`)
	withHooks(t, map[string]answer{"/spoil": spoil}, func(h *hooked) {
		h.mutate("a", h.mutating("/spoil"))
		cm, err := h.configMap("a", metav1.CreateOptions{})
		h.must(err)
		if len(cm.ManagedFields) != 1 || cm.ManagedFields[0].Operation != metav1.ManagedFieldsOperationUpdate {
			t.Errorf("%+v", cm.ManagedFields)
		}
	})
}

// What is said when a webhook refuses or fails, in upstream's words.
func TestWebhookRefusals(t *testing.T) {
	call := func(path, text string) string {
		return `Internal error occurred: failed calling webhook "` + strings.Trim(path, "/") + `.example.com": ` + text
	}
	cases := map[string]struct {
		answer answer
		change func(*admissionv1.MutatingWebhook)
		dryRun bool
		want   string
		code   int32
		reason metav1.StatusReason
	}{
		"/plain":   {denied(nil), nil, false, `admission webhook "plain.example.com" denied the request without explanation`, 400, ""},
		"/told":    {denied(&metav1.Status{Message: "no", Code: 418, Reason: "Tea"}), nil, false, `admission webhook "told.example.com" denied the request: no`, 418, "Tea"},
		"/reason":  {denied(&metav1.Status{Reason: "Tea", Code: 200}), nil, false, `admission webhook "reason.example.com" denied the request: Tea`, 400, "Tea"},
		"/broken":  {nil, nil, false, call("/broken", `failed to call webhook: an error on the server ("out of order") has prevented the request from succeeding`), 500, "InternalError"},
		"/slow":    {nil, func(m *admissionv1.MutatingWebhook) { m.TimeoutSeconds = new(int32(2)) }, false, call("/slow", `failed to call webhook: Post "https://hook.example.com/slow?timeout=2s": context deadline exceeded`), 500, "InternalError"},
		"/absent":  {func(*reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse { return nil }, nil, false, call("/absent", "received invalid webhook response: webhook response was absent"), 500, "InternalError"},
		"/stamped": {patched("[]"), nil, false, call("/stamped", "received invalid webhook response: validating webhook may not return response.patch"), 500, "InternalError"},
		"/large":   {nil, nil, false, "the answer is larger than 8388608 bytes", 500, "InternalError"},
		"/mistaken": {func(*reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse {
			return &reviewv1.AdmissionResponse{UID: "other", Allowed: true}
		}, nil, false, call("/mistaken", `received invalid webhook response: expected response.uid="`), 500, "InternalError"},
		"/ghost": {allow, func(m *admissionv1.MutatingWebhook) {
			m.ClientConfig = admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "default", Name: "ghost"}}
		}, false, call("/ghost", `failed to call webhook: Post "https://ghost.default.svc:443/?timeout=10s": service "ghost" not found`), 500, "InternalError"},
		"/stranger": {allow, func(m *admissionv1.MutatingWebhook) { m.ClientConfig.CABundle = nil }, false, "tls: failed to verify certificate: x509: certificate signed by unknown authority", 500, "InternalError"},
	}
	answers := map[string]answer{"/allow": allow}
	for path, c := range cases {
		answers[path] = c.answer
	}
	withHooks(t, answers, func(h *hooked) {
		for path, c := range cases {
			change := func(m *admissionv1.MutatingWebhook) {}
			if c.change != nil {
				change = c.change
			}
			h.validate("v", h.mutating(path, change))
			_, err := h.configMap("x", metav1.CreateOptions{})
			status, ok := err.(apierrors.APIStatus)
			if !ok || !strings.Contains(err.Error(), c.want) || status.Status().Code != c.code || status.Status().Reason != c.reason {
				t.Errorf("%s: %v\n%+v\nwant %d %s %s", path, err, status, c.code, c.reason, c.want)
			}
			h.unvalidate("v")
			// Failures can be ignored, refusals cannot.
			h.validate("v", h.mutating(path, change, func(m *admissionv1.MutatingWebhook) { m.FailurePolicy = new(admissionv1.Ignore) }))
			_, err = h.configMap("x", metav1.CreateOptions{})
			if refusal := strings.Contains(c.want, "denied the request"); refusal != (err != nil) {
				t.Errorf("%s: ignoring failures: %v", path, err)
			}
			if err == nil {
				h.must(h.admin.CoreV1().ConfigMaps("default").Delete(h.ctx, "x", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
			}
			h.unvalidate("v")
		}
		h.took()
		h.validate("v", h.mutating("/elsewhere"))
		if _, err := h.configMap("x", metav1.CreateOptions{}); err == nil {
			t.Error("a redirect was taken for an answer")
		}
		if got := h.took(); len(got) != 1 {
			t.Errorf("a redirect was followed: %v", got)
		}
	})
}

// Every way to write is shown to webhooks, and what concerns webhooks
// themselves is not.
func TestWebhooksSeeEveryWrite(t *testing.T) {
	withHooks(t, map[string]answer{"/see": allow}, func(h *hooked) {
		pod, err := h.admin.CoreV1().Pods("default").Create(h.ctx, podNamed("p", "n"), metav1.CreateOptions{})
		h.must(err)
		replicas := int32(1)
		labels := map[string]string{"a": "b"}
		_, err = h.admin.AppsV1().Deployments("default").Create(h.ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}, metav1.CreateOptions{})
		h.must(err)
		h.validate("v", h.mutating("/see", func(m *admissionv1.MutatingWebhook) { m.Rules = anyRule("*/*") }))
		check := func(want ...string) {
			t.Helper()
			if got := h.took(); !slices.Equal(got, want) {
				t.Errorf("saw %q\nwant %q", got, want)
			}
		}
		pod.Status.Phase = corev1.PodRunning
		_, err = h.admin.CoreV1().Pods("default").UpdateStatus(h.ctx, pod, metav1.UpdateOptions{})
		h.must(err)
		check("/see UPDATE pods/status Pod")
		scale, err := h.admin.AppsV1().Deployments("default").UpdateScale(h.ctx, "d", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: autoscalingv1.ScaleSpec{Replicas: 3}}, metav1.UpdateOptions{})
		h.must(err)
		if scale.Spec.Replicas != 3 {
			t.Errorf("%+v", scale.Spec)
		}
		check("/see UPDATE deployments/scale Scale")
		// exec, refused or not, is asked about before the pod is looked for.
		err = h.admin.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name("p").SubResource("exec").
			VersionedParams(&corev1.PodExecOptions{Command: []string{"sh"}}, scheme.ParameterCodec).Do(h.ctx).Error()
		if err == nil {
			t.Error("exec without a node")
		}
		check("/see CONNECT pods/exec PodExecOptions")
		h.must(h.admin.CoreV1().Pods("default").EvictV1(h.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}}))
		check("/see CREATE pods/eviction Eviction")
		h.must(h.admin.CoreV1().Pods("default").Delete(h.ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
		check("/see DELETE pods Pod")
		h.must(h.admin.AppsV1().Deployments("default").DeleteCollection(h.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		check("/see DELETE deployments Deployment")
		h.unvalidate("v")
		h.mutate("v", h.mutating("/see", func(m *admissionv1.MutatingWebhook) { m.Rules = anyRule("*/*") }))
		h.validate("w")
		check()
	})
}

func TestWebhookMatching(t *testing.T) {
	cases := map[string]struct {
		change func(*admissionv1.MutatingWebhook)
		asked  bool
	}{
		"everything":        {nil, true},
		"another resource":  {func(m *admissionv1.MutatingWebhook) { m.Rules = anyRule("secrets") }, false},
		"another operation": {func(m *admissionv1.MutatingWebhook) { m.Rules[0].Operations = []admissionv1.OperationType{"DELETE"} }, false},
		"another group":     {func(m *admissionv1.MutatingWebhook) { m.Rules[0].APIGroups = []string{"apps"} }, false},
		"cluster scope":     {func(m *admissionv1.MutatingWebhook) { m.Rules[0].Scope = new(admissionv1.ClusterScope) }, false},
		"namespaced":        {func(m *admissionv1.MutatingWebhook) { m.Rules[0].Scope = new(admissionv1.NamespacedScope) }, true},
		"namespace has the label": {func(m *admissionv1.MutatingWebhook) {
			m.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "default"}}
		}, true},
		"namespace lacks the label": {func(m *admissionv1.MutatingWebhook) {
			m.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		}, false},
		"object lacks the label": {func(m *admissionv1.MutatingWebhook) {
			m.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		}, false},
		"condition holds": {func(m *admissionv1.MutatingWebhook) {
			m.MatchConditions = []admissionv1.MatchCondition{{Name: "a", Expression: "object.data.x == 'y' && request.userInfo.username == 'system:admin'"}}
		}, true},
		"one condition is false": {func(m *admissionv1.MutatingWebhook) {
			m.MatchConditions = []admissionv1.MatchCondition{{Name: "a", Expression: "object.data.nosuch == 'y'"}, {Name: "b", Expression: "request.operation == 'DELETE'"}}
		}, false},
		"may": {func(m *admissionv1.MutatingWebhook) {
			m.MatchConditions = []admissionv1.MatchCondition{{Name: "a", Expression: "authorizer.group('').resource('pods').namespace('default').check('get').allowed()"}}
		}, true},
	}
	withHooks(t, map[string]answer{"/see": allow}, func(h *hooked) {
		for name, c := range cases {
			if c.change == nil {
				c.change = func(*admissionv1.MutatingWebhook) {}
			}
			h.validate("v", h.mutating("/see", c.change))
			_, err := h.configMap("x", metav1.CreateOptions{DryRun: []string{"All"}})
			if got := h.took(); err != nil || (len(got) == 1) != c.asked {
				t.Errorf("%s: asked %v, %v", name, got, err)
			}
			h.unvalidate("v")
		}
		h.validate("v", h.mutating("/see", func(m *admissionv1.MutatingWebhook) {
			m.MatchConditions = []admissionv1.MatchCondition{{Name: "a", Expression: "object.data.nosuch == 'y'"}}
		}))
		_, err := h.configMap("x", metav1.CreateOptions{})
		refused(t, err, `configmaps "x" is forbidden: expression 'object.data.nosuch == 'y'' resulted in error: no such key: nosuch`)
		h.unvalidate("v")
		// An event is one in both its groups.
		h.validate("v", h.mutating("/see", func(m *admissionv1.MutatingWebhook) {
			m.Rules[0].APIGroups, m.Rules[0].Resources = []string{"events.k8s.io"}, []string{"events"}
		}))
		_, err = h.admin.CoreV1().Events("default").Create(h.ctx, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}, Reason: "R", Message: "note",
			InvolvedObject: corev1.ObjectReference{Namespace: "default"}}, metav1.CreateOptions{})
		h.must(err)
		h.mu.Lock()
		q := h.seen[0]
		h.mu.Unlock()
		var e eventsv1.Event
		h.must(json.Unmarshal(q.Object.Raw, &e))
		if q.Kind.Group != "events.k8s.io" || q.RequestKind.Group != "" || e.Note != "note" || e.APIVersion != "events.k8s.io/v1" {
			t.Errorf("%+v %s", q, q.Object.Raw)
		}
	})
}

// A Service leads to its ready endpoints, under its own name.
func TestWebhookByService(t *testing.T) {
	withHooks(t, map[string]answer{"/see": allow}, func(h *hooked) {
		_, err := h.admin.CoreV1().Services("default").Create(h.ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "hook"},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 8443}}}}, metav1.CreateOptions{})
		h.must(err)
		h.validate("v", h.mutating("/see", func(m *admissionv1.MutatingWebhook) {
			m.ClientConfig = admissionv1.WebhookClientConfig{CABundle: h.ca, Service: &admissionv1.ServiceReference{Namespace: "default", Name: "hook", Path: new("/see"), Port: new(int32(8443))}}
		}))
		_, err = h.configMap("x", metav1.CreateOptions{})
		refused(t, err, `failed calling webhook "see.example.com": failed to call webhook: Post "https://hook.default.svc:8443/see?timeout=10s": no endpoints available for service "hook"`)
		_, err = h.admin.DiscoveryV1().EndpointSlices("default").Create(h.ctx, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "hook", Labels: map[string]string{discoveryv1.LabelServiceName: "hook"}}, AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.2.3"}}}, Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(443))}}}, metav1.CreateOptions{})
		h.must(err)
		_, err = h.configMap("x", metav1.CreateOptions{})
		h.must(err)
		if got := h.took(); len(got) != 1 {
			t.Errorf("asked %v", got)
		}
	})
}

func TestWebhookDryRunAndWarnings(t *testing.T) {
	warn := func(*reviewv1.AdmissionRequest) *reviewv1.AdmissionResponse {
		return &reviewv1.AdmissionResponse{Allowed: true, Warnings: []string{"careful"}}
	}
	withHooks(t, map[string]answer{"/warn": warn}, func(h *hooked) {
		h.validate("v", h.mutating("/warn"))
		_, err := h.configMap("x", metav1.CreateOptions{DryRun: []string{"All"}})
		h.must(err)
		h.mu.Lock()
		if !*h.seen[0].DryRun {
			t.Error("the webhook was not told of the dry run")
		}
		h.mu.Unlock()
		var got warnings
		cfg := h.Config()
		cfg.WarningHandler = &got
		client, err := kubernetes.NewForConfig(cfg)
		h.must(err)
		_, err = client.CoreV1().ConfigMaps("default").Create(h.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "w"}}, metav1.CreateOptions{DryRun: []string{"All"}})
		h.must(err)
		if !slices.Equal(got, warnings{"careful"}) {
			t.Errorf("warnings %q", got)
		}
	})
}

type warnings []string

func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }
