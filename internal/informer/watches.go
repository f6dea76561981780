package informer

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Shared is the one set of watches of a node: kube-proxy, DNS and network policies read
// the same Services, EndpointSlices, Namespaces and Pods, each by Watches of its own.
// A kind is watched from when the first of them asks for it until the context of
// NewShared ends, whichever of them end and begin anew meanwhile.
type Shared struct {
	life    context.Context
	factory informers.SharedInformerFactory
	mu      sync.Mutex // of indexes that are added
}

// NewShared is what to hand to components that shall share. It watches nothing yet.
func NewShared(ctx context.Context, client kubernetes.Interface) *Shared {
	return &Shared{life: ctx, factory: newFactory(client)}
}

func newFactory(client kubernetes.Interface) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(network))
}

// Wait returns once the watches have ended, after the context of NewShared has.
func (s *Shared) Wait() { s.factory.Shutdown() }

// Watches are what one component reads. Objects are without their managed fields and
// annotations, but for a slice's trigger time, and pods are what policies and names are
// made of.
type Watches struct {
	shared *Shared
	own    bool

	mu      sync.Mutex
	stopped bool
	remove  []func() error // each handler
}

// NewWatches is a component's use of s; without one, of watches of its own as client's
// user.
func NewWatches(s *Shared, client kubernetes.Interface) *Watches {
	if s == nil {
		return &Watches{shared: &Shared{factory: newFactory(client)}, own: true}
	}
	return &Watches{shared: s}
}

// Core, Discovery and Networking are the groups' informers. They are to be read; what
// hears of changes and what is found by indexes goes through Handle and Index.
func (w *Watches) Core() core.Interface             { return w.shared.factory.Core() }
func (w *Watches) Discovery() discovery.Interface   { return w.shared.factory.Discovery() }
func (w *Watches) Networking() networking.Interface { return w.shared.factory.Networking() }

// Index has objects found by what f says of them. Components that share have one index
// of one name, and f of whoever came first: same name, same f.
func (w *Watches) Index(inf cache.SharedIndexInformer, name string, f cache.IndexFunc) error {
	w.shared.mu.Lock()
	defer w.shared.mu.Unlock()
	if _, ok := inf.GetIndexer().GetIndexers()[name]; ok {
		return nil
	}
	if err := Index(inf, cache.Indexers{name: f}); err != nil {
		return fmt.Errorf("index by %s: %w", name, err)
	}
	return nil
}

// Handle tells h of what is there and of changes until Stop. synced says that h has heard
// of all that there was.
func (w *Watches) Handle(inf cache.SharedIndexInformer, h cache.ResourceEventHandler) (synced cache.InformerSynced, err error) {
	registered, err := inf.AddEventHandler(h)
	if err != nil {
		return nil, fmt.Errorf("follow changes: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove = append(w.remove, func() error { return inf.RemoveEventHandler(registered) })
	if w.stopped {
		w.removeHandlers()
	}
	return registered.HasSynced, nil
}

// Start begins to watch what was asked for since the last Start. Watches of one's own end
// with ctx.
func (w *Watches) Start(ctx context.Context) {
	if !w.own {
		ctx = w.shared.life
	}
	w.shared.factory.StartWithContext(ctx)
}

// Stop ends what Handle began. Watches of one's own it waits for: the context of Start
// has to end before.
func (w *Watches) Stop() {
	w.mu.Lock()
	w.stopped = true
	w.removeHandlers()
	w.mu.Unlock()
	if w.own {
		w.shared.factory.Shutdown()
	}
}

func (w *Watches) removeHandlers() {
	for _, remove := range w.remove {
		_ = remove() // fails only where there is none
	}
	w.remove = nil
}

// ByService is the index of EndpointSlices by their Service, as namespace/name.
const ByService = "service"

// ServiceOf is the Service whose endpoints a slice has; its name is empty if there is none.
func ServiceOf(s *discoveryv1.EndpointSlice) cache.ObjectName {
	return cache.NewObjectName(s.Namespace, s.Labels[discoveryv1.LabelServiceName])
}

// IndexByService has slices found by their Service.
func (w *Watches) IndexByService(slices cache.SharedIndexInformer) error {
	return w.Index(slices, ByService, func(o any) ([]string, error) {
		return []string{ServiceOf(o.(*discoveryv1.EndpointSlice)).String()}, nil
	})
}

// network keeps of an object what the network of a node is made of.
func network(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Pod:
		return SlimPod(o), nil
	case *corev1.Namespace:
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, Labels: o.Labels}}, nil
	case *discoveryv1.EndpointSlice:
		at, timed := o.Annotations[corev1.EndpointsLastChangeTriggerTime]
		_, err := TrimMetadata(o)
		if timed {
			o.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: at}
		}
		return o, err
	}
	return TrimMetadata(o)
}

// SlimPod keeps of a pod where it is, its labels, what says whose a static pod's mirror
// is, and its named ports.
func SlimPod(o *corev1.Pod) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID, p.ResourceVersion, p.CreationTimestamp, p.Labels = o.Namespace, o.Name, o.UID, o.ResourceVersion, o.CreationTimestamp, o.Labels
	if uid := o.Annotations[corev1.MirrorPodAnnotationKey]; uid != "" {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: uid}
		if owner := metav1.GetControllerOf(o); owner != nil {
			p.OwnerReferences = []metav1.OwnerReference{*owner}
		}
	}
	p.Spec.NodeName, p.Spec.HostNetwork = o.Spec.NodeName, o.Spec.HostNetwork
	p.Status.Phase, p.Status.PodIPs = o.Status.Phase, o.Status.PodIPs
	var named []corev1.ContainerPort
	for _, list := range [][]corev1.Container{o.Spec.Containers, o.Spec.InitContainers} {
		for _, c := range list {
			for _, port := range c.Ports {
				if port.Name != "" {
					named = append(named, corev1.ContainerPort{Name: port.Name, ContainerPort: port.ContainerPort, Protocol: port.Protocol})
				}
			}
		}
	}
	if len(named) > 0 {
		p.Spec.Containers = []corev1.Container{{Ports: named}}
	}
	return p
}
