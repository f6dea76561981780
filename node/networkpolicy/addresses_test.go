package networkpolicy

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/informer"
)

// empty is a world without pods.
func empty(t testing.TB) *world {
	w := &world{t: t, index: newIndex(thisNode), kernel: newFake(), pods: map[cache.ObjectName]*corev1.Pod{}}
	w.index.setNamespace("x", map[string]string{"ns": "x"}, true)
	w.write()
	return w
}

// isolated are the addresses whose ingress leads to a chain.
func (w *world) isolated() (all []netip.Addr) {
	w.write()
	for a := range w.kernel.verdicts[Ingress] {
		all = append(all, a)
	}
	return all
}

// TestWhichPods: only those of this node, with an address and a network of their
// own, that have not finished.
func TestWhichPods(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   int
	}{
		"a pod":                 {func(*corev1.Pod) {}, 2},
		"without an address":    {func(p *corev1.Pod) { p.Status.PodIPs = nil }, 0},
		"of another node":       {func(p *corev1.Pod) { p.Spec.NodeName = "n2" }, 0},
		"not scheduled":         {func(p *corev1.Pod) { p.Spec.NodeName = "" }, 0},
		"of the node's network": {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, 0},
		"succeeded":             {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, 0},
		"failed":                {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, 0},
		"terminating":           {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, 2},
		"with other labels":     {func(p *corev1.Pod) { p.Labels = nil }, 0},
		"with no address":       {func(p *corev1.Pod) { p.Status.PodIPs[0].IP = "fe80::1%eth0" }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := empty(t)
			w.policy("x", "deny", ingress(selects("pod", "a")))
			p := makePod("x", "a", "10.42.0.10", "fd42::10")
			c.change(p)
			p = informer.SlimPod(p)
			w.setPod(p)
			if got := w.isolated(); len(got) != c.want {
				t.Errorf("%v are isolated, want %d", got, c.want)
			}
			// What a pod will need once it has an address is there before.
			if programmed := len(w.kernel.chains) > 0; programmed != (c.want > 0 || name == "without an address") {
				t.Errorf("chains %v", sortedKeys(w.kernel.chains))
			}
			w.index.setPod(objectName("x", "a"), nil)
			if got := w.isolated(); len(got)+len(w.kernel.chains) != 0 || len(w.kernel.sets) != 1 {
				t.Errorf("%v and %v are left", got, sortedKeys(w.kernel.chains))
			}
		})
	}
}

// TestReusedAddress: of pods with one address the youngest has it, until it goes.
func TestReusedAddress(t *testing.T) {
	w := empty(t)
	w.policy("x", "deny", ingress(selects("pod", "old")))
	w.policy("x", "out", egress(selects("pod", "new"), to(peer(selects("pod", "old"), nil))))
	old, young := makePod("x", "old", "10.42.0.10"), makePod("x", "new", "10.42.0.10")
	young.CreationTimestamp = metav1.Unix(100, 0)
	w.setPod(old)
	if got := w.isolated(); len(got) != 1 {
		t.Errorf("%v are isolated, want the old pod's", got)
	}
	w.setPod(young)
	if got := w.isolated(); len(got) != 0 || len(w.kernel.verdicts[Egress]) != 1 {
		t.Errorf("%v are isolated, want none but in egress", got)
	}
	done := old.DeepCopy()
	done.Status.Phase = corev1.PodSucceeded
	w.setPod(done)
	w.write()
	w.setPod(old)
	w.index.setPod(objectName("x", "new"), nil)
	if got := w.isolated(); len(got) != 1 || len(w.kernel.verdicts[Egress]) != 0 {
		t.Errorf("%v are isolated, want the old pod's again", got)
	}
}

// TestAddressOfAnotherNode: what another node says of its pods takes no address from
// a pod of this one.
func TestAddressOfAnotherNode(t *testing.T) {
	for name, localFirst := range map[string]bool{"the pod of this node first": true, "the other first": false} {
		t.Run(name, func(t *testing.T) {
			w := empty(t)
			w.policy("x", "deny", ingress(selects("pod", "victim")))
			victim, other := makePod("x", "victim", "10.42.0.10"), makePod("x", "other", "10.42.0.10")
			other.CreationTimestamp, other.Spec.NodeName = metav1.Unix(1000, 0), "n2"
			order := []*corev1.Pod{victim, other}
			if !localFirst {
				order = []*corev1.Pod{other, victim}
			}
			for _, p := range order {
				w.setPod(p)
			}
			if got := w.isolated(); len(got) != 1 {
				t.Errorf("%v are isolated, want the address of this node's pod", got)
			}
		})
	}
}

// TestAttached: what the pod network says of a new pod holds until its status
// says the same.
func TestAttached(t *testing.T) {
	w := empty(t)
	w.policy("x", "deny", ingress(selects("pod", "a")))
	former := makePod("x", "former", "10.42.0.10")
	former.CreationTimestamp = metav1.Unix(1000, 0)
	w.setPod(former)
	if w.index.setAttached("x-a", addr("10.42.0.10")) {
		t.Error("a pod is known that the API has not shown")
	}
	p := makePod("x", "a")
	w.setPod(p) // no address, but what was told before
	if got := w.isolated(); len(got) != 1 || got[0] != addr("10.42.0.10") {
		t.Errorf("%v are isolated", got)
	}
	if !w.index.setAttached("x-a", addr("fd42::10")) {
		t.Error("the pod is not known")
	}
	if got := w.isolated(); len(got) != 2 {
		t.Errorf("%v are isolated, want both families", got)
	}
	restarted := makePod("x", "a", "10.42.0.9", "fd42::9") // of its former sandbox
	w.setPod(restarted)
	if got := w.isolated(); len(got) != 2 || !w.index.local["x-a"].attached {
		t.Errorf("%v are isolated", got)
	}
	w.setPod(makePod("x", "a", "10.42.0.10", "fd42::10"))
	if len(w.index.attached) != 0 || w.index.local["x-a"].attached {
		t.Errorf("%v is remembered though the status says so", w.index.attached)
	}
	for i := range 3 * maxAttached {
		w.index.setAttached(uidOf(string(rune(0x4000+i))), addr("10.42.0.99"))
	}
	if n := len(w.index.attached); n > maxAttached {
		t.Errorf("%d pods are remembered that nobody knows", n)
	}
}

// mirror is a Pod that says it is the copy of a static pod with this uid.
func mirror(name, uid string, owners ...metav1.OwnerReference) *corev1.Pod {
	p := makePod("x", name)
	p.CreationTimestamp, p.OwnerReferences = metav1.Unix(1000, 0), owners
	p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: uid}
	return informer.SlimPod(p)
}

func ownedBy(kind, name string, controller bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: kind, Name: name, Controller: &controller}
}

// TestMirrorPod: a mirror pod has the address that the pod network gave its static
// pod, but only that of this node, which is its controller.
func TestMirrorPod(t *testing.T) {
	for name, c := range map[string]struct {
		owner metav1.OwnerReference
		want  bool
	}{
		"of this node":       {ownedBy("Node", thisNode, true), true},
		"of another":         {ownedBy("Node", "n2", true), false},
		"not its controller": {ownedBy("Node", thisNode, false), false},
		"of no node":         {ownedBy("ReplicaSet", thisNode, true), false},
		"of nobody":          {metav1.OwnerReference{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := empty(t)
			w.policy("x", "deny", ingress(selects("pod", "m")))
			w.setPod(mirror("m", "file", c.owner))
			w.index.setAttached("file", addr("10.42.0.10"))
			if got := w.isolated(); (len(got) == 1) != c.want {
				t.Errorf("%v are isolated, want it: %v", got, c.want)
			}
		})
	}
}

// TestFalseMirrorPod: one that gives itself the uid of another pod takes nothing
// from it, whichever the API shows first.
func TestFalseMirrorPod(t *testing.T) {
	for _, late := range []bool{true, false} {
		w := empty(t)
		w.policy("x", "deny", ingress(selects("pod", "victim")))
		victim, bad := makePod("x", "victim"), mirror("bad", "x-victim", ownedBy("Node", thisNode, true))
		holds := func(when string) {
			t.Helper()
			if got := w.isolated(); len(got) != 1 || got[0] != addr("10.42.0.10") {
				t.Errorf("late %v, %s: %v are isolated", late, when, got)
			}
			anew := newFake()
			if _, err := anew.Apply(w.index.whole(), true); err != nil {
				t.Fatal(err)
			}
			w.kernel.sameAs(t, anew)
		}
		// One that says it is the false one, too.
		w.setPod(mirror("worse", "x-bad", ownedBy("Node", thisNode, true)))
		w.index.setAttached("x-bad", addr("10.42.0.66"))
		w.setPod(makePod("x", "worst", "10.42.0.67"))
		if late {
			w.setPod(victim)
			w.index.setAttached("x-victim", addr("10.42.0.10"))
			w.setPod(bad)
		} else {
			w.setPod(bad)
			w.index.setAttached("x-victim", addr("10.42.0.10"))
			w.setPod(victim)
		}
		holds("both are there")
		w.setPod(makePod("x", "victim"))
		holds("without a status")
		w.setPod(makePod("x", "victim", "10.42.0.10"))
		changed := bad.DeepCopy()
		changed.Labels = map[string]string{"pod": "other"}
		w.setPod(changed)
		holds("the status agrees")
		w.index.setAttached("x-victim", addr("10.42.0.10"))
		holds("told again")
		w.index.setPod(objectName("x", "bad"), nil)
		holds("the other is gone")
	}
}

// TestShared: pods with the same policies share a chain, policies with the same
// selector a set, and a pod's change is a few elements.
func TestShared(t *testing.T) {
	w := empty(t)
	for i := range 20 {
		w.policy("x", string(rune('a'+i)), ingress(selects("pod", "web"), from(peer(selects("pod", "client"), nil))))
	}
	for i := range 50 {
		p := makePod("x", "web", netip.AddrFrom4([4]byte{10, 42, 1, byte(i)}).String())
		p.Name += p.Status.PodIPs[0].IP
		w.setPod(p)
	}
	w.write()
	if len(w.kernel.sets) != 2 || len(w.kernel.chains) != 21 {
		t.Errorf("%d sets, %d chains; want own and the clients', 20 policies and one of pods", len(w.kernel.sets), len(w.kernel.chains))
	}
	w.kernel.writes = 0
	w.setPod(makePod("x", "client", "10.42.2.1"))
	w.write()
	if w.kernel.writes != 2 { // own, and the clients'
		t.Errorf("%d elements written", w.kernel.writes)
	}
}
