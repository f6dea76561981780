package gateway

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/addons/gateway/dataplane"
	"knarr/addons/gateway/route"
	"knarr/internal/references"
)

// manyIngresses is a node's part that knows so many Ingresses, each with a Service of its
// own, without an API server.
func manyIngresses(tb testing.TB, n int, plane Plane) (*nodePart, func(i, version int)) {
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: "127.0.0.1:1"})
	api, err := newAPIClient(&rest.Config{Host: "127.0.0.1:1"})
	if err != nil {
		tb.Fatal(err)
	}
	w := newWorld(client, api, "cluster.local", "n1", nil)
	w.add = func(string) {}
	w.named = newNamed(context.Background(), client, func(references.Object) {})
	f := informers.NewSharedInformerFactory(client, 0)
	w.details = &details{factory: f, services: f.Core().V1().Services().Informer(), slices: f.Discovery().V1().EndpointSlices().Informer(), cancel: func() {}}
	if err := w.details.slices.AddIndexers(cache.Indexers{byService: func(o any) ([]string, error) {
		e := o.(*discoveryv1.EndpointSlice)
		return []string{e.Namespace + "/" + e.Labels[discoveryv1.LabelServiceName]}, nil
	}}); err != nil {
		tb.Fatal(err)
	}
	add := func(s cache.Store, o any) {
		if err := s.Update(o); err != nil {
			tb.Fatal(err)
		}
	}
	add(w.classes.GetStore(), &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "knarr"}, Spec: networkingv1.IngressClassSpec{Controller: references.Controller}})
	put := func(i, version int) {
		name := fmt.Sprint("i", i)
		ing := &networkingv1.Ingress{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: fmt.Sprint("n", i%50), Name: name, UID: types.UID(name), ResourceVersion: fmt.Sprint(version), Generation: int64(version), CreationTimestamp: metav1.NewTime(time.Unix(int64(i), 0)),
				Annotations: map[string]string{references.Prefix + "proxy-body-size": "8m", references.Prefix + "proxy-read-timeout": "30", references.Prefix + "app-root": fmt.Sprint("/v", version)},
			},
			Spec: networkingv1.IngressSpec{IngressClassName: new("knarr"), Rules: []networkingv1.IngressRule{{Host: fmt.Sprintf("h%d.example", i), IngressRuleValue: networkingv1.IngressRuleValue{
				HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: new(networkingv1.PathTypePrefix), Backend: networkingv1.IngressBackend{
					Service: &networkingv1.IngressServiceBackend{Name: name, Port: networkingv1.ServiceBackendPort{Number: 80}}}}}},
			}}}},
		}
		add(w.ingresses.GetStore(), ing)
		w.mine.note(ing)
	}
	for i := range n {
		name, namespace := fmt.Sprint("i", i), fmt.Sprint("n", i%50)
		add(w.details.services.GetStore(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
		add(w.details.slices.GetStore(), &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}}, AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(80))}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("10.42.%d.%d", i/250, i%250+1)}}},
		})
		put(i, 1)
	}
	g := &Gateway{cfg: Config{NodeName: "n1", Plane: plane}, client: client, api: api}
	return &nodePart{Gateway: g, world: w, events: &record.FakeRecorder{}, backends: map[types.NamespacedName][]string{}, sent: map[string][]route.Endpoint{}, reported: map[string]string{}}, put
}

// BenchmarkChange is what a change of one Ingress of 5,000 costs a node, from the caches to
// what the data plane serves.
func BenchmarkChange(b *testing.B) {
	plane := dataplane.New(dataplane.Options{Listen: func(string, string) (net.Listener, error) { return nil, os.ErrPermission }})
	n, put := manyIngresses(b, 5000, plane)
	version := 2
	change := func() {
		put(version*37%5000, version)
		version++
		n.pace = pace{}
		if _, err := n.reconcile(context.Background(), everything); err != nil {
			b.Fatal(err)
		}
	}
	change()
	b.ReportAllocs()
	for b.Loop() {
		change()
	}
}
