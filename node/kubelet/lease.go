package kubelet

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// heartbeatTimeout is how long an API server may take for what says that the node is
	// alive, upstream's: one that takes requests and never answers is not waited for.
	heartbeatTimeout = 10 * time.Second
	// leaseRetryMost is how long a try to renew the lease waits after some that failed, upstream's.
	leaseRetryMost = 7 * time.Second
	// leaveAfter is how many tries in a row a server may leave unanswered.
	leaveAfter = 2
)

// keepLease renews the node's lease, which says that the kubelet is alive.
func (k *Kubelet) keepLease(ctx context.Context) {
	if !k.registered.wait(ctx) {
		return
	}
	var have *coordinationv1.Lease
	retry, unanswered := delay{first: time.Second, most: leaseRetryMost}, 0
	for wait := time.Duration(0); ; {
		if !sleep(ctx, wait) {
			return
		}
		asked, cancel := context.WithTimeout(ctx, k.heartbeat)
		got, err := k.renew(asked, have)
		late := asked.Err() != nil
		cancel()
		if err == nil {
			have, wait = got, time.Duration(k.cfg.Settings.NodeLeaseDurationSeconds)*time.Second/4
			retry.cur, unanswered = 0, 0
			continue
		}
		if ctx.Err() != nil {
			return
		}
		have, wait = nil, retry.next(time.Now())
		k.warnNew("renew lease", err)
		if late {
			unanswered++
		} else {
			unanswered = 0
		}
		if unanswered >= leaveAfter && k.cfg.LeaveServer != nil {
			unanswered = 0
			k.cfg.LeaveServer()
		}
	}
}

func (k *Kubelet) renew(ctx context.Context, have *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	api := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	var err error
	if have == nil {
		have, err = api.Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	missing := apierrors.IsNotFound(err)
	if missing {
		have = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: k.cfg.NodeName, Namespace: corev1.NamespaceNodeLease}}
	}
	l := have.DeepCopy()
	now, secs := metav1.NowMicro(), k.cfg.Settings.NodeLeaseDurationSeconds
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &k.cfg.NodeName, &secs, &now
	if n := k.node.Load(); n != nil && len(l.OwnerReferences) == 0 {
		l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}}
	}
	if missing {
		return api.Create(ctx, l, metav1.CreateOptions{})
	}
	return api.Update(ctx, l, metav1.UpdateOptions{})
}
