package gateway

import (
	"context"
	"crypto/tls"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/addons/gateway/gatewayapi"
	"knarr/addons/gateway/ingress"
	"knarr/addons/gateway/route"
	"knarr/internal/controller"
	"knarr/internal/informer"
	"knarr/internal/references"
	"knarr/internal/run"
)

// A world is what of the cluster is watched: Ingresses and their classes always, the rest
// only while there is an Ingress that needs it.
type world struct {
	client kubernetes.Interface
	domain string
	inside []netip.Prefix

	factory            informers.SharedInformerFactory
	ingresses, classes cache.SharedIndexInformer
	add                func(key string)
	details            *details
	named              *named
	parsed             *ingress.Parsed
	api                *gatewayWatch
	apiParsed          *ingress.Parsed
	apiKnown           *gatewayapi.Known
	ofGateways         map[types.NamespacedName]bool // their Services
	node               string                        // whose places are looked for; "" on a server
	here               host                          // this node
	mine               *roster[*networkingv1.Ingress]
	moved              changedObjects
	wisher             wisher
	backends           union[route.Backend]
	targets            union[ingress.Target]
	fallback           *tls.Certificate
	pace               pace
	// reserve gives ports of the nodes to Gateways, on the server.
	reserve func(map[types.NamespacedName][]gatewayapi.Port) map[gatewayapi.GatewayPort]string
	// always are the Services that each compilation asks for, whatever is served.
	always map[references.Object]bool
}

// details are watched while something is served.
type details struct {
	factory          informers.SharedInformerFactory
	services, slices cache.SharedIndexInformer
	cancel           context.CancelFunc
}

const byService = "service"

func newWorld(client kubernetes.Interface, api *apiClient, domain, node string, inside []netip.Prefix) *world {
	f := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim))
	w := &world{
		client: client, domain: domain, node: node, inside: inside, factory: f, parsed: ingress.NewParsed(), apiParsed: ingress.NewParsed(), apiKnown: gatewayapi.NewKnown(),
		api:       &gatewayWatch{client: api, core: client, withClasses: node == ""},
		ingresses: f.Networking().V1().Ingresses().Informer(), classes: f.Networking().V1().IngressClasses().Informer(),
	}
	w.mine = &roster[*networkingv1.Ingress]{store: w.ingresses.GetStore(), keep: w.served}
	return w
}

// slim keeps of an object what is read here.
func slim(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Service:
		o.Status.Conditions = nil
		if o.Labels[managedBy] != us { // those made here are compared as a whole
			return informer.TrimMetadata(o)
		}
	case *discoveryv1.EndpointSlice:
		for i := range o.Endpoints {
			e := &o.Endpoints[i]
			e.TargetRef, e.Hostname, e.DeprecatedTopology = nil, nil, nil
		}
		o.OwnerReferences = nil
		return informer.TrimMetadata(o)
	}
	return informer.WithoutManagedFields(o)
}

// A watched is an informer of its owner's that run listens to as well.
type watched struct {
	cache.SharedIndexInformer
	// counts says whether a change of an object does.
	counts func(old, now metav1.Object) bool
	note   func(metav1.Object) // called first, if it is set
}

// run watches, and calls reconcile for everything and for the Services whose endpoints
// change, until ctx ends.
func (w *world) run(ctx context.Context, reconcile func(ctx context.Context, key string) (time.Duration, error), more ...watched) error {
	ctx, cancel := context.WithCancel(ctx)
	all := append([]watched{
		{w.ingresses, func(old, now metav1.Object) bool { w.mine.note(now); return meaningful(old, now) }, w.mine.note},
		{w.classes, meaningful, func(metav1.Object) { w.mine.reset() }},
	}, more...)
	var sources []controller.Source[string] // to be waited for
	for _, one := range all {
		sources = append(sources, controller.Source[string]{Informer: one.SharedIndexInformer})
	}
	c := &controller.Controller[string]{
		Name:       Name,
		RetryDelay: [2]time.Duration{50 * time.Millisecond, time.Minute},
		Sources:    sources,
		Feeds: []func(context.Context, func(), func(string)) error{func(ctx context.Context, ready func(), add func(string)) error {
			w.add, w.named = add, newNamed(ctx, w.client, func(o references.Object) { w.moved.add(o); add(everything) })
			for _, one := range all {
				reg, err := one.AddEventHandler(onChange(one.counts, func(o metav1.Object) {
					if one.note != nil {
						one.note(o)
					}
					add(everything)
				}))
				if err != nil {
					return err
				}
				defer func() { _ = one.RemoveEventHandler(reg) }()
			}
			w.api.add = func() { add(everything) }
			var group run.Group
			defer group.Wait()
			group.Go("gateway: watch the Gateway API", func() { w.api.run(ctx) })
			add(everything)
			ready()
			<-ctx.Done()
			return nil
		}},
		Reconcile: func(ctx context.Context, key string) (time.Duration, error) {
			if key != services {
				return reconcile(ctx, key)
			}
			if w.moved.concern(w.asks) {
				w.add(everything)
			}
			return 0, nil
		},
	}
	w.factory.StartWithContext(ctx)
	defer func() {
		w.forget()
		w.api.forget()
		w.api.forgetGrants()
		if w.named != nil {
			w.named.stop()
		}
		w.factory.Shutdown()
	}()
	defer cancel() // before Shutdown, which waits for the informers
	return c.Run(ctx)
}

// onChange calls do for objects that come, go, or change in a way that counts.
func onChange(counts func(old, now metav1.Object) bool, do func(metav1.Object)) cache.ResourceEventHandler {
	call := func(o any) {
		if m, ok := informer.Object(o).(metav1.Object); ok {
			do(m)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: call, DeleteFunc: call, UpdateFunc: func(old, now any) {
		if a, ok := old.(metav1.Object); ok {
			if b, ok := now.(metav1.Object); ok && counts(a, b) {
				do(b)
			}
		}
	}}
}

// meaningful says whether more than the status of an object has changed.
func meaningful(old, now metav1.Object) bool {
	return old.GetUID() != now.GetUID() || old.GetGeneration() != now.GetGeneration() || !maps.Equal(old.GetAnnotations(), now.GetAnnotations())
}

// watchDetails begins to watch what Ingresses refer to, and waits until it is known.
func (w *world) watchDetails(ctx context.Context) error {
	if w.details != nil {
		return nil
	}
	f := informers.NewSharedInformerFactoryWithOptions(w.client, 0, informers.WithTransform(slim))
	d := &details{factory: f, services: f.Core().V1().Services().Informer(), slices: f.Discovery().V1().EndpointSlices().Informer()}
	if err := informer.Index(d.slices, cache.Indexers{byService: func(o any) ([]string, error) {
		e := o.(*discoveryv1.EndpointSlice)
		return []string{e.Namespace + "/" + e.Labels[discoveryv1.LabelServiceName]}, nil
	}}); err != nil {
		return err
	}
	always := func(metav1.Object, metav1.Object) bool { return true }
	if _, err := d.services.AddEventHandler(onChange(always, func(o metav1.Object) {
		name := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
		w.moved.add(serviceObject(name))
		w.add(services)
	})); err != nil {
		return err
	}
	if _, err := d.slices.AddEventHandler(onChange(always, func(o metav1.Object) {
		if name := o.GetLabels()[discoveryv1.LabelServiceName]; name != "" {
			w.add(o.GetNamespace() + "/" + name)
		}
	})); err != nil {
		return err
	}
	watching, cancel := context.WithCancel(ctx)
	d.cancel = cancel
	w.details = d
	f.StartWithContext(watching)
	if !cache.WaitForCacheSync(ctx.Done(), d.services.HasSynced, d.slices.HasSynced) {
		w.forget()
	}
	return nil
}

// forget ends what is watched only while something is served.
func (w *world) forget() {
	if d := w.details; d != nil {
		w.details = nil
		d.cancel()
		d.factory.Shutdown()
	}
}

// ours are the Ingresses that are served here, the oldest first.
func (w *world) ours() []*networkingv1.Ingress { return w.mine.all() }

// served makes a filter of Ingresses: those of our classes.
func (w *world) served() func(*networkingv1.Ingress) bool {
	standard := references.Standard(func(yield func(*networkingv1.IngressClass) bool) {
		for _, o := range w.classes.GetStore().List() {
			if !yield(o.(*networkingv1.IngressClass)) {
				return
			}
		}
	})
	return func(ing *networkingv1.Ingress) bool {
		return ing.DeletionTimestamp == nil && references.Ours(ing, w.class, func() bool { return standard })
	}
}

// asks says whether what is served depends on an object.
func (w *world) asks(o references.Object) bool {
	return o.Resource != "services" || w.always[o] || w.parsed.Asks(o) || w.apiKnown.Asks(o)
}

func serviceObject(name types.NamespacedName) references.Object {
	return references.Object{Resource: "services", Namespace: name.Namespace, Name: name.Name}
}

func (w *world) class(name string) *networkingv1.IngressClass {
	o, _, _ := w.classes.GetStore().GetByKey(name) // a store's only error is its index's
	c, _ := o.(*networkingv1.IngressClass)
	return c
}

// A compiled is what is served, and what there is to say of it.
type compiled struct {
	route.Config
	targets  map[string]ingress.Target
	verdicts map[types.NamespacedName]ingress.Verdict
	http3    bool // some Ingress is served so
	orders   []ingress.Order
	ports    map[types.NamespacedName][]gatewayapi.Port
	statuses gatewayapi.Statuses
	// moved are the Services, Secrets and ConfigMaps that have changed since the last one.
	moved map[references.Object]bool
	// knowsGateways says that Gateways were watched, so that there are no others.
	knowsGateways bool
}

// compile makes of what is known what is served.
func (w *world) compile(ctx context.Context) (*compiled, error) {
	moved := w.moved.take()
	out, err := w.compiled(ctx, moved)
	if out == nil {
		w.moved.giveBack(moved)
	}
	return out, err
}

func (w *world) compiled(ctx context.Context, moved map[references.Object]bool) (*compiled, error) {
	known := w.api.known()
	mine, gateways := w.ours(), w.api.all()
	if len(mine) == 0 && len(gateways) == 0 {
		w.forget()
		w.api.forget()
		w.api.forgetGrants()
		w.named.want(ctx, nil)
		w.fallback, w.ofGateways, w.always, w.wisher = nil, nil, nil, wisher{}
		ingress.Compile(ingress.Input{Parsed: w.parsed})
		w.apiParsed.Sweep(nil)
		w.apiKnown = gatewayapi.NewKnown()
		return &compiled{knowsGateways: known, moved: moved}, nil
	}
	if err := w.watchDetails(ctx); err != nil || ctx.Err() != nil {
		return nil, err
	}
	var api gatewayapi.Input
	if len(gateways) == 0 {
		w.api.forget()
		w.apiKnown = gatewayapi.NewKnown()
	} else {
		if err := w.api.watch(ctx); err != nil || ctx.Err() != nil {
			return nil, err
		}
		api = w.api.input()
	}
	if w.wisher.look(&api, mine) {
		w.named.want(ctx, w.wisher.given)
	}
	if w.fallback == nil {
		var err error
		if w.fallback, err = selfSigned(time.Now()); err != nil {
			return nil, err
		}
	}
	w.always = map[references.Object]bool{}
	own := func(name types.NamespacedName) *corev1.Service {
		w.always[serviceObject(name)] = true
		return w.service(name)
	}
	challenge := ""
	if svc := own(types.NamespacedName{Namespace: Namespace, Name: serviceName}); svc != nil && svc.Labels[managedBy] == us {
		challenge = svc.Annotations[accountAnnotation]
	}
	changed := func(o references.Object) bool { return moved[o] }
	of, err := w.ingress(ctx, ingress.Input{
		Challenge: challenge,
		Ingresses: mine, Domain: w.domain, Inside: w.inside, Default: w.fallback, Parsed: w.parsed, Now: time.Now(), Changed: changed,
		Service: w.service, Secret: w.secret, ConfigMap: w.configMap, Left: w.wisher.left,
	})
	if err != nil || ctx.Err() != nil {
		return nil, err
	}
	out := &compiled{Config: route.Config{Listeners: of.Listeners, Backends: of.Backends, Nodes: w.findNodes()}, targets: of.Targets, verdicts: of.Verdicts, http3: of.HTTP3(), orders: of.Orders, moved: moved}
	if len(gateways) > 0 {
		served := map[types.NamespacedName]bool{}
		api.Service, api.Secret, api.ConfigMap, api.Left, api.Parsed, api.Now = w.service, w.secret, w.configMap, w.wisher.left, w.apiParsed, time.Now()
		api.Known, api.Changed, api.ServeOnly = w.apiKnown, changed, w.reserve == nil
		api.Place = func(g types.NamespacedName) *gatewayapi.Place {
			name := types.NamespacedName{Namespace: g.Namespace, Name: gatewayapi.ServiceName(g.Name)}
			served[name] = true
			return w.place(own(name), name)
		}
		api.Reserve = w.reserve
		more := gatewayapi.Compile(api)
		out.Listeners = slices.Concat(out.Listeners, more.Listeners)
		out.Backends, out.targets = w.backends.of(out.Backends, more.Backends), w.targets.of(out.targets, more.Targets)
		out.ports, out.statuses, w.ofGateways = more.Ports, more.Statuses, served
		if len(more.Orders) > 0 {
			out.orders = judgeOrders(slices.Concat(out.orders, more.Orders), out.Listeners, more.Of)
		}
	}
	out.knowsGateways = known
	return out, nil
}

func (w *world) service(name types.NamespacedName) *corev1.Service {
	return get[*corev1.Service](w.details.services, name)
}

func (w *world) secret(name types.NamespacedName) *corev1.Secret {
	s, _ := w.named.get(references.Object{Resource: "secrets", Namespace: name.Namespace, Name: name.Name}).(*corev1.Secret)
	return s
}

func (w *world) configMap(name types.NamespacedName) *corev1.ConfigMap {
	m, _ := w.named.get(references.Object{Resource: "configmaps", Namespace: name.Namespace, Name: name.Name}).(*corev1.ConfigMap)
	return m
}

func get[T any](inf cache.SharedIndexInformer, name types.NamespacedName) (zero T) {
	if o, ok, _ := inf.GetStore().GetByKey(name.String()); ok {
		return o.(T)
	}
	return zero
}
