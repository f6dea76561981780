package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/dataplane"
	"knarr/internal/apitest"
	"knarr/internal/need"
	"knarr/internal/programs"
	"knarr/internal/references"
	"knarr/internal/run"
)

// BenchmarkRouteChange is how long it takes from a write of one of 5,000 routes to the
// first answer by it, with an API server, both parts of the gateway, and a client's
// connection to the data plane: -benchtime 200x.
func BenchmarkRouteChange(b *testing.B) {
	b.Run("Ingress", func(b *testing.B) {
		w := newRouteWorld(b)
		all := w.client.NetworkingV1().Ingresses("default")
		w.measure(b, "80", func(i, version int) error {
			ing := &networkingv1.Ingress{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("i", i), Annotations: map[string]string{references.Prefix + "app-root": fmt.Sprint("/v", version)}},
				Spec: networkingv1.IngressSpec{IngressClassName: new(ClassName), Rules: []networkingv1.IngressRule{{Host: routeHost(i), IngressRuleValue: networkingv1.IngressRuleValue{
					HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: new(networkingv1.PathTypePrefix), Backend: networkingv1.IngressBackend{
						Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}}}}},
				}}}},
			}
			if version > 1 {
				_, err := all.Update(w.ctx, ing, metav1.UpdateOptions{})
				return err
			}
			_, err := all.Create(w.ctx, ing, metav1.CreateOptions{})
			return err
		})
	})
	b.Run("HTTPRoute", func(b *testing.B) {
		if _, err := programs.Read(programs.Definitions); errors.Is(err, programs.ErrMissing) {
			need.Skip(b, err)
		}
		w := newRouteWorld(b)
		api, err := newAPIClient(w.api.Config())
		no(b, err)
		w.until(b, "the kinds of the Gateway API", func() bool { return api.discover(w.ctx) })
		no(b, api.rest.Post().Namespace("default").Resource("gateways").Body(&gw.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "g"}, Spec: gw.GatewaySpec{
			GatewayClassName: ClassName, Listeners: []gw.Listener{{Name: "http", Port: 80, Protocol: gw.HTTPProtocolType}},
		}}).Do(w.ctx).Error())
		w.measure(b, "", func(i, version int) error {
			r := &gw.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("i", i)}, Spec: gw.HTTPRouteSpec{
				CommonRouteSpec: gw.CommonRouteSpec{ParentRefs: []gw.ParentReference{{Name: "g"}}}, Hostnames: []gw.Hostname{gw.Hostname(routeHost(i))},
				Rules: []gw.HTTPRouteRule{{Filters: []gw.HTTPRouteFilter{{Type: gw.HTTPRouteFilterRequestRedirect, RequestRedirect: &gw.HTTPRequestRedirectFilter{
					Path: &gw.HTTPPathModifier{Type: gw.FullPathHTTPPathModifier, ReplaceFullPath: new(fmt.Sprint("/v", version))}}}}}},
			}}
			if version == 1 {
				return api.rest.Post().Namespace("default").Resource("httproutes").Body(r).Do(w.ctx).Error()
			}
			patch, err := json.Marshal(map[string]any{"spec": r.Spec})
			if err != nil {
				return err
			}
			return api.rest.Patch(types.MergePatchType).Namespace("default").Resource("httproutes").Name(r.Name).Body(patch).Do(w.ctx).Error()
		})
	})
}

func routeHost(i int) string { return fmt.Sprintf("h%d.example", i) }

// A routeWorld is an API server with both parts of the gateway, whose sockets are on
// loopback.
type routeWorld struct {
	ctx    context.Context
	api    *apitest.Server
	client *kubernetes.Clientset

	mu        sync.Mutex
	listening map[string]string // by the port that was meant, and "" for one of a Gateway
}

func no(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func newRouteWorld(b *testing.B) *routeWorld {
	api, stop := apitest.New(b)
	b.Cleanup(stop)
	ctx, cancel := context.WithCancel(context.Background())
	w := &routeWorld{ctx: ctx, api: api, client: api.Client(b), listening: map[string]string{}}
	n, err := w.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	no(b, err)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	_, err = w.client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{})
	no(b, err)
	_, err = w.client.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	no(b, err)
	s, err := NewStatus(StatusConfig{Kube: api.Config(serverUser), Registrar: api.Config()})
	no(b, err)
	g, err := New(Config{Kube: api.Config(nodeUser), NodeName: "n1", Plane: dataplane.New(dataplane.Options{Listen: w.listen})})
	no(b, err)
	var group run.Group
	for _, part := range []func(context.Context) error{s.Run, g.Run} {
		group.Go("part", func() {
			if err := part(ctx); err != nil {
				b.Error(err)
			}
		})
	}
	b.Cleanup(func() {
		cancel()
		group.Wait()
	})
	return w
}

// listen opens a socket on loopback in place of the one that is meant.
func (w *routeWorld) listen(network, address string) (net.Listener, error) {
	l, err := net.Listen(network, "127.0.0.1:0")
	if err == nil {
		_, port, _ := net.SplitHostPort(address)
		if port != "80" && port != "443" {
			port = ""
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.listening[port] = l.Addr().String()
	}
	return l, err
}

// until asks again and again.
func (w *routeWorld) until(b *testing.B, what string, ok func() bool) {
	b.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); {
		if time.Now().After(end) {
			b.Fatal("waiting in vain for ", what)
		}
		<-time.After(time.Millisecond)
	}
}

// measure writes the routes, and then one of them after the other anew: ten a second, and
// each at once when the one before is served.
func (w *routeWorld) measure(b *testing.B, port string, write func(i, version int) error) {
	const routes = 5000
	for _, err := range run.Each("write routes", 16, routes, func(i int) error { return write(i, 1) }) {
		no(b, err)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return new(net.Dialer).DialContext(ctx, network, w.listening[port])
	}}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	answers := func(i, version int) bool {
		answer, err := client.Get("http://" + routeHost(i) + "/")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		to, err := answer.Location()
		return err == nil && to.Path == fmt.Sprint("/v", version)
	}
	for i := range routes {
		w.until(b, "a route", func() bool { return answers(i, 1) })
	}
	version := 2
	for _, rest := range []time.Duration{time.Second / 10, 0} {
		b.Run(map[bool]string{true: "spaced", false: "at once"}[rest > 0], func(b *testing.B) {
			var took, wrote []time.Duration
			for b.Loop() {
				<-time.After(rest)
				i := version * 37 % routes
				began := time.Now()
				no(b, write(i, version))
				wrote = append(wrote, time.Since(began))
				for !answers(i, version) {
					if time.Since(began) > time.Minute {
						b.Fatal("a change is not served")
					}
				}
				took = append(took, time.Since(began))
				version++
			}
			slices.Sort(took)
			slices.Sort(wrote)
			b.ReportMetric(float64(wrote[(len(wrote)-1)/2].Microseconds())/1000, "write-p50-ms")
			for _, q := range []int{50, 99} {
				b.ReportMetric(float64(took[(len(took)-1)*q/100].Microseconds())/1000, fmt.Sprintf("p%d-ms", q))
			}
		})
	}
}
