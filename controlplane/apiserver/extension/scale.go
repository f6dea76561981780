package extension

import (
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"knarr/controlplane/apiserver/registry"
)

// scaleSub is the scale subresource over the paths that the definition names.
func (k *kind) scaleSub(s *apiextensionsv1.CustomResourceSubresourceScale) registry.Sub {
	return registry.Sub{
		Name: "scale", Kind: autoscalingv1.SchemeGroupVersion.WithKind("Scale"), Verbs: []string{"get", "patch", "update"},
		GetScale: func(obj registry.Object) (*autoscalingv1.Scale, error) {
			return scaleOf(obj.(*unstructured.Unstructured), s)
		},
		SetScale: func(obj registry.Object, n int32) {
			// A path through what is no object was refused when the scale was read.
			_ = unstructured.SetNestedField(obj.(*unstructured.Unstructured).Object, int64(n), pathOf(s.SpecReplicasPath)...)
		},
		ReplicasPath: pathOf(s.SpecReplicasPath),
		Prepare:      k.PrepareObject,
		Validate:     k.validate,
	}
}

func scaleOf(u *unstructured.Unstructured, s *apiextensionsv1.CustomResourceSubresourceScale) (*autoscalingv1.Scale, error) {
	want, found, err := unstructured.NestedInt64(u.Object, pathOf(s.SpecReplicasPath)...)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, apierrors.NewInternalError(fmt.Errorf("the spec replicas field %q does not exist", s.SpecReplicasPath))
	}
	have, _, err := unstructured.NestedInt64(u.Object, pathOf(s.StatusReplicasPath)...)
	if err != nil {
		return nil, err
	}
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: int32(want)}}
	scale.Status.Replicas = int32(have)
	if p := s.LabelSelectorPath; p != nil && *p != "" {
		if scale.Status.Selector, _, err = unstructured.NestedString(u.Object, pathOf(*p)...); err != nil {
			return nil, err
		}
	}
	return scale, nil
}
