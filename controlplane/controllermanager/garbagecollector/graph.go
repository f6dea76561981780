package garbagecollector

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
)

// A view is what the collector knows of one object. What it holds is never
// changed, so that it can be used without the graph's lock.
type view struct {
	res             schema.GroupVersionResource
	namespace, name string
	uid             types.UID
	revision        string
	owners          []metav1.OwnerReference
	finalizers      []string
	deleting        bool
}

// foreground says that the object waits for its dependents to go.
func (v *view) foreground() bool {
	return v.deleting && slices.Contains(v.finalizers, metav1.FinalizerDeleteDependents)
}

// orphans says that the object waits for its dependents to be let go.
func (v *view) orphans() bool {
	return v.deleting && slices.Contains(v.finalizers, metav1.FinalizerOrphanDependents)
}

// A node is an object, or only the UID that others name as their owner.
type node struct {
	view
	dependents map[*node]struct{}
	// observed says that a watch shows the object. One that is not observed may
	// live nevertheless: whether it does, only the server can say.
	observed bool
	// deleted says that a watch has shown the deletion itself.
	deleted bool
}

// A graph is all objects by UID, with their owners and dependents.
type graph struct {
	mu    sync.Mutex
	nodes map[types.UID]*node
	kinds *kinds
	// absent are the references whose owner the server did not know when asked.
	absent *lru.Cache
}

// absentMost bounds what is remembered of absent owners; one forgotten costs
// another question to the server.
const absentMost = 4096

func newGraph(k *kinds) *graph {
	return &graph{nodes: map[types.UID]*node{}, kinds: k, absent: lru.New(absentMost)}
}

// A reference is what a dependent says of its owner. All of it counts: two
// dependents may give one UID different names, and only one of them be right.
type reference struct {
	namespace, apiVersion, kind, name string
	uid                               types.UID
}

func (v *view) reference(ref metav1.OwnerReference) reference {
	return reference{v.namespace, ref.APIVersion, ref.Kind, ref.Name, ref.UID}
}

// at gives the node of uid, making an unobserved one where there is none.
func (g *graph) at(uid types.UID) *node {
	n := g.nodes[uid]
	if n == nil {
		n = &node{view: view{uid: uid}}
		g.nodes[uid] = n
	}
	return n
}

// upsert stores what a watch shows and gives the nodes to decide about. What a
// superseded watch shows does not replace what its successor has shown.
func (g *graph) upsert(res schema.GroupVersionResource, o metav1.Object, superseded bool) (again []types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.put(res, o, superseded)
}

// replace stores what a complete list shows, all at once: an owner must not be
// decided about before its dependents of the same list are there. It gives the
// nodes to decide about.
func (g *graph) replace(res schema.GroupVersionResource, list []metav1.Object, superseded bool) (again []types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	shown := make(map[types.UID]bool, len(list))
	for _, o := range list {
		shown[o.GetUID()] = true
		again = append(again, g.put(res, o, superseded)...)
	}
	for uid, n := range g.nodes {
		if n.observed && n.res == res && !shown[uid] {
			again = append(again, g.take(uid, false)...)
		}
	}
	return again
}

// put is upsert; the lock is held.
func (g *graph) put(res schema.GroupVersionResource, o metav1.Object, superseded bool) (again []types.UID) {
	if n := g.nodes[o.GetUID()]; superseded && n != nil && n.observed && n.res != res {
		return nil
	}
	n := g.at(o.GetUID())
	was, seen := n.view, n.observed
	n.view = view{
		res: res, namespace: o.GetNamespace(), name: o.GetName(), uid: o.GetUID(), revision: o.GetResourceVersion(),
		owners: o.GetOwnerReferences(), finalizers: o.GetFinalizers(), deleting: o.GetDeletionTimestamp() != nil,
	}
	n.observed, n.deleted = true, false
	again = g.relink(n, was.owners)
	if g.needsDecision(n) {
		again = append(again, n.uid)
	}
	if !seen || n.foreground() && !was.foreground() {
		for d := range n.dependents {
			again = append(again, d.uid)
		}
	}
	return again
}

// relink moves n from its former owners to its present ones. It gives the
// owners that n does not block any more.
func (g *graph) relink(n *node, was []metav1.OwnerReference) (again []types.UID) {
	is := make(map[types.UID]bool, len(n.owners))   // whether it blocks each: there may be thousands
	for _, ref := range slices.Backward(n.owners) { // the first counts
		is[ref.UID] = blocks(ref)
	}
	for _, ref := range was {
		blocked, there := is[ref.UID]
		if !there {
			g.unlink(n, ref.UID)
		}
		if blocks(ref) && !blocked {
			again = append(again, ref.UID)
		}
	}
	for _, ref := range n.owners {
		owner := g.at(ref.UID)
		if owner.dependents == nil {
			owner.dependents = map[*node]struct{}{}
		}
		owner.dependents[n] = struct{}{}
	}
	return again
}

func (g *graph) unlink(n *node, owner types.UID) {
	o := g.nodes[owner]
	if o == nil {
		return
	}
	delete(o.dependents, n)
	if len(o.dependents) == 0 {
		o.dependents = nil
		if !o.observed {
			delete(g.nodes, owner)
		}
	}
}

func blocks(ref metav1.OwnerReference) bool {
	return ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}

// remove takes out an object that is not watched any more and gives the nodes to
// decide about. deleted says that the watch has shown its deletion.
func (g *graph) remove(uid types.UID, deleted bool) (again []types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.take(uid, deleted)
}

// take is remove; the lock is held.
func (g *graph) take(uid types.UID, deleted bool) (again []types.UID) {
	n := g.nodes[uid]
	if n == nil {
		return nil
	}
	n.deleted = n.deleted || deleted
	if !n.observed {
		return nil
	}
	for _, ref := range n.owners {
		if o := g.nodes[ref.UID]; o != nil && o.foreground() {
			again = append(again, ref.UID)
		}
		g.unlink(n, ref.UID)
	}
	n.owners, n.observed = nil, false
	if len(n.dependents) == 0 {
		delete(g.nodes, uid)
	}
	for d := range n.dependents {
		again = append(again, d.uid)
	}
	return again
}

// removeAll takes out the objects of a resource that is not watched any more, all at
// once: an owner must not be decided about after its dependents of the same resource
// are out of sight.
func (g *graph) removeAll(res schema.GroupVersionResource) (again []types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for uid, n := range g.nodes {
		if n.observed && n.res == res {
			again = append(again, g.take(uid, false)...)
		}
	}
	return again
}

// wasDeleted says that a watch has shown the deletion of an object.
func (g *graph) wasDeleted(uid types.UID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	return n != nil && !n.observed && n.deleted
}
