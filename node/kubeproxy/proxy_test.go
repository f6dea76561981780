package kubeproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/apitest"
)

// A notebook is a dataplane that keeps the rules it is given.
type notebook struct {
	mu     sync.Mutex
	rules  map[cache.ObjectName]Rules
	writes []int // Services of each
	fail   error
}

func (n *notebook) Intact() error            { return nil }
func (n *notebook) Changed() <-chan struct{} { return nil }
func (n *notebook) Close() error             { return nil }
func (n *notebook) Apply(changes map[cache.ObjectName]Rules, all bool) (map[cache.ObjectName]error, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail != nil {
		return nil, n.fail
	}
	n.writes = append(n.writes, len(changes))
	if all {
		n.rules = map[cache.ObjectName]Rules{}
	}
	for name, r := range changes {
		n.rules[name] = r
	}
	return nil, nil
}

func (n *notebook) failWith(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fail = err
}

func (n *notebook) of(name cache.ObjectName) Rules {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rules[name]
}

func (n *notebook) written() []int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.writes)
}

// nodeAndService creates a node in zone a, and a Service with an endpoint for
// zone a and one for zone b.
func nodeAndService(ctx context.Context, t *testing.T, admin kubernetes.Interface) (*corev1.Node, *discoveryv1.EndpointSlice) {
	t.Helper()
	create := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	node, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "a"}}}, metav1.CreateOptions{})
	create(err)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.51.100.1"}}
	node, err = admin.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	create(err)
	_, err = admin.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	create(err)
	s := slice("web", 8080, "10.42.0.1", "10.42.0.2")
	s.Namespace = "default"
	for i, zone := range []string{"a", "b"} {
		s.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
	s, err = admin.DiscoveryV1().EndpointSlices("default").Create(ctx, s, metav1.CreateOptions{})
	create(err)
	return node, s
}

// What is there at the start is written once, and what changes later when it matters to
// the kernel: a change is not to wait for others that are none.
func TestProxyWritesWhatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, stop := apitest.New(t)
		defer stop()
		admin := api.Client(t)
		ctx, cancel := context.WithCancel(t.Context())
		_, s := nodeAndService(ctx, t, admin)
		const more = 50
		for i := range more {
			if _, err := admin.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("more-", i)}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		d := &notebook{}
		p, err := New(Config{Kube: api.Config(&user.DefaultInfo{Name: "system:kube-proxy"}), NodeName: "n1", Dataplane: d})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		want := []int{more + 3} // and web, kubernetes and the node itself
		check := func(when string) {
			t.Helper()
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if got := d.written(); !slices.Equal(got, want) {
				t.Errorf("%s: %v Services were written, want %v", when, got, want)
			}
		}
		check("at the start")
		svc, err := admin.CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		svc.Spec.PublishNotReadyAddresses = true // the control plane's concern
		if _, err := admin.CoreV1().Services("default").Update(ctx, svc, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		check("a change that is none here")
		s.Endpoints[0].Addresses[0] = "10.42.0.9"
		if _, err := admin.DiscoveryV1().EndpointSlices("default").Update(ctx, s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		want = append(want, 1)
		check("another endpoint")
		if err := admin.CoreV1().Services("default").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want = append(want, 1)
		check("deleted")
	})
}

// A proxy follows its Node: the zone says which endpoints are near, the address
// where node ports are; and it tells others how it is.
func TestProxyFollowsItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, stop := apitest.New(t)
		defer stop()
		admin := api.Client(t)
		ctx, cancel := context.WithCancel(t.Context())
		create := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		node, s := nodeAndService(ctx, t, admin)
		d := &notebook{}
		p, err := New(Config{Kube: api.Config(&user.DefaultInfo{Name: "system:kube-proxy"}), NodeName: "n1", Dataplane: d})
		create(err)
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		web := cache.NewObjectName("default", "web")
		settle := func() { time.Sleep(10 * time.Second); synctest.Wait() }
		endpoints := func() (all []string) {
			for name, p := range d.of(web).Pools {
				if strings.HasSuffix(name, "/cluster/4") {
					for _, ep := range p.Endpoints {
						all = append(all, ep.String())
					}
				}
			}
			return all
		}
		settle()
		if got := endpoints(); !slices.Equal(got, []string{"10.42.0.1:8080"}) {
			t.Errorf("in zone a: %v", got)
		}
		if got := fmt.Sprint(d.of(nodeKey).NodeAddresses); got != "map[198.51.100.1:true]" {
			t.Errorf("node ports are at %s", got)
		}
		node.Labels[corev1.LabelTopologyZone] = "b"
		node.Spec.Taints = []corev1.Taint{{Key: toBeDeleted, Effect: corev1.TaintEffectNoSchedule}}
		_, err = admin.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
		create(err)
		settle()
		if got := endpoints(); !slices.Equal(got, []string{"10.42.0.2:8080"}) {
			t.Errorf("in zone b: %v", got)
		}

		ask := func(h http.Handler) (int, string) {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			return w.Code, w.Body.String()
		}
		healthz, livez := p.health(true, p.metrics.healthz), p.health(false, p.metrics.livez)
		if code, body := ask(healthz); code != 503 || !strings.Contains(body, `"nodeEligible":false`) {
			t.Errorf("/healthz of a node that goes: %d %s", code, body)
		}
		var h health
		if code, body := ask(livez); code != 200 || json.Unmarshal([]byte(body), &h) != nil || !h.Status[corev1.IPv6Protocol].Healthy || h.LastUpdated.IsZero() {
			t.Errorf("/livez: %d %s", code, body)
		}
		// Rules that cannot be written make it unwell after a while, and well again.
		d.failWith(errors.New("no"))
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}
		s.Endpoints = s.Endpoints[:1]
		_, err = admin.DiscoveryV1().EndpointSlices("default").Update(ctx, s, metav1.UpdateOptions{})
		create(err)
		settle()
		if code, body := ask(livez); code != 200 {
			t.Errorf("/livez soon after: %d %s", code, body)
		}
		time.Sleep(healthTimeout)
		if code, body := ask(livez); code != 503 {
			t.Errorf("/livez long after: %d %s", code, body)
		}
		d.failWith(nil)
		time.Sleep(maxWait)
		settle()
		if code, body := ask(livez); code != 200 {
			t.Errorf("/livez at the end: %d %s", code, body)
		}
		_, text := ask(promhttp.HandlerFor(p.metrics.registry, promhttp.HandlerOpts{}))
		for _, line := range []string{
			`kubeproxy_proxy_healthz_total{code="503"} 1`, `kubeproxy_proxy_livez_total{code="200"} 3`, `kubeproxy_proxy_livez_total{code="503"} 1`,
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending 0", "kubeproxy_sync_proxy_rules_endpoint_changes_total 2",
			"kubeproxy_sync_proxy_rules_service_changes_pending 0", `kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} 1`,
		} {
			if !strings.Contains(text, line+"\n") {
				t.Errorf("metrics have no line %q", line)
			}
		}
	})
}

// TestServiceOf: a label on a slice takes its endpoints away from this proxy, as one on the
// Service does.
func TestServiceOf(t *testing.T) {
	for label, want := range map[string]bool{"": true, corev1.IsHeadlessService: false, "service.kubernetes.io/service-proxy-name": false} {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Labels: map[string]string{discoveryv1.LabelServiceName: "b"}}}
		if label != "" {
			s.Labels[label] = ""
		}
		if key, ok := serviceOf(s); ok != want || ok && key.String() != "a/b" {
			t.Errorf("%q: %v, %v", label, key, ok)
		}
	}
}
