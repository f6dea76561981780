package kubelet

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/node/kubelet/podspec"
)

// A hiddenPod is why the API does not show a pod, which is logged once too, and when it is
// asked again.
type hiddenPod struct {
	why   string
	delay delay
	again time.Time
}

// mirrorMost is how often upstream's kubelet asks for what the API would not show.
const mirrorMost = time.Minute

// mirrored notes whether the API shows a pod.
func (st *staticPods) mirrored(p *corev1.Pod, err error) {
	if err == nil {
		delete(st.hidden, p.UID)
		return
	}
	h := st.hidden[p.UID]
	if h == nil {
		if st.hidden == nil {
			st.hidden = map[types.UID]*hiddenPod{}
		}
		h = &hiddenPod{delay: delay{first: time.Second, most: mirrorMost}}
		st.hidden[p.UID] = h
	}
	now := time.Now()
	h.again = now.Add(h.delay.next(now))
	if h.why != err.Error() {
		h.why = err.Error()
		slog.Warn("Failed creating a mirror pod, trying again: the API does not show this static pod", "pod", podspec.Format(p), "err", err)
	}
}

// mayMirror says whether the API may be asked to show a pod.
func (st *staticPods) mayMirror(p *corev1.Pod) bool {
	h := st.hidden[p.UID]
	return h == nil || !time.Now().Before(h.again)
}

// isMirror says of a pod in the API that it only shows a static one, or says it does: what
// its annotation is does not matter.
func isMirror(p *corev1.Pod) bool {
	_, ok := p.Annotations[annConfigMirror]
	return ok
}

// endOrphanMirrors deletes the pods of the API that show no static pod of this node: which
// there are has to be known. Nothing runs for them, and nobody else would confirm that
// they have ended.
func (k *Kubelet) endOrphanMirrors(ctx context.Context) {
	for _, m := range k.orphanMirrors() {
		k.removeMirror(ctx, m)
	}
}

func (k *Kubelet) orphanMirrors() (all []*corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	here := map[types.NamespacedName]bool{} // what is left of a static pod is shown until it has ended
	for _, w := range k.workers {
		p := w.shown.Load().pod
		here[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = true
	}
	for _, m := range k.mirrors {
		if !here[types.NamespacedName{Namespace: m.Namespace, Name: m.Name}] {
			all = append(all, m)
		}
	}
	return all
}

// mirrorChanged hears of the API's copy of a static pod.
func (k *Kubelet) mirrorChanged(m *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mirrors[m.UID] = m
	for _, w := range k.workers {
		if p := w.shown.Load().pod; isStatic(p) && p.Namespace == m.Namespace && p.Name == m.Name {
			w.inbox.Lock()
			w.inbox.mirror = m
			w.inbox.Unlock()
			w.poke()
			if m.DeletionTimestamp != nil {
				k.wakeStatic() // another one is to be made
			}
		}
	}
}

// wakeStatic has static pods and their mirrors looked at.
func (k *Kubelet) wakeStatic() {
	select {
	case k.staticWake <- struct{}{}:
	default:
	}
}

func (k *Kubelet) mirrorGone(m *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.mirrors, m.UID)
	for _, w := range k.workers {
		w.inbox.Lock()
		if w.inbox.mirror != nil && w.inbox.mirror.UID == m.UID {
			w.inbox.mirror = nil
			k.wakeStatic()
		}
		w.inbox.Unlock()
	}
}

// ensureMirror makes the API show a static pod.
func (k *Kubelet) ensureMirror(ctx context.Context, w *worker, p *corev1.Pod) error {
	w.inbox.Lock()
	have := w.inbox.mirror
	w.inbox.Unlock()
	if have == nil {
		if have = k.mirrorOf(p); have != nil {
			k.mirrorChanged(have)
		}
	}
	hash := p.Annotations[annConfigHash]
	if have != nil && have.Annotations[annConfigMirror] == hash && have.DeletionTimestamp == nil {
		return nil
	}
	if have != nil && !k.removeMirror(ctx, have) { // an older version's, or one that somebody deleted
		return nil
	}
	m := p.DeepCopy()
	m.UID, m.ResourceVersion, m.Status = "", "", corev1.PodStatus{}
	m.Annotations[annConfigMirror] = hash
	if n := k.node.Load(); n != nil {
		yes := true
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID, Controller: &yes}}
	}
	got, err := k.client.CoreV1().Pods(m.Namespace).Create(ctx, m, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	k.mirrorChanged(got)
	return nil
}

// mirrorOf is what the API has under the name of a static pod, which may be an older
// version's.
func (k *Kubelet) mirrorOf(p *corev1.Pod) *corev1.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range k.mirrors {
		if m.Namespace == p.Namespace && m.Name == p.Name {
			return m
		}
	}
	return nil
}

// removeMirror reports whether it is not there any more.
func (k *Kubelet) removeMirror(ctx context.Context, m *corev1.Pod) bool {
	if err := k.deletePod(ctx, m); err != nil && !apierrors.IsNotFound(err) {
		if ctx.Err() == nil {
			slog.Warn("delete mirror pod", "pod", podspec.Format(m), "err", err)
		}
		return false
	}
	k.mirrorGone(m)
	return true
}
