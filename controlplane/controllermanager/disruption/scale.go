package disruption

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/apipath"
)

// scales knows how many pods their controllers want.
type scales struct {
	client                           kubernetes.Interface
	sets, rcs, deployments, stateful cache.Indexer
}

// expected is the sum of what the controllers of pods want, each counted once,
// and how many pods have none.
func (s *scales) expected(ctx context.Context, pods []*corev1.Pod) (sum, unmanaged int, err error) {
	known := map[types.UID]bool{}
	for _, pod := range pods {
		ref := metav1.GetControllerOfNoCopy(pod)
		if ref == nil {
			unmanaged++
			continue
		}
		if known[ref.UID] {
			continue
		}
		n, uid, err := s.of(ctx, pod.Namespace, ref)
		switch {
		case err != nil:
			return 0, 0, err
		case uid == "":
			return 0, 0, fmt.Errorf("found no controllers for pod %q", pod.Name)
		case !known[uid]:
			sum += n
		}
		known[ref.UID], known[uid] = true, true
	}
	return sum, unmanaged, nil
}

// of is what the controller wants, and whose wish that is: a ReplicaSet's may
// be its Deployment's. The UID is empty when it is gone.
func (s *scales) of(ctx context.Context, namespace string, ref *metav1.OwnerReference) (int, types.UID, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return 0, "", err
	}
	switch (schema.GroupKind{Group: gv.Group, Kind: ref.Kind}) {
	case schema.GroupKind{Kind: "ReplicationController"}:
		if rc, ok := find[*corev1.ReplicationController](s.rcs, namespace, ref); ok {
			return replicas(rc.Spec.Replicas), rc.UID, nil
		}
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"}:
		if set, ok := find[*appsv1.StatefulSet](s.stateful, namespace, ref); ok {
			return replicas(set.Spec.Replicas), set.UID, nil
		}
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}:
		set, ok := find[*appsv1.ReplicaSet](s.sets, namespace, ref)
		if !ok {
			break
		}
		above := metav1.GetControllerOfNoCopy(set)
		if above == nil || above.Kind != "Deployment" {
			return replicas(set.Spec.Replicas), set.UID, nil
		}
		if d, ok := find[*appsv1.Deployment](s.deployments, namespace, above); ok {
			return replicas(d.Spec.Replicas), d.UID, nil
		}
	}
	return s.ask(ctx, namespace, gv, ref)
}

func find[T metav1.Object](in cache.Indexer, namespace string, ref *metav1.OwnerReference) (found T, ok bool) {
	o, exists, err := in.GetByKey(namespace + "/" + ref.Name)
	if err != nil || !exists {
		return found, false
	}
	found, ok = o.(T)
	return found, ok && found.GetUID() == ref.UID
}

// ask reads the scale of whatever has one.
func (s *scales) ask(ctx context.Context, namespace string, gv schema.GroupVersion, ref *metav1.OwnerReference) (int, types.UID, error) {
	if err := apipath.Check(gv.Version, ref.Name); err != nil {
		return 0, "", nil // nothing has such a name
	}
	if gv.Group != "" && apipath.Check(gv.Group) != nil {
		return 0, "", &meta.NoKindMatchError{GroupKind: gv.WithKind(ref.Kind).GroupKind(), SearchedVersions: []string{gv.Version}}
	}
	list, err := s.client.Discovery().ServerResourcesForGroupVersion(gv.String())
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, "", fmt.Errorf("look for %s: %w", ref.Kind, err)
	}
	plural, scalable := "", map[string]bool{}
	if err == nil {
		for _, res := range list.APIResources {
			switch {
			case res.Kind == "Scale":
				scalable[res.Name] = true
			case res.Kind == ref.Kind && plural == "":
				plural = res.Name
			}
		}
	}
	if plural == "" {
		return 0, "", &meta.NoKindMatchError{GroupKind: gv.WithKind(ref.Kind).GroupKind(), SearchedVersions: []string{gv.Version}}
	}
	if !scalable[plural+"/scale"] {
		return 0, "", fmt.Errorf("%s does not implement the scale subresource", gv.WithResource(plural).GroupResource())
	}
	root := []string{"apis", gv.Group, gv.Version}
	if gv.Group == "" {
		root = []string{"api", gv.Version}
	}
	raw, err := s.client.CoreV1().RESTClient().Get().AbsPath(append(root, "namespaces", namespace, plural, ref.Name, "scale")...).
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return 0, "", nil
	}
	if err != nil {
		return 0, "", err
	}
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	if err != nil {
		return 0, "", fmt.Errorf("read the scale of %s/%s: %w", plural, ref.Name, err)
	}
	scale, ok := obj.(*autoscalingv1.Scale)
	if !ok || scale.UID != ref.UID {
		return 0, "", nil
	}
	return int(scale.Spec.Replicas), scale.UID, nil
}
