package apiserver_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	admissionreviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/admission/plugin"
	"knarr/internal/apitest"
)

// withPlugins is a world whose server also runs those plugins, with that
// configuration.
func withPlugins(t *testing.T, config string, plugins ...string) *world {
	t.Helper()
	file := ""
	if config != "" {
		file = filepath.Join(t.TempDir(), "admission.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	settings, err := plugin.Load(file, plugins, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, _ := apitest.New(t, func(c *apiserver.Config) { c.EnableAdmission, c.Admission = plugins, settings })
	w := &world{Server: s, t: t, ctx: t.Context(), admin: s.Client(t)}
	w.account("default", "default")
	return w
}

// The words are those that upstream's kube-apiserver v1.36.3 answers with.
func TestImagePolicyWebhook(t *testing.T) {
	var asked atomic.Int32
	var down atomic.Bool
	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if down.Load() {
			http.Error(rw, "", http.StatusTeapot)
			return
		}
		var review imagepolicyv1alpha1.ImageReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Kind != "ImageReview" || r.URL.Path != "/judge" || r.Header.Get("Authorization") != "Bearer key" {
			t.Errorf("asked %s with %+v, %v", r.URL, review, err)
		}
		review.Status.Allowed = true
		for _, c := range review.Spec.Containers {
			if strings.HasPrefix(c.Image, "bad") {
				review.Status = imagepolicyv1alpha1.ImageReviewStatus{Reason: review.Spec.Annotations["why.image-policy.k8s.io/reason"]}
			}
		}
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(review)
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: '%s/judge', insecure-skip-tls-verify: true}}]\nusers: [{name: u, user: {token: key}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	config := func(allow bool) string {
		return fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: ImagePolicyWebhook\n  configuration: {imagePolicy: {kubeConfigFile: %s, denyTTL: -1, retryBackoff: 1, defaultAllow: %t}}\n", kubeconfig, allow)
	}
	w := withPlugins(t, config(false), "ImagePolicyWebhook")
	try := func(w *world, name, image, why string) error {
		p := podNamed(name, "")
		p.Spec.Containers[0].Image = image
		p.Annotations = map[string]string{"other": "x"}
		if why != "" {
			p.Annotations["why.image-policy.k8s.io/reason"] = why
		}
		_, err := w.admin.CoreV1().Pods("default").Create(w.ctx, p, metav1.CreateOptions{})
		return err
	}
	w.must(try(w, "a", "good", ""))
	w.must(try(w, "b", "good", ""))
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times about the same", n)
	}
	refused(t, try(w, "c", "bad", ""), `pods "c" is forbidden: one or more images rejected by webhook backend`)
	refused(t, try(w, "c", "bad", "it is old"), `pods "c" is forbidden: image policy webhook backend denied one or more images: it is old`)
	if n := asked.Load(); n != 3 {
		t.Errorf("asked %d times", n)
	}
	p, err := w.admin.CoreV1().Pods("default").Get(w.ctx, "a", metav1.GetOptions{})
	w.must(err)
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Image: "bad"}}}
	_, err = w.admin.CoreV1().Pods("default").UpdateEphemeralContainers(w.ctx, "a", p, metav1.UpdateOptions{})
	refused(t, err, `pods "a" is forbidden: one or more images rejected by webhook backend`)

	down.Store(true)
	refused(t, try(w, "d", "new", ""), `pods "d" is forbidden: the server responded with the status code 418 but did not return more information`)
	w = withPlugins(t, config(true), "ImagePolicyWebhook")
	w.must(try(w, "d", "new", ""))
}

func TestNamespaceAutoProvision(t *testing.T) {
	w := withPlugins(t, "", "NamespaceAutoProvision")
	create := func(namespace string, dry ...string) error {
		_, err := w.admin.CoreV1().ConfigMaps(namespace).Create(w.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{DryRun: dry})
		return err
	}
	refused(t, create("new", metav1.DryRunAll), `namespaces "new" not found`)
	w.must(create("new"))
	ns, err := w.admin.CoreV1().Namespaces().Get(w.ctx, "new", metav1.GetOptions{})
	w.must(err)
	if ns.Status.Phase != corev1.NamespaceActive || len(ns.Spec.Finalizers) != 1 || ns.Labels[corev1.LabelMetadataName] != "new" || ns.UID == "" {
		t.Errorf("%+v", ns)
	}
	if err := create("No_Name"); !apierrors.IsForbidden(err) {
		t.Error(err)
	}
}

func TestAlwaysDeny(t *testing.T) {
	s, _ := apitest.New(t, func(c *apiserver.Config) { c.EnableAdmission = []string{"AlwaysDeny"} })
	_, err := s.Client(t).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	refused(t, err, `configmaps "a" is forbidden: admission control is denying all modifications`)
}

// A bucket that was pushed out comes back full.
func TestEventBucketsAreBounded(t *testing.T) {
	w := withPlugins(t, "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: EventRateLimit\n  configuration: {apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration, limits: [{type: User, qps: 1, burst: 1, cacheSize: 1}]}\n", "EventRateLimit")
	n := 0
	write := func(user string) error {
		n++
		_, err := w.as(user, "system:masters").CoreV1().Events("default").Create(w.ctx, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("e", n)},
			InvolvedObject: corev1.ObjectReference{Namespace: "default"}}, metav1.CreateOptions{})
		return err
	}
	w.must(write("a"))
	w.must(write("b"))
	w.must(write("a"))
}

// The defaults of tolerations are flags.
func TestTolerationSeconds(t *testing.T) {
	s, _ := apitest.New(t, func(c *apiserver.Config) {
		c.Admission.NotReadySeconds, c.Admission.UnreachableSeconds = new(int64(7)), new(int64(8))
	})
	w := &world{Server: s, t: t, ctx: t.Context(), admin: s.Client(t)}
	w.account("default", "default")
	got := w.pod("a", "").Spec.Tolerations
	if len(got) != 2 || *got[0].TolerationSeconds != 7 || *got[1].TolerationSeconds != 8 {
		t.Errorf("%+v", got)
	}
}

// A webhook sees who calls, if the configuration says who is to be shown.
func TestWebhookCredentials(t *testing.T) {
	var seen atomic.Pointer[string]
	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		seen.Store(new(r.Header.Get("Authorization")))
		var review admissionreviewv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		review.Response = &admissionreviewv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(review)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "https://")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\nusers:\n- {name: '"+host+"', user: {token: key}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := withPlugins(t, "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: ValidatingAdmissionWebhook\n  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: "+kubeconfig+"}\n")
	_, err := w.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(w.ctx, &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "w"}, Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "w.example.com", SideEffects: new(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionv1.WebhookClientConfig{URL: &server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
			Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{"CREATE"},
				Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}},
		}}}, metav1.CreateOptions{})
	w.must(err)
	w.must(w.Cache().Sync(w.ctx))
	_, err = w.admin.CoreV1().ConfigMaps("default").Create(w.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	w.must(err)
	if got := seen.Load(); got == nil || *got != "Bearer key" {
		t.Errorf("shown %v", got)
	}
}
