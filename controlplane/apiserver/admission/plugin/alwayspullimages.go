package plugin

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/controlplane/apiserver/admission"
)

// alwaysPullImages lets no pod run an image that its own credentials have not
// fetched.
type alwaysPullImages struct{}

func (alwaysPullImages) Name() string { return "AlwaysPullImages" }

func (alwaysPullImages) Admit(_ context.Context, a *admission.Attributes) error {
	for _, p := range pulls(a) {
		*p.policy = corev1.PullAlways
	}
	return nil
}

func (alwaysPullImages) Validate(_ context.Context, a *admission.Attributes) error {
	var errs []error
	for _, p := range pulls(a) {
		if *p.policy != corev1.PullAlways {
			errs = append(errs, forbidden(a, field.NotSupported(p.at, *p.policy, []corev1.PullPolicy{corev1.PullAlways})))
		}
	}
	return utilerrors.NewAggregate(errs)
}

// A pull is when one image of a pod is fetched.
type pull struct {
	at     *field.Path
	policy *corev1.PullPolicy
}

// pulls are those of a pod that brings an image.
func pulls(a *admission.Attributes) (all []pull) {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || !is(a, "pods", "") || a.Operation != admission.Create && a.Operation != admission.Update {
		return nil
	}
	if old, ok := a.Old.(*corev1.Pod); ok {
		had := images(old)
		if !slices.ContainsFunc(images(pod), func(image string) bool { return !slices.Contains(had, image) }) {
			return nil
		}
	}
	spec := field.NewPath("spec")
	for i := range pod.Spec.InitContainers {
		all = append(all, pull{spec.Child("initContainers").Index(i).Child("imagePullPolicy"), &pod.Spec.InitContainers[i].ImagePullPolicy})
	}
	for i := range pod.Spec.Containers {
		all = append(all, pull{spec.Child("containers").Index(i).Child("imagePullPolicy"), &pod.Spec.Containers[i].ImagePullPolicy})
	}
	for i := range pod.Spec.EphemeralContainers {
		all = append(all, pull{spec.Child("ephemeralContainers").Index(i).Child("imagePullPolicy"), &pod.Spec.EphemeralContainers[i].ImagePullPolicy})
	}
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			all = append(all, pull{spec.Child("volumes").Index(i).Child("image", "pullPolicy"), &image.PullPolicy})
		}
	}
	return all
}

func images(pod *corev1.Pod) (all []string) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		all = append(all, c.Image)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		all = append(all, c.Image)
	}
	return all
}
