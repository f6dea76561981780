package dns

import (
	"hash/maphash"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/informer"
)

// changes count what happens to the names of the cluster, so that a stored answer
// knows that it is not so any more. A count is read before the records are: what
// changes in between makes the answer one that is made again.
type changes struct {
	services  [256]atomic.Uint64 // by the name of the Service
	addresses atomic.Uint64
	// programmed hears of the slices of headless Services.
	programmed func(*discoveryv1.EndpointSlice)
}

var changesSeed = maphash.MakeSeed()

func (c *changes) service(namespace, name string) *atomic.Uint64 {
	var h maphash.Hash
	h.SetSeed(changesSeed)
	h.WriteString(namespace)
	h.WriteByte('/')
	h.WriteString(name)
	return &c.services[h.Sum64()%uint64(len(c.services))]
}

// of is the count for a name below the domain, by its labels.
func (c *changes) of(labels []string) *atomic.Uint64 {
	switch n := len(labels); {
	case n >= 3 && labels[n-1] == "svc":
		return c.service(labels[n-2], labels[n-3])
	case n >= 3 && labels[n-1] == "pod":
		return &c.addresses
	}
	return c.service(serviceNamespace, serviceName) // of the domain itself
}

func (c *changes) handler() cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{AddFunc: c.note, DeleteFunc: c.note, UpdateFunc: func(was, is any) {
		if _, ok := is.(*corev1.Namespace); ok {
			return // it is there as before
		}
		c.note(was)
		c.note(is)
		if s, ok := is.(*discoveryv1.EndpointSlice); ok && c.programmed != nil {
			c.programmed(s)
		}
	}}
}

// note counts a change of an object.
func (c *changes) note(o any) {
	switch o := informer.Object(o).(type) {
	case *corev1.Service:
		c.service(o.Namespace, o.Name).Add(1)
	case *discoveryv1.EndpointSlice:
		c.service(o.Namespace, o.Labels[discoveryv1.LabelServiceName]).Add(1)
	case *corev1.Namespace:
		for i := range c.services {
			c.services[i].Add(1)
		}
	}
	c.addresses.Add(1)
}
