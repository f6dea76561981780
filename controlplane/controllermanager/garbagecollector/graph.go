package garbagecollector

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
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
	// observed says that a watch has shown the object and not its end.
	observed bool
	// gone says that a watch has shown its end. A UID never comes back.
	gone bool
	// absentIn are the namespaces in which the server did not know it.
	absentIn map[string]bool
}

// A graph is all objects by UID, with who owns whom.
type graph struct {
	mu    sync.Mutex
	nodes map[types.UID]*node
}

func newGraph() *graph { return &graph{nodes: map[types.UID]*node{}} }

// at gives the node of uid, making an unobserved one where there is none.
func (g *graph) at(uid types.UID) *node {
	n := g.nodes[uid]
	if n == nil {
		n = &node{view: view{uid: uid}}
		g.nodes[uid] = n
	}
	return n
}

// upsert stores what a watch shows and gives the nodes to decide about.
func (g *graph) upsert(res schema.GroupVersionResource, o metav1.Object) (again []types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.at(o.GetUID())
	was, seen := n.view, n.observed
	n.view = view{
		res: res, namespace: o.GetNamespace(), name: o.GetName(), uid: o.GetUID(), revision: o.GetResourceVersion(),
		owners: o.GetOwnerReferences(), finalizers: o.GetFinalizers(), deleting: o.GetDeletionTimestamp() != nil,
	}
	n.observed, n.gone, n.absentIn = true, false, nil
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
	for _, ref := range was {
		i := slices.IndexFunc(n.owners, func(r metav1.OwnerReference) bool { return r.UID == ref.UID })
		if i < 0 {
			g.unlink(n, ref.UID)
		}
		if blocks(ref) && (i < 0 || !blocks(n.owners[i])) {
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

// remove forgets an object that a watch has shown the end of and gives the
// nodes to decide about.
func (g *graph) remove(uid types.UID) (again []types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil || !n.observed {
		return nil
	}
	for _, ref := range n.owners {
		if o := g.nodes[ref.UID]; o != nil && o.foreground() {
			again = append(again, ref.UID)
		}
		g.unlink(n, ref.UID)
	}
	n.owners, n.observed, n.gone = nil, false, true
	if len(n.dependents) == 0 {
		delete(g.nodes, uid)
	}
	for d := range n.dependents {
		again = append(again, d.uid)
	}
	return again
}

// of lists the objects of one resource.
func (g *graph) of(res schema.GroupVersionResource) (uids []types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for uid, n := range g.nodes {
		if n.observed && n.res == res {
			uids = append(uids, uid)
		}
	}
	return uids
}

// absent notes that the server knows no such owner in a namespace.
func (g *graph) absent(uid types.UID, namespace string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil || n.observed {
		return
	}
	if n.absentIn == nil {
		n.absentIn = map[string]bool{}
	}
	n.absentIn[namespace] = true
}
