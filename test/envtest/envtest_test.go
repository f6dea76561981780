// Package envtest runs what authors of operators run, controller-runtime's
// envtest, on knarr under the names of the programs it starts. It reads
// bin/knarr, or with $KNARR_UPSTREAM upstream's programs in that directory,
// and writes into directories of its own.
package envtest

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// assets is a directory with programs named as envtest wants them.
func assets(t *testing.T) string {
	if dir := os.Getenv("KNARR_UPSTREAM"); dir != "" {
		return dir
	}
	knarr, err := filepath.Abs("../../bin/knarr")
	must(t, err)
	if _, err := os.Stat(knarr); err != nil {
		t.Fatal("bin/knarr is not built; run make build")
	}
	dir := t.TempDir()
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		must(t, os.Symlink(knarr, filepath.Join(dir, name)))
	}
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var ship = schema.GroupVersionKind{Group: "envtest.example.com", Version: "v1", Kind: "Ship"}

func newShip(name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(ship)
	u.SetNamespace("default")
	u.SetName(name)
	return u
}

func definition() *apiextensionsv1.CustomResourceDefinition {
	keep := true
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "ships.envtest.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: ship.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "ships", Singular: "ship", Kind: ship.Kind, ListKind: "ShipList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: ship.Version, Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: &keep,
				}},
			}},
		},
	}
}

// hook refuses ships without a captain.
func hook() *admissionv1.ValidatingWebhookConfiguration {
	path, fail, none := "/ships", admissionv1.Fail, admissionv1.SideEffectClassNone
	return &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "ships"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "ships.envtest.example.com", FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "default", Name: "ships", Path: &path}},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{ship.Group}, APIVersions: []string{ship.Version}, Resources: []string{"ships"}},
			}},
		}},
	}
}

// TestEnvironment: start, install, reconcile, refuse, be somebody else, use the
// kubectl, stop; and again, for envtest's users start one after the other.
func TestEnvironment(t *testing.T) {
	dir := assets(t)
	for round := range 2 {
		t.Run(fmt.Sprint(round), func(t *testing.T) { environment(t, dir) })
	}
}

func environment(t *testing.T, dir string) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	env := &envtest.Environment{
		BinaryAssetsDirectory:    dir,
		AttachControlPlaneOutput: testing.Verbose() && os.Getenv("KNARR_ENVTEST_LOG") != "",
		CRDs:                     []*apiextensionsv1.CustomResourceDefinition{definition()},
		WebhookInstallOptions:    envtest.WebhookInstallOptions{ValidatingWebhooks: []*admissionv1.ValidatingWebhookConfiguration{hook()}},
	}
	begin := time.Now()
	cfg, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("started, with a custom kind installed, in %d ms", time.Since(begin).Milliseconds())
	defer func() {
		begin := time.Now()
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
		t.Logf("stopped in %d ms", time.Since(begin).Milliseconds())
	}()
	stop := manage(t, ctx, env, cfg)
	defer stop()
	c, err := client.New(cfg, client.Options{})
	must(t, err)

	if err := c.Create(ctx, newShip("adrift")); !apierrors.IsForbidden(err) {
		t.Errorf("a ship without a captain: %v", err)
	}
	s := newShip("knarr")
	s.Object["spec"] = map[string]any{"captain": "Bjarni"}
	must(t, c.Create(ctx, s))
	until(t, ctx, func() bool {
		must(t, c.Get(ctx, client.ObjectKeyFromObject(s), s))
		sails, _, _ := unstructured.NestedBool(s.Object, "status", "sails")
		return sails
	})
	var log corev1.ConfigMap
	must(t, c.Get(ctx, client.ObjectKeyFromObject(s), &log))
	if len(log.OwnerReferences) != 1 || log.Data["captain"] != "Bjarni" {
		t.Errorf("the reconciler's object: %v", log)
	}

	// What envtest's users do besides.
	jane, err := env.AddUser(envtest.User{Name: "jane", Groups: []string{"developers"}}, nil)
	must(t, err)
	hers, err := client.New(jane.Config(), client.Options{})
	must(t, err)
	if err := hers.Get(ctx, client.ObjectKeyFromObject(s), &log); !apierrors.IsForbidden(err) {
		t.Errorf("jane reads: %v", err)
	}
	must(t, c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "sea"}}))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "no-account-needed", Namespace: "sea"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}
	must(t, c.Create(ctx, pod))
	if pod.Spec.ServiceAccountName != "" {
		t.Errorf("the plugin ServiceAccount ran: %q", pod.Spec.ServiceAccountName)
	}
	must(t, envtest.UninstallCRDs(cfg, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{definition()}}))
	until(t, ctx, func() bool {
		return apierrors.IsNotFound(c.Get(ctx, client.ObjectKey{Name: "ships.envtest.example.com"}, &apiextensionsv1.CustomResourceDefinition{}))
	})
}

// manage runs a manager with a reconciler of ships and the webhook they pass.
func manage(t *testing.T, ctx context.Context, env *envtest.Environment, cfg *rest.Config) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	o := env.WebhookInstallOptions
	manager, err := ctrl.NewManager(cfg, ctrl.Options{
		LeaderElection: true, LeaderElectionID: "ships", LeaderElectionNamespace: "default", LeaderElectionReleaseOnCancel: true,
		Metrics:       server.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: o.LocalServingHost, Port: o.LocalServingPort, CertDir: o.LocalServingCertDir}),
	})
	must(t, err)
	manager.GetWebhookServer().Register("/ships", &webhook.Admission{Handler: admission.HandlerFunc(captained)})
	c := manager.GetClient()
	must(t, ctrl.NewControllerManagedBy(manager).Named(t.Name()).For(newShip("")).Owns(&corev1.ConfigMap{}).Complete(
		reconciler(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
			s := newShip(req.Name)
			if err := c.Get(ctx, req.NamespacedName, s); err != nil {
				return ctrl.Result{}, client.IgnoreNotFound(err)
			}
			captain, _, _ := unstructured.NestedString(s.Object, "spec", "captain")
			log := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: s.GetName(), Namespace: s.GetNamespace()}, Data: map[string]string{"captain": captain}}
			if err := ctrl.SetControllerReference(s, log, manager.GetScheme()); err != nil {
				return ctrl.Result{}, err
			}
			if err := c.Create(ctx, log); err != nil && !apierrors.IsAlreadyExists(err) {
				return ctrl.Result{}, err
			}
			s.Object["status"] = map[string]any{"sails": true}
			return ctrl.Result{}, c.Status().Update(ctx, s)
		})))
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	until(t, ctx, func() bool { return manager.GetWebhookServer().StartedChecker()(nil) == nil })
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

type reconciler func(context.Context, ctrl.Request) (ctrl.Result, error)

func (r reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return r(ctx, req)
}

func captained(_ context.Context, req admission.Request) admission.Response {
	var s unstructured.Unstructured
	if err := s.UnmarshalJSON(req.Object.Raw); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if captain, _, _ := unstructured.NestedString(s.Object, "spec", "captain"); captain == "" {
		return admission.Denied("a ship needs a captain")
	}
	return admission.Allowed("")
}

// until blocks until done.
func until(t *testing.T, ctx context.Context, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
	}
}
