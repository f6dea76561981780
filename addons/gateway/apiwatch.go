package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/gatewayapi"
	"knarr/internal/informer"
	"knarr/internal/run"
)

// An apiClient reads and writes objects of the Gateway API.
type apiClient struct {
	rest rest.Interface
}

// newAPIClient speaks JSON: the kinds are custom ones.
func newAPIClient(kube *rest.Config) (*apiClient, error) {
	scheme := runtime.NewScheme()
	if err := gw.Install(scheme); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	cfg := rest.CopyConfig(kube)
	cfg.GroupVersion, cfg.APIPath = &gw.SchemeGroupVersion, "/apis"
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.AcceptContentTypes, cfg.ContentType = "application/json", "application/json"
	client, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return &apiClient{client}, nil
}

// informer watches a kind.
func (a *apiClient) informer(plural string, of runtime.Object) cache.SharedIndexInformer {
	lw := cache.NewListWatchFromClient(a.rest, plural, metav1.NamespaceAll, fields.Everything())
	inf := cache.NewSharedIndexInformer(lw, of, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	_ = inf.SetTransform(informer.WithoutManagedFields) // it has not started
	return inf
}

// apiKinds are what Gateways need, by their plurals.
var apiKinds = []struct {
	plural string
	object runtime.Object
}{
	{"gatewayclasses", &gw.GatewayClass{}}, {"listenersets", &gw.ListenerSet{}},
	{"httproutes", &gw.HTTPRoute{}}, {"grpcroutes", &gw.GRPCRoute{}}, {"tlsroutes", &gw.TLSRoute{}}, {"tcproutes", &gw.TCPRoute{}}, {"udproutes", &gw.UDPRoute{}},
	{"referencegrants", &gw.ReferenceGrant{}}, {"backendtlspolicies", &gw.BackendTLSPolicy{}},
}

// served waits until the kinds are served: a server installs them at its first start.
func (a *apiClient) served(ctx context.Context) bool {
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		if a.discover(ctx) {
			return true
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return false
		}
	}
}

// discover says whether all kinds are served now.
func (a *apiClient) discover(ctx context.Context) bool {
	body, err := a.rest.Get().AbsPath("/apis/" + gw.SchemeGroupVersion.String()).Do(ctx).Raw()
	var list metav1.APIResourceList
	if err != nil || json.Unmarshal(body, &list) != nil {
		return false
	}
	there := map[string]bool{}
	for _, r := range list.APIResources {
		there[r.Name] = true
	}
	for _, k := range apiKinds {
		if !there[k.plural] {
			return false
		}
	}
	return there["gateways"]
}

// A gatewayWatch watches Gateways once their kind is served, and the rest while there is one.
type gatewayWatch struct {
	client     *apiClient
	core       kubernetes.Interface
	namespaces cache.SharedIndexInformer            // nil while there is no Gateway
	kinds      map[string]cache.SharedIndexInformer // the same
	rosters    rosters                              // the same
	cancel     context.CancelFunc
	group      run.Group
	add        func()
	grantWatch

	// withClasses watches the classes always as well: who writes their status needs them.
	withClasses bool

	mu                sync.Mutex
	gateways, classes cache.SharedIndexInformer // nil until they have synced
}

// run returns with ctx.
func (w *gatewayWatch) run(ctx context.Context) {
	var group run.Group
	defer group.Wait()
	if !w.client.served(ctx) {
		return
	}
	begin := func(plural string, of runtime.Object, to *cache.SharedIndexInformer) {
		inf := w.client.informer(plural, of)
		if _, err := inf.AddEventHandler(onChange(meaningful, func(metav1.Object) { w.add() })); err != nil {
			return // only one that has ended refuses a handler
		}
		group.Go("gateway: watch "+plural, func() { inf.RunWithContext(ctx) })
		if cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) {
			w.mu.Lock()
			*to = inf
			w.mu.Unlock()
			w.add()
		}
	}
	begin("gateways", &gw.Gateway{}, &w.gateways)
	if w.withClasses {
		begin("gatewayclasses", &gw.GatewayClass{}, &w.classes)
	}
	<-ctx.Done()
}

// known says whether Gateways are watched: nothing is known of them before.
func (w *gatewayWatch) known() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gateways != nil
}

// all are the Gateways.
func (w *gatewayWatch) all() []*gw.Gateway {
	w.mu.Lock()
	inf := w.gateways
	w.mu.Unlock()
	if inf == nil {
		return nil
	}
	return listOf[*gw.Gateway](inf)
}

// allClasses are the GatewayClasses, where they are watched always.
func (w *gatewayWatch) allClasses() []*gw.GatewayClass {
	w.mu.Lock()
	inf := w.classes
	w.mu.Unlock()
	if inf == nil {
		return nil
	}
	return listOf[*gw.GatewayClass](inf)
}

// watch begins to watch what Gateways need, and waits until it is known.
func (w *gatewayWatch) watch(ctx context.Context) error {
	if w.kinds != nil {
		return nil
	}
	watching, cancel := context.WithCancel(ctx)
	w.cancel, w.kinds = cancel, map[string]cache.SharedIndexInformer{}
	namespaces := cache.NewListWatchFromClient(w.core.CoreV1().RESTClient(), "namespaces", metav1.NamespaceAll, fields.Everything())
	w.namespaces = cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(namespaces, w.core), &corev1.Namespace{}, 0, cache.Indexers{})
	_ = w.namespaces.SetTransform(informer.TrimMetadata) // it has not started
	relabelled := func(old, now metav1.Object) bool { return !maps.Equal(old.GetLabels(), now.GetLabels()) }
	if _, err := w.namespaces.AddEventHandler(onChange(relabelled, func(metav1.Object) { w.add() })); err != nil {
		return err
	}
	synced := []cache.InformerSynced{w.namespaces.HasSynced}
	w.rosters = rosters{}
	for _, k := range apiKinds {
		inf := w.client.informer(k.plural, k.object)
		note := w.rosters.begin(k.plural, inf)
		if _, err := inf.AddEventHandler(onChange(func(old, now metav1.Object) bool { note(now); return meaningful(old, now) }, func(o metav1.Object) {
			note(o)
			w.add()
		})); err != nil {
			return err
		}
		w.kinds[k.plural], synced = inf, append(synced, inf.HasSynced)
		w.group.Go("gateway: watch "+k.plural, func() { inf.RunWithContext(watching) })
	}
	w.group.Go("gateway: watch namespaces", func() { w.namespaces.RunWithContext(watching) })
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		w.forget()
	}
	return nil
}

// forget ends what is watched only while there are Gateways.
func (w *gatewayWatch) forget() {
	if w.kinds != nil {
		w.cancel()
		w.group.Wait()
		w.kinds, w.namespaces = nil, nil
	}
}

// rosters are those of the kinds of which there may be many thousands.
type rosters struct {
	http *roster[*gw.HTTPRoute]
	grpc *roster[*gw.GRPCRoute]
	tls  *roster[*gw.TLSRoute]
	tcp  *roster[*gw.TCPRoute]
	udp  *roster[*gw.UDPRoute]
}

// begin makes the roster of a kind, if it has one, and returns what is told of changes.
func (r *rosters) begin(plural string, of cache.SharedIndexInformer) (note func(metav1.Object)) {
	switch store := of.GetStore(); plural {
	case "httproutes":
		r.http = &roster[*gw.HTTPRoute]{store: store}
		return r.http.note
	case "grpcroutes":
		r.grpc = &roster[*gw.GRPCRoute]{store: store}
		return r.grpc.note
	case "tlsroutes":
		r.tls = &roster[*gw.TLSRoute]{store: store}
		return r.tls.note
	case "tcproutes":
		r.tcp = &roster[*gw.TCPRoute]{store: store}
		return r.tcp.note
	case "udproutes":
		r.udp = &roster[*gw.UDPRoute]{store: store}
		return r.udp.note
	}
	return func(metav1.Object) {}
}

func listOf[T any](inf cache.SharedIndexInformer) (all []T) {
	for _, o := range inf.GetStore().List() {
		all = append(all, o.(T))
	}
	return all
}

// input is what was found of the Gateway API.
func (w *gatewayWatch) input() gatewayapi.Input {
	return gatewayapi.Input{
		Gateways: w.all(), Classes: listOf[*gw.GatewayClass](w.kinds["gatewayclasses"]), ListenerSets: listOf[*gw.ListenerSet](w.kinds["listenersets"]),
		HTTPRoutes: w.rosters.http.all(), GRPCRoutes: w.rosters.grpc.all(), TLSRoutes: w.rosters.tls.all(), TCPRoutes: w.rosters.tcp.all(), UDPRoutes: w.rosters.udp.all(),
		Grants: listOf[*gw.ReferenceGrant](w.kinds["referencegrants"]), Policies: listOf[*gw.BackendTLSPolicy](w.kinds["backendtlspolicies"]),
		Namespace: func(name string) map[string]string {
			o, ok, _ := w.namespaces.GetStore().GetByKey(name) // a store's only error is its index's
			if !ok {
				return nil
			}
			of := o.(*corev1.Namespace).Labels
			if of == nil {
				of = map[string]string{}
			}
			return of
		},
	}
}
