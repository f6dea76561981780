package garbagecollector

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// What to do about an object.
type what int

const (
	nothing what = iota
	remove
	dropRefs
	dropFinalizer
	orphan
)

// A decision is what to do about one object.
type decision struct {
	view
	do what
	// unknown are owners to ask the server about first.
	unknown []metav1.OwnerReference
	// foreign are references to owners in other namespaces: as good as none.
	foreign []metav1.OwnerReference
	// refs are the owners whose references dropRefs takes out.
	refs []types.UID
	// finalizer is what dropFinalizer and orphan take away.
	finalizer string
	// policy is how remove treats the object's own dependents.
	policy metav1.DeletionPropagation
	// unblock makes remove only stop the object from blocking its owners.
	unblock bool
	// dependents are those orphan lets go.
	dependents []view
}

// How one reference stands.
type standing int

const (
	solid    standing = iota // the owner is there
	dangling                 // it is not: the server has said so
	waiting                  // it is, and waits for its dependents to go
	unknown                  // no watch shows what the reference says
	foreign                  // it is in another namespace: the server has said so
)

func (g *graph) stands(n *node, ref metav1.OwnerReference) standing {
	o := g.nodes[ref.UID]
	switch {
	case o == nil:
		return unknown
	case o.observed && o.namespace != "" && n.namespace == "":
		return solid // it cannot be: such an object is left alone
	case o.observed && g.names(ref, n, o) && o.foreground():
		return waiting
	case o.observed && g.names(ref, n, o):
		return solid
	}
	if _, absent := g.absent.Get(n.reference(ref)); !absent {
		return unknown
	}
	if o.observed && o.namespace != "" && o.namespace != n.namespace {
		return foreign
	}
	return dangling
}

// names says that n's reference is to o, by all that it says.
func (g *graph) names(ref metav1.OwnerReference, n, o *node) bool {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && gv.Group == o.res.Group && ref.Kind == g.kinds.kind(o.res) && ref.Name == o.name &&
		(o.namespace == "" || o.namespace == n.namespace)
}

// needsDecision says, at little cost, whether decide may find something to do.
func (g *graph) needsDecision(n *node) bool {
	if n.deleting {
		return n.foreground() || n.orphans()
	}
	for _, ref := range n.owners {
		if g.stands(n, ref) != solid {
			return true
		}
	}
	return false
}

// decide says what to do about the object of uid.
func (g *graph) decide(uid types.UID) decision {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil || !n.observed {
		return decision{}
	}
	d := decision{view: n.view}
	switch {
	case n.orphans():
		d.do, d.finalizer = orphan, metav1.FinalizerOrphanDependents
		for dep := range n.dependents {
			d.dependents = append(d.dependents, dep.view)
		}
		return d
	case n.foreground() && !g.blocked(n):
		d.do, d.finalizer = dropFinalizer, metav1.FinalizerDeleteDependents
		return d
	case n.deleting && !n.foreground():
		return d
	}
	var there, gone, waits []types.UID
	for _, ref := range n.owners {
		switch g.stands(n, ref) {
		case solid:
			there = append(there, ref.UID)
		case dangling:
			gone = append(gone, ref.UID)
		case foreign:
			gone = append(gone, ref.UID)
			d.foreign = append(d.foreign, ref)
		case waiting:
			waits = append(waits, ref.UID)
		case unknown:
			d.unknown = append(d.unknown, ref)
			there = append(there, ref.UID)
		}
	}
	d.settle(n, there, gone, waits)
	return d
}

// settle decides by how the owners stand.
func (d *decision) settle(n *node, there, gone, waits []types.UID) {
	switch {
	case len(gone)+len(waits) == 0:
	case len(there) > 0:
		d.do, d.refs = dropRefs, append(gone, waits...)
	case n.deleting: // it goes when its own dependents have
		if len(waits) > 0 && blocking(n) && circular(n) {
			d.do, d.unblock = remove, true
		}
	case len(waits) > 0 && len(n.dependents) > 0:
		d.do, d.policy, d.unblock = remove, metav1.DeletePropagationForeground, blocking(n) && circular(n)
	default:
		d.do, d.policy = remove, n.policy()
	}
}

// circular says that one of n's dependents waits for its own to go, and so
// perhaps for n.
func circular(n *node) bool {
	for dep := range n.dependents {
		if dep.foreground() {
			return true
		}
	}
	return false
}

func blocking(n *node) bool {
	for _, ref := range n.owners {
		if blocks(ref) {
			return true
		}
	}
	return false
}

// blocked says that a dependent keeps n from going.
func (g *graph) blocked(n *node) bool {
	for dep := range n.dependents {
		for _, ref := range dep.owners {
			if ref.UID == n.uid && blocks(ref) {
				return true
			}
		}
	}
	return false
}

// policy is how n wants its own dependents treated.
func (n *node) policy() metav1.DeletionPropagation {
	for _, f := range n.finalizers {
		switch f {
		case metav1.FinalizerOrphanDependents:
			return metav1.DeletePropagationOrphan
		case metav1.FinalizerDeleteDependents:
			return metav1.DeletePropagationForeground
		}
	}
	return metav1.DeletePropagationBackground
}
