package podcertificate

import (
	"context"
	"log/slog"
	"maps"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// A follower waits for what signers say of the node's requests: all of them by one watch,
// which is there while any is undecided. A signer may never answer, and a pod have many
// sources.
type follower struct {
	undecided map[cache.ObjectName]types.UID // the pods of requests
	watching  bool
	fewer     chan struct{} // that some are not waited for any more
	// asking is how many requests are being made, and early those that were decided
	// meanwhile: a signer may be faster than the answer that has a request's name.
	asking int
	early  map[cache.ObjectName]bool
}

// followAgain bounds the growing delay after a watch that failed.
var followAgain = [2]time.Duration{time.Second, time.Minute}

// making says that a request is being made; follow ends that.
func (m *Manager) making() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests.asking++
}

// made ends making. The lock is held.
func (f *follower) made() {
	if f.asking--; f.asking == 0 {
		f.early = nil
	}
}

// follow has the pod told when a request, which is nil if none could be made, is decided or
// gone.
func (m *Manager) follow(pod types.UID, request *certificatesv1beta1.PodCertificateRequest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := &m.requests
	defer f.made()
	switch {
	case request == nil:
		return
	case f.early[cache.MetaObjectToName(request)]:
		m.cfg.Follow(func(context.Context) { m.cfg.Changed(pod) })
		return
	}
	f.undecided[cache.MetaObjectToName(request)] = pod
	if !f.watching {
		f.watching = true
		m.cfg.Follow(m.followAll)
	}
}

// unfollow forgets the requests of a pod that is gone. The lock is held.
func (m *Manager) unfollow(pod types.UID) {
	maps.DeleteFunc(m.requests.undecided, func(_ cache.ObjectName, of types.UID) bool { return of == pod })
	select {
	case m.requests.fewer <- struct{}{}:
	default:
	}
}

// done tells the pod of a request that is decided or gone.
func (m *Manager) done(request cache.ObjectName) {
	m.mu.Lock()
	f := &m.requests
	pod, waits := f.undecided[request]
	delete(f.undecided, request)
	if !waits && f.asking > 0 {
		if f.early == nil {
			f.early = map[cache.ObjectName]bool{}
		}
		f.early[request] = true
	}
	m.mu.Unlock()
	if waits {
		m.cfg.Changed(pod)
	}
}

// none says whether nothing is waited for, after which the watch ends.
func (m *Manager) none() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests.watching = len(m.requests.undecided) > 0
	return !m.requests.watching
}

// followAll watches while there is something to wait for.
func (m *Manager) followAll(ctx context.Context) {
	for delay := followAgain[0]; !m.none(); {
		began := time.Now()
		err := m.watchRequests(ctx)
		if err == nil || time.Since(began) > followAgain[1] {
			delay = followAgain[0]
		}
		if err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "follow the requests for certificates of pods", "err", err)
		}
		if m.none() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
			delay = min(2*delay, followAgain[1])
		}
	}
}

// watchRequests looks at all requests of the node, and then at what becomes of them. It
// returns when nothing is waited for any more, or the watch has ended.
func (m *Manager) watchRequests(ctx context.Context) error {
	m.mu.Lock()
	waited := maps.Clone(m.requests.undecided)
	m.mu.Unlock()
	api := m.cfg.Client.CertificatesV1beta1().PodCertificateRequests(metav1.NamespaceAll)
	selector := fields.OneTermEqualSelector("spec.nodeName", m.cfg.Node).String()
	list, err := api.List(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return err
	}
	for i := range list.Items {
		r := &list.Items[i]
		delete(waited, cache.MetaObjectToName(r))
		if len(r.Status.Conditions) > 0 {
			m.done(cache.MetaObjectToName(r))
		}
	}
	for request := range waited { // they are not there any more
		m.done(request)
	}
	w, err := api.Watch(ctx, metav1.ListOptions{FieldSelector: selector, ResourceVersion: list.ResourceVersion})
	if err != nil {
		return err
	}
	defer w.Stop()
	for !m.none() {
		select {
		case <-ctx.Done():
			return nil
		case <-m.requests.fewer:
		case e := <-w.ResultChan(): // of no type once it has ended
			r, ok := e.Object.(*certificatesv1beta1.PodCertificateRequest)
			if !ok {
				return nil
			}
			if e.Type == watch.Deleted || len(r.Status.Conditions) > 0 {
				m.done(cache.MetaObjectToName(r))
			}
		}
	}
	return nil
}
