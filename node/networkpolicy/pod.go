package networkpolicy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// A pod is a Pod as this node works with it.
type pod struct {
	name    cache.ObjectName
	uid     types.UID // as the node's runtime has it
	object  types.UID // as the API has it: another, if the Pod is the copy of a static pod
	created int64
	labels  labels.Set
	addrs   []netip.Addr
	ports   []namedPort // in order, each once
	local   bool        // it runs on this node
	// attached says that the addresses are from the pod network, which knows them
	// before the Pod's status does.
	attached bool
	status   []netip.Addr // addresses as the Pod's status has them

	policies []*policy // that select it, if it is local
	chains   [2]string // of its policies, by Direction
}

// A namedPort is a port of a container that policies can name.
type namedPort struct {
	portName
	number uint16
}

// podOf is nil for a Pod without a network of its own: one of the node's network,
// or one that has finished, whose address may be another's by now. Pure.
func podOf(o *corev1.Pod, node string) *pod {
	if o.Spec.HostNetwork || o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
		return nil
	}
	p := &pod{
		name: cache.MetaObjectToName(o), uid: runtimeUID(o, node), object: o.UID, created: o.CreationTimestamp.Unix(),
		labels: o.Labels, local: o.Spec.NodeName == node && node != "",
	}
	for _, ip := range o.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && a.Zone() == "" && !slices.Contains(p.addrs, a.Unmap()) {
			p.addrs = append(p.addrs, a.Unmap())
		}
	}
	p.status = p.addrs
	for _, list := range [][]corev1.Container{o.Spec.Containers, o.Spec.InitContainers} {
		for _, c := range list {
			for _, port := range c.Ports {
				if proto, err := protocolNumber(port.Protocol); err == nil && port.Name != "" && port.ContainerPort > 0 && port.ContainerPort < 1<<16 {
					p.ports = append(p.ports, namedPort{portName{proto, port.Name}, uint16(port.ContainerPort)})
				}
			}
		}
	}
	slices.SortFunc(p.ports, func(a, b namedPort) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.name, b.name), cmp.Compare(a.number, b.number))
	})
	p.ports = slices.Compact(p.ports)
	return p
}

// runtimeUID is the id that the runtime knows the pod by: that of a static pod
// is in its file, of which the Pod is a copy. Anybody may say so of a Pod; it is
// believed of one whose controller is this node.
func runtimeUID(o *corev1.Pod, node string) types.UID {
	uid, owner := o.Annotations[corev1.MirrorPodAnnotationKey], metav1.GetControllerOfNoCopy(o)
	if uid != "" && owner != nil && owner.Kind == "Node" && owner.APIVersion == "v1" && owner.Name == node {
		return types.UID(uid)
	}
	return o.UID
}

// isMirror says whether the pod is the copy of a static pod, as far as it says.
func (p *pod) isMirror() bool { return p.uid != p.object }

// hasUID says which of two pods with one uid has it: the one that is no copy, then
// the older.
func (p *pod) hasUID(q *pod) bool {
	if p.isMirror() != q.isMirror() {
		return q.isMirror()
	}
	return cmp.Or(cmp.Compare(p.created, q.created), cmp.Compare(p.object, q.object)) < 0
}

// same says whether nothing that matters here has changed.
func (p *pod) same(q *pod) bool {
	return p.uid == q.uid && p.object == q.object && slices.Equal(p.status, q.status) && p.created == q.created && p.local == q.local && p.attached == q.attached &&
		slices.Equal(p.addrs, q.addrs) && slices.Equal(p.ports, q.ports) && maps.Equal(p.labels, q.labels)
}

// before says which of two pods with one address has it: one of this node, since
// another node may say anything of its own; then the one that the pod network gave
// it to, then the younger.
func (p *pod) before(q *pod) bool {
	if p.local != q.local {
		return p.local
	}
	if p.attached != q.attached {
		return p.attached
	}
	if p.created != q.created {
		return p.created > q.created
	}
	return p.uid > q.uid
}
