package localstorage

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/tools/reference"
	"k8s.io/component-helpers/storage/volume"

	"knarr/addons/localstorage/driver"
)

const (
	// gracePeriod is how long after this node's refusal the others have had their chance
	// to take the claim.
	gracePeriod = 5 * time.Second
	// sourcePeriod is the same where only one of the others can: that one has said why not,
	// if it is there.
	sourcePeriod = 2 * (gracePeriod + refusalSpread*electionSpread)
	// refusalSpread times the election's delay is how long nodes spread their
	// reports after that: one is enough, and the others find it there.
	refusalSpread = 5
	// refusalPeriod is how often it is reported: for so long the API server keeps events.
	refusalPeriod = time.Hour
)

// refusals are claims that may be on any node, and that this node did not take.
type refusals struct {
	mu    sync.Mutex
	all   map[types.UID]*refusal
	swept time.Time // when claims that are gone were last forgotten
}

// A refusal is of one claim.
type refusal struct{ first, last, reported time.Time }

// note notes a refusal, and gives how long to wait until it may be reported, and whether
// it has been. At first others have their chance.
func (r *refusals) note(claim types.UID, delay time.Duration, now time.Time) (wait time.Duration, reported bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.all[claim]
	if one == nil {
		if r.all == nil {
			r.all = map[types.UID]*refusal{}
		}
		r.sweep(now)
		one = &refusal{first: now}
		r.all[claim] = one
	}
	one.last = now
	return delay - now.Sub(one.first), !one.reported.IsZero() && now.Sub(one.reported) < refusalPeriod
}

// sweep forgets claims that are gone, not at each new one: there may be many. The lock is
// held.
func (r *refusals) sweep(now time.Time) {
	if now.Sub(r.swept) <= refusalPeriod {
		return
	}
	r.swept = now
	maps.DeleteFunc(r.all, func(_ types.UID, old *refusal) bool { return now.Sub(old.last) > refusalPeriod })
}

// done notes that the refusal has been reported, by whatever node.
func (r *refusals) done(claim types.UID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one := r.all[claim]; one != nil {
		one.reported = now
	}
}

// forget forgets a claim that a node has taken.
func (r *refusals) forget(claim types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, claim)
}

// refuse reports on a claim that may be on any node why none takes it, once for all nodes.
// The others have grace to take it; with none, no other node could either.
func (p *provisioner) refuse(ctx context.Context, c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, why error, grace time.Duration, now time.Time) (again time.Duration, err error) {
	delay := grace
	if grace > 0 {
		delay += refusalSpread * electionDelay(c, p.node.Name)
	}
	switch wait, reported := p.refusals.note(c.UID, delay, now); {
	case wait > 0:
		return wait, nil
	case reported:
		return capacityPeriod, nil
	}
	// The cache may be behind: another node may have it.
	live, err := p.client.CoreV1().PersistentVolumeClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("look whether a node took claim %s/%s: %w", c.Namespace, c.Name, err)
	case live.UID != c.UID || live.Spec.VolumeName != "" || live.Annotations[volume.AnnSelectedNode] != "":
		return 0, nil // its event follows
	}
	e, err := refusalEvent(c, class, why, p.node.Name, now)
	if err == nil {
		_, err = p.client.CoreV1().Events(c.Namespace).Create(ctx, e, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return 0, fmt.Errorf("say why no node takes claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	p.refusals.done(c.UID, now)
	return capacityPeriod, nil
}

// refusalEvent is the event that says why no node takes a claim. Its name is the same
// on each node, so that there can only be one.
func refusalEvent(c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, why error, node string, now time.Time) (*corev1.Event, error) {
	ref, err := reference.GetReference(scheme.Scheme, c)
	if err != nil {
		return nil, err
	}
	h := fnv.New64a()
	_, _ = io.WriteString(h, string(c.UID)+string(class.UID))
	at := metav1.NewTime(now)
	component := driver.Name + "_" + node
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: c.Namespace, Name: util.GenerateEventName(c.Name, int64(h.Sum64()>>1))},
		InvolvedObject: *ref, Type: corev1.EventTypeWarning, Reason: provisioningFailed, Message: failure(class, why),
		Source: corev1.EventSource{Component: component}, ReportingController: component,
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}, nil
}
