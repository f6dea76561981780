package replicaset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/internal/controller"
)

// NewRC returns the ReplicationController controller: the same reconciler
// behind a view of each ReplicationController as a ReplicaSet.
func NewRC(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder) (*controller.Controller[cache.ObjectName], error) {
	api := client.CoreV1()
	return build(NameRC, f, client, events, kind{
		gvk:      corev1.SchemeGroupVersion.WithKind("ReplicationController"),
		informer: f.Core().V1().ReplicationControllers().Informer(),
		see: func(obj any) *appsv1.ReplicaSet {
			if rc, ok := obj.(*corev1.ReplicationController); ok {
				return fromRC(rc.DeepCopy())
			}
			return nil
		},
		selector: func(obj any) *metav1.LabelSelector {
			return &metav1.LabelSelector{MatchLabels: obj.(*corev1.ReplicationController).Spec.Selector}
		},
		fresh: func(ctx context.Context, namespace, name string) (metav1.Object, error) {
			return api.ReplicationControllers(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		store: func(ctx context.Context, rs *appsv1.ReplicaSet) (metav1.Object, error) {
			return api.ReplicationControllers(rs.Namespace).UpdateStatus(ctx, toRC(rs), metav1.UpdateOptions{})
		},
	})
}

func fromRC(rc *corev1.ReplicationController) *appsv1.ReplicaSet {
	rs := &appsv1.ReplicaSet{
		ObjectMeta: rc.ObjectMeta,
		Spec: appsv1.ReplicaSetSpec{Replicas: rc.Spec.Replicas, MinReadySeconds: rc.Spec.MinReadySeconds,
			Selector: &metav1.LabelSelector{MatchLabels: rc.Spec.Selector}},
		Status: appsv1.ReplicaSetStatus{
			Replicas: rc.Status.Replicas, FullyLabeledReplicas: rc.Status.FullyLabeledReplicas,
			ReadyReplicas: rc.Status.ReadyReplicas, AvailableReplicas: rc.Status.AvailableReplicas,
			ObservedGeneration: rc.Status.ObservedGeneration,
		},
	}
	if rc.Spec.Template != nil {
		rs.Spec.Template = *rc.Spec.Template
	}
	for _, c := range rc.Status.Conditions {
		rs.Status.Conditions = append(rs.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return rs
}

func toRC(rs *appsv1.ReplicaSet) *corev1.ReplicationController {
	rc := &corev1.ReplicationController{
		ObjectMeta: rs.ObjectMeta,
		Spec: corev1.ReplicationControllerSpec{Replicas: rs.Spec.Replicas, MinReadySeconds: rs.Spec.MinReadySeconds,
			Selector: rs.Spec.Selector.MatchLabels, Template: &rs.Spec.Template},
		Status: corev1.ReplicationControllerStatus{
			Replicas: rs.Status.Replicas, FullyLabeledReplicas: rs.Status.FullyLabeledReplicas,
			ReadyReplicas: rs.Status.ReadyReplicas, AvailableReplicas: rs.Status.AvailableReplicas,
			ObservedGeneration: rs.Status.ObservedGeneration,
		},
	}
	for _, c := range rs.Status.Conditions {
		rc.Status.Conditions = append(rc.Status.Conditions, corev1.ReplicationControllerCondition{
			Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return rc
}
