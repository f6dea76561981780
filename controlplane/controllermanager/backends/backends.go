// Package backends finds the pods behind a Service, for the controllers that
// write Endpoints and EndpointSlices. It reads Services and Pods and writes
// nothing.
package backends

import (
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"

	"knarr/controlplane/controllermanager/pods"
	"knarr/internal/controller"
	"knarr/internal/informer"
)

// bySelector is the index of Services by one label of their selectors.
const bySelector = "knarr.selector"

// Source yields the Services that select a pod. It indexes services, so it must be
// called before they start; several controllers may.
func Source(services, pods cache.SharedIndexInformer) (controller.Source[cache.ObjectName], error) {
	if _, ok := services.GetIndexer().GetIndexers()[bySelector]; !ok {
		if err := informer.Index(services, cache.Indexers{bySelector: selectorKeys}); err != nil {
			return controller.Source[cache.ObjectName]{}, fmt.Errorf("index Services by selector: %w", err)
		}
	}
	return controller.Source[cache.ObjectName]{Informer: pods, Keys: func(o metav1.Object) []cache.ObjectName {
		return selecting(services.GetIndexer(), o)
	}}, nil
}

// selectorKeys are where a Service is found by a pod: under the least label of its
// selector, which such a pod has. One that selects all pods has no label.
func selectorKeys(o any) ([]string, error) {
	svc, ok := o.(*corev1.Service)
	if !ok || !Selects(svc) {
		return nil, nil
	}
	least := ""
	for k, v := range svc.Spec.Selector {
		if pair := k + "=" + v; least == "" || pair < least {
			least = pair
		}
	}
	return []string{svc.Namespace + "/" + least}, nil
}

// selecting are the names of the Services that select a pod. What it costs grows with
// the pod's labels, not with the namespace's Services.
func selecting(services cache.Indexer, pod metav1.Object) (keys []cache.ObjectName) {
	have := pod.GetLabels()
	find := func(pair string) {
		found, err := services.ByIndex(bySelector, pod.GetNamespace()+"/"+pair)
		if err != nil {
			return
		}
		for _, o := range found {
			if svc := o.(*corev1.Service); labels.SelectorFromValidatedSet(svc.Spec.Selector).Matches(labels.Set(have)) {
				keys = append(keys, cache.MetaObjectToName(svc))
			}
		}
	}
	find("")
	for k, v := range have {
		find(k + "=" + v)
	}
	return keys
}

// Selects says that the Service's addresses are those of pods.
func Selects(svc *corev1.Service) bool {
	return svc.Spec.Type != corev1.ServiceTypeExternalName && svc.Spec.Selector != nil
}

// Pods are those svc selects.
func Pods(indexer cache.Indexer, svc *corev1.Service) ([]*corev1.Pod, error) {
	var out []*corev1.Pod
	err := cache.ListAllByNamespace(indexer, svc.Namespace, labels.SelectorFromValidatedSet(svc.Spec.Selector), func(o any) {
		out = append(out, o.(*corev1.Pod))
	})
	return out, err
}

// Serves says that a pod has an address and may still serve; with terminating
// also one on its way out.
func Serves(p *corev1.Pod, terminating bool) bool {
	return !pods.Terminal(p) && (p.Status.PodIP != "" || len(p.Status.PodIPs) > 0) && (terminating || p.DeletionTimestamp == nil)
}

// Addresses are the pod's of that family.
func Addresses(p *corev1.Pod, v6 bool) (out []string) {
	for _, ip := range p.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil && addr.Is6() == v6 {
			out = append(out, addr.String())
		}
	}
	return out
}

// Port is the number of a Service's port in a pod.
func Port(p *corev1.Pod, port *corev1.ServicePort) (int32, bool) {
	if port.TargetPort.Type == intstr.Int {
		return int32(port.TargetPort.IntValue()), true
	}
	in := func(c *corev1.Container) (int32, bool) {
		for _, cp := range c.Ports {
			if cp.Name == port.TargetPort.StrVal && cp.Protocol == port.Protocol {
				return cp.ContainerPort, true
			}
		}
		return 0, false
	}
	for i := range p.Spec.Containers {
		if n, ok := in(&p.Spec.Containers[i]); ok {
			return n, true
		}
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		if n, ok := in(c); ok {
			return n, true
		}
	}
	return 0, false
}

// Hostname is the name the pod has under svc, or nothing.
func Hostname(p *corev1.Pod, svc *corev1.Service) string {
	if p.Spec.Subdomain != svc.Name || p.Namespace != svc.Namespace {
		return ""
	}
	return p.Spec.Hostname
}

// Reference names the pod as an address's target.
func Reference(p *corev1.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

// Headless says that the Service has no address of its own.
func Headless(svc *corev1.Service) bool {
	return svc.Spec.ClusterIP == corev1.ClusterIPNone || svc.Spec.ClusterIP == ""
}

// Trigger is when the last change happened that shows in the addresses: the
// latest of the Service's creation and the pods' turns of readiness.
func Trigger(svc *corev1.Service, all []*corev1.Pod) string {
	last := svc.CreationTimestamp.Time
	for _, p := range all {
		if c := pods.Condition(p, corev1.PodReady); c != nil && c.LastTransitionTime.After(last) {
			last = c.LastTransitionTime.Time
		}
	}
	return last.UTC().Format(time.RFC3339Nano)
}
