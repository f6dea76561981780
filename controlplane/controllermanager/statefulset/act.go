package statefulset

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/controlplane/controllermanager/pods"
)

// act takes the next step: it brings up what is missing, then takes down what
// is too much, then what is outdated. Where pods are ordered each step waits
// until the pods before it are well.
func (r *reconciler) act(ctx context.Context, key cache.ObjectName, v *view) error {
	if v.ordered() {
		for i := range v.wanted {
			made, wait, err := r.bringUp(ctx, key, v, i)
			if made != nil {
				v.replicas[i] = made
			}
			if wait || err != nil {
				return err
			}
		}
	} else if err := r.bringUpAll(ctx, key, v); err != nil {
		return err
	}
	for _, p := range v.condemned {
		if err := r.retainClaims(ctx, v, p); err != nil {
			return err
		}
	}
	for i := len(v.condemned) - 1; i >= 0; i-- {
		p := v.condemned[i]
		if p.DeletionTimestamp != nil {
			if v.ordered() {
				return nil
			}
			continue
		}
		if v.ordered() && !v.healthy(p) && p != v.firstUnhealthyPod() {
			return nil // a lower one that is unwell goes only when its turn comes
		}
		if err := r.delete(ctx, key, v, p); err != nil || v.ordered() {
			return err
		}
	}
	if p := v.outdated(); p != nil {
		return r.delete(ctx, key, v, p)
	}
	return nil
}

// firstUnhealthyPod is the condemned pod of the lowest ordinal that is not well.
func (v *view) firstUnhealthyPod() *corev1.Pod {
	for _, p := range v.condemned {
		if !v.healthy(p) {
			return p
		}
	}
	return nil
}

// perLook is how many pods that wait for none are made before the set is looked at again,
// which their events bring about.
const perLook = 500

// bringUpAll makes pods be there that do not wait for each other.
func (r *reconciler) bringUpAll(ctx context.Context, key cache.ObjectName, v *view) error {
	list := v.upTo(perLook)
	made := make([]*corev1.Pod, len(list))
	_, err := pods.SlowStart(len(list), func(n int) (err error) {
		made[n], _, err = r.bringUp(ctx, key, v, list[n])
		return err
	})
	for n, p := range made {
		if p != nil {
			v.replicas[list[n]] = p
		}
	}
	return err
}

// bringUp makes the i-th pod be there, and gives it if it was not. It reports whether those
// after it have to wait for it.
func (r *reconciler) bringUp(ctx context.Context, key cache.ObjectName, v *view, i int) (made *corev1.Pod, wait bool, err error) {
	p := v.replicas[i]
	if p != nil && pods.Terminal(p) {
		reason, what := "RecreatingFailedPod", "failed"
		if p.Status.Phase == corev1.PodSucceeded {
			reason, what = "RecreatingTerminatedPod", "terminated"
		}
		if p.DeletionTimestamp == nil {
			r.events.Eventf(v.set, corev1.EventTypeWarning, reason, "StatefulSet %s/%s is recreating %s Pod %s", v.set.Namespace, v.set.Name, what, p.Name)
			return nil, true, r.delete(ctx, key, v, p)
		}
		return nil, true, nil
	}
	if p == nil {
		template, revision := v.templateFor(i)
		p = v.pod(template, revision, v.start()+i)
		if end, err := r.claimsEnd(v, p); end || err != nil {
			return nil, true, err // the claims' own events come before the next look
		}
		if err := r.ensureClaims(ctx, v, p); err != nil {
			return nil, true, err
		}
		made, err = r.client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil, true, nil // its event is on the way, or another's pod bears the name
		}
		r.recordEvent(v, "create", p, err)
		if err != nil {
			return nil, true, err
		}
		r.wrote.Wrote(key, r.pods, made)
		return made, true, nil
	}
	if p.Status.Phase == corev1.PodPending {
		if err := r.ensureClaims(ctx, v, p); err != nil {
			return nil, true, err
		}
	}
	if err := r.identify(ctx, key, v, p); err != nil {
		return nil, true, err
	}
	if v.ordered() && !v.healthy(p) {
		return nil, true, nil
	}
	return nil, false, r.retainClaims(ctx, v, p)
}

// identify gives an adopted pod its labels.
func (r *reconciler) identify(ctx context.Context, key cache.ObjectName, v *view, p *corev1.Pod) error {
	if p.DeletionTimestamp != nil || p.Labels[podNameLabel] == p.Name {
		return nil
	}
	next := p.DeepCopy()
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	next.Labels[podNameLabel] = p.Name
	made, err := r.client.CoreV1().Pods(p.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err == nil {
		r.wrote.Wrote(key, r.pods, made)
	}
	if !apierrors.IsConflict(err) {
		r.recordEvent(v, "update", p, err)
	}
	return err
}

func (r *reconciler) delete(ctx context.Context, key cache.ObjectName, v *view, p *corev1.Pod) error {
	err := r.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
	if apierrors.IsNotFound(err) {
		err = nil
	} else {
		r.recordEvent(v, "delete", p, err)
	}
	if err == nil {
		r.wrote.Deleted(key, r.pods, p)
	}
	return err
}

// recordEvent records what was done to a pod.
func (r *reconciler) recordEvent(v *view, verb string, p *corev1.Pod, err error) {
	title := strings.ToUpper(verb[:1]) + verb[1:]
	if err != nil {
		r.events.Eventf(v.set, corev1.EventTypeWarning, "Failed"+title, "%s Pod %s in StatefulSet %s failed error: %s", verb, p.Name, v.set.Name, err)
		return
	}
	r.events.Eventf(v.set, corev1.EventTypeNormal, "Successful"+title, "%s Pod %s in StatefulSet %s successful", verb, p.Name, v.set.Name)
}

// ensureClaims creates the claims of a pod that are missing.
func (r *reconciler) ensureClaims(ctx context.Context, v *view, p *corev1.Pod) error {
	for _, claim := range v.claims(ordinal(v.set, p)) {
		key := claim.Namespace + "/" + claim.Name
		if obj, ok, err := r.claims.GetByKey(key); err != nil {
			return err
		} else if ok {
			if obj.(*corev1.PersistentVolumeClaim).DeletionTimestamp != nil {
				return fmt.Errorf("pvc %s is being deleted", claim.Name)
			}
			continue
		}
		_, err := r.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Create(ctx, claim.PersistentVolumeClaim, metav1.CreateOptions{})
		switch {
		case apierrors.IsAlreadyExists(err):
		case err != nil:
			r.events.Eventf(v.set, corev1.EventTypeWarning, "FailedCreate", "create Claim %s for Pod %s in StatefulSet %s failed error: %s", claim.Name, p.Name, v.set.Name, err)
			return err
		default:
			r.events.Eventf(v.set, corev1.EventTypeNormal, "SuccessfulCreate", "create Claim %s Pod %s in StatefulSet %s success", claim.Name, p.Name, v.set.Name)
		}
	}
	return nil
}
