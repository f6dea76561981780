package pods

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"

	"knarr/internal/informer"
)

const byClaim = "pods: claim"

// Claim is the name of the claim behind a pod's volume, "" if there is none.
func Claim(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, v)
	}
	return ""
}

// Claims are the names of the claims behind a pod's volumes.
func Claims(pod *corev1.Pod) (names []string) {
	for i := range pod.Spec.Volumes {
		if name := Claim(pod, &pod.Spec.Volumes[i]); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// IndexClaims lets Claiming find pods. Several controllers may ask for it.
func IndexClaims(inf cache.SharedIndexInformer) error {
	if _, ok := inf.GetIndexer().GetIndexers()[byClaim]; ok {
		return nil
	}
	err := informer.Index(inf, cache.Indexers{byClaim: func(o any) (keys []string, err error) {
		if pod, ok := o.(*corev1.Pod); ok {
			for _, name := range Claims(pod) {
				keys = append(keys, pod.Namespace+"/"+name)
			}
		}
		return keys, nil
	}})
	if err != nil {
		return fmt.Errorf("index pods by claim: %w", err)
	}
	return nil
}

// Claiming are the pods with a volume of the claim.
func Claiming(in cache.Indexer, claim cache.ObjectName) ([]*corev1.Pod, error) {
	all, err := in.ByIndex(byClaim, claim.String())
	if err != nil {
		return nil, fmt.Errorf("pods of claim %s: %w", claim, err)
	}
	list := make([]*corev1.Pod, len(all))
	for i, o := range all {
		list[i] = o.(*corev1.Pod)
	}
	return list, nil
}
