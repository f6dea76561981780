package framework

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A Pod is one pod: the API's object, its shape, and where it is.
type Pod struct {
	*corev1.Pod
	*Shape
	// Node is where the pod is placed, nil while it waits.
	Node *Node
	at   int // index among its node's pods
}

var scratch = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// NewPod reads an object. Forget gives its shape back.
func (c *Cluster) NewPod(pod *corev1.Pod) *Pod {
	asks, cpu, memory := c.resources.requests(pod)
	buf := scratch.Get().(*[]byte)
	key := shapeKey((*buf)[:0], pod, asks, cpu, memory)
	s, ok := c.shapes[string(key)]
	if !ok {
		k := string(key)
		s = newShape(k, pod, asks, cpu, memory)
		c.shapes[k] = s
	}
	*buf = key[:0]
	scratch.Put(buf)
	s.refs++
	return &Pod{Pod: pod, Shape: s}
}

// Release ends the use of a pod that is not placed.
func (c *Cluster) Release(p *Pod) {
	if p.Shape.refs--; p.Shape.refs == 0 {
		p.Shape.Answers = nil
		delete(c.shapes, p.Shape.Key)
	}
}

// Terminating tells whether the pod is being deleted.
func (p *Pod) Terminating() bool { return p.DeletionTimestamp != nil }

// Started is when the pod started, or now if it has not.
func (p *Pod) Started() time.Time {
	if p.Status.StartTime != nil {
		return p.Status.StartTime.Time
	}
	return time.Now()
}

// FullName is namespace/name.
func (p *Pod) FullName() string { return p.Pod.Namespace + "/" + p.Pod.Name }
