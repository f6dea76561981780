package pods

import (
	"context"
	"encoding/json"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/informer"
)

const byNode = "knarr.node"

// IndexByNode makes the informer of pods able to answer OnNode. It must be
// called before the informer starts; once is enough.
func IndexByNode(inf cache.SharedIndexInformer) error {
	if _, ok := inf.GetIndexer().GetIndexers()[byNode]; ok {
		return nil
	}
	return informer.Index(inf, cache.Indexers{byNode: func(obj any) ([]string, error) {
		p, ok := obj.(*corev1.Pod)
		if !ok {
			return nil, errors.New("index of pods by node: not a pod")
		}
		if p.Spec.NodeName == "" {
			return nil, nil
		}
		return []string{p.Spec.NodeName}, nil
	}})
}

// OnNode are the pods bound to a node.
func OnNode(indexer cache.Indexer, node string) ([]*corev1.Pod, error) {
	found, err := indexer.ByIndex(byNode, node)
	out := make([]*corev1.Pod, 0, len(found))
	for _, o := range found {
		out = append(out, o.(*corev1.Pod))
	}
	return out, err
}

// Disrupt writes into a pod's status why it is about to be deleted; with fail
// also that it failed, unless it has ended. That the pod is gone is no error.
func Disrupt(ctx context.Context, client coreclient.PodsGetter, p *corev1.Pod, reason, message string, fail bool) error {
	status := p.Status.DeepCopy()
	changed := SetCondition(status, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: p.Generation,
		LastTransitionTime: metav1.Now(), Reason: reason, Message: message,
	})
	change := map[string]any{"conditions": []corev1.PodCondition{*Condition(&corev1.Pod{Status: *status}, corev1.DisruptionTarget)}}
	if fail && !Terminal(p) {
		change["phase"], changed = corev1.PodFailed, true
	}
	if !changed {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": change})
	if err != nil {
		return err
	}
	_, err = client.Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
