package framework

import (
	"crypto/sha256"
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
	like int // index among the placed pods of its shape
}

var scratch = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// NewPod reads an object. Forget gives its shape back.
func (c *Cluster) NewPod(pod *corev1.Pod) *Pod {
	asks, more, cpu, memory := requests(pod)
	buf := scratch.Get().(*[]byte)
	key, local := shapeKey((*buf)[:0], pod, asks, more, cpu, memory)
	s, ok := c.shapes[string(key)]
	if !ok {
		k := string(key)
		s = newShape(k, sha256.Sum256(key[:local]), pod, asks, more, cpu, memory)
		c.resources.find(s)
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
		delete(c.shapes, p.Shape.Key)
	}
}

// Terminating reports whether the pod is being deleted.
func (p *Pod) Terminating() bool { return p.DeletionTimestamp != nil }

// notYet is later than any pod started.
var notYet = time.Unix(1<<33, 0)

// Started is when the pod started; a pod that has not is taken to start later
// than any other.
func (p *Pod) Started() time.Time {
	if p.Status.StartTime != nil {
		return p.Status.StartTime.Time
	}
	return notYet
}

// FullName is namespace/name.
func (p *Pod) FullName() string { return p.Pod.Namespace + "/" + p.Pod.Name }
