package endpoints

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/apiserver/watchcache"
)

// testKinds are a few kinds with just enough rules to show the handlers'.
var testKinds = []registry.Resource{
	&registry.Kind[*corev1.ConfigMap]{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Plural: "configmaps", Short: []string{"cm"},
	},
	&registry.Kind[*corev1.Namespace]{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Namespace"), Plural: "namespaces", Cluster: true, Short: []string{"ns"},
		Verbs: []string{"create", "delete", "get", "list", "patch", "update", "watch"},
		Sub:   []registry.Subresource[*corev1.Namespace]{{Name: "finalize", Verbs: []string{"update"}}},
	},
	&registry.Kind[*corev1.Pod]{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod"), Plural: "pods", Short: []string{"po"}, Categories: []string{"all"},
		Default: func(p *corev1.Pod) {
			if p.Spec.RestartPolicy == "" {
				p.Spec.RestartPolicy = corev1.RestartPolicyAlways
			}
		},
		Prepare: func(_ context.Context, p, old *corev1.Pod) {
			if old == nil {
				p.Generation, p.Status = 1, corev1.PodStatus{Phase: corev1.PodPending}
				return
			}
			p.Status = old.Status
		},
		Grace: func(p *corev1.Pod, o *metav1.DeleteOptions) int64 {
			if o.GracePeriodSeconds != nil {
				return *o.GracePeriodSeconds
			}
			if p.Spec.NodeName == "" {
				return 0
			}
			return 30
		},
		Fields: func(p *corev1.Pod) fields.Set {
			return fields.Set{"spec.nodeName": p.Spec.NodeName, "status.phase": string(p.Status.Phase)}
		},
		Sub: []registry.Subresource[*corev1.Pod]{
			{Name: "status", Verbs: []string{"get", "patch", "update"}, Prepare: func(_ context.Context, p, old *corev1.Pod) {
				p.Spec = old.Spec
			}},
			{Name: "binding", Kind: corev1.SchemeGroupVersion.WithKind("Binding"), Verbs: []string{"create"}},
			{Name: "log", Verbs: []string{"get"}},
		},
	},
	&registry.Kind[*corev1.Service]{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Service"), Plural: "services", Prefix: "services/specs",
		Sub: []registry.Subresource[*corev1.Service]{
			{Name: "status", Verbs: []string{"get", "patch", "update"}, Prepare: func(_ context.Context, s, old *corev1.Service) {
				s.Spec = old.Spec
			}},
		},
	},
	&registry.Kind[*appsv1.Deployment]{
		GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("Deployment"), Plural: "deployments", Short: []string{"deploy"},
		Prepare: func(_ context.Context, d, old *appsv1.Deployment) {
			if old == nil {
				d.Generation, d.Status = 1, appsv1.DeploymentStatus{}
				return
			}
			d.Status = old.Status
		},
		Sub: []registry.Subresource[*appsv1.Deployment]{
			{Name: "status", Verbs: []string{"get", "patch", "update"}, Prepare: func(_ context.Context, d, old *appsv1.Deployment) {
				d.Spec = old.Spec
			}},
			{Name: "scale", Kind: autoscalingv1.SchemeGroupVersion.WithKind("Scale"), Verbs: []string{"get", "patch", "update"},
				Scale: &registry.Scale[*appsv1.Deployment]{
					Get: func(d *appsv1.Deployment) *autoscalingv1.Scale {
						s := &autoscalingv1.Scale{}
						if d.Spec.Replicas != nil {
							s.Spec.Replicas = *d.Spec.Replicas
						}
						s.Status.Replicas = d.Status.Replicas
						return s
					},
					Set: func(d *appsv1.Deployment, n int32) { d.Spec.Replicas = &n },
				}},
		},
	},
}

// A world is a server on the memory store, with a client.
type world struct {
	t      testing.TB
	server *Server
	url    string
	client kubernetes.Interface
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	return newWorldOf(t, testKinds, change...)
}

func newWorldOf(t testing.TB, kinds []registry.Resource, change ...func(*Config)) *world {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	store := storage.NewMemory()
	cache := watchcache.New(store, kinds)
	done := make(chan error, 1)
	go func() { done <- cache.Run(ctx) }()
	<-cache.Ready()
	cfg := Config{Cache: cache, Resources: kinds}
	for _, f := range change {
		f(&cfg)
	}
	server, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(server)
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("cache: %v", err)
		}
		store.Close()
	})
	client, err := kubernetes.NewForConfig(&rest.Config{Host: web.URL, QPS: -1, UserAgent: "tester/1"})
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, server: server, url: web.URL, client: client}
}

// do sends one request and returns code, body and headers.
func (w *world) do(method, path, contentType, body string, headers ...string) (int, string, http.Header) {
	w.t.Helper()
	req, err := http.NewRequest(method, w.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("User-Agent", "tester/1")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(data), resp.Header
}
