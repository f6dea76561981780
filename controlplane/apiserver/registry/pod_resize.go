package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const onlyCompute = "only cpu and memory resources are mutable"

func validateResize(_ context.Context, p, old *corev1.Pod) field.ErrorList {
	if _, ok := old.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods cannot be resized")}
	}
	if old.Spec.OS != nil && old.Spec.OS.Name == corev1.Windows {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "windows pods cannot be resized")}
	}
	var f faults
	spec := field.NewPath("spec")
	f.add(validatePodContent(p))
	was := old.Status.QOSClass
	if was == "" {
		was = PodQOS(old)
	}
	if was != PodQOS(p) {
		f.invalid(spec, p.Status.QOSClass, "Pod QOS Class may not change as a result of resizing")
	}
	for i := range old.Status.ContainerStatuses {
		if s := &old.Status.ContainerStatuses[i]; s.State.Running != nil {
			if s.Resources == nil {
				f.forbidden(spec, "Pod running on node without support for resize")
			}
			break
		}
	}
	if errs := sameContainers(p, old, spec); len(errs) > 0 {
		return append(f.list, errs...)
	}
	rest := p.Spec.DeepCopy()
	if rest.Resources != nil || old.Spec.Resources != nil {
		f.add(resizedPod(rest, &old.Spec, spec))
	}
	resized := func(now, before *corev1.Container, at *field.Path) {
		if removed(now.Resources.Requests, before.Resources.Requests) {
			f.forbidden(at.Child("resources", "requests"), "resource requests cannot be removed")
		}
		if removed(now.Resources.Limits, before.Resources.Limits) {
			f.forbidden(at.Child("resources", "limits"), "resource limits cannot be removed")
		}
		now.Resources.Requests = withoutCompute(now.Resources.Requests, before.Resources.Requests)
		now.Resources.Limits = withoutCompute(now.Resources.Limits, before.Resources.Limits)
	}
	for i := range rest.InitContainers {
		now, before, at := &rest.InitContainers[i], &old.Spec.InitContainers[i], spec.Child("initContainers").Index(i)
		changed := !same(*now, *before)
		resized(now, before, at)
		if !same(*now, *before) {
			f.forbidden(at, "only cpu and memory resources for init or sidecar containers are mutable")
		}
		if changed && !isSidecar(now) {
			for _, r := range now.ResizePolicy {
				if r.RestartPolicy == corev1.RestartContainer {
					f.forbidden(at, "non-sidecar init containers with a resize policy of RestartContainer cannot be resized")
				}
			}
		}
	}
	for i := range rest.Containers {
		now, before := &rest.Containers[i], &old.Spec.Containers[i]
		resized(now, before, spec.Child("containers").Index(i))
		if !same(*now, *before) {
			f.forbidden(spec, onlyCompute)
		}
	}
	if len(f.list) == 0 && !same(*rest, old.Spec) {
		f.forbidden(spec, onlyCompute)
	}
	return f.list
}

func sameContainers(p, old *corev1.Pod, at *field.Path) field.ErrorList {
	var f faults
	compare := func(now, was []corev1.Container, kind string) {
		if len(now) != len(was) {
			f.forbidden(at.Child(kind), kind+" may not be added or removed on resize")
			return
		}
		for i := range was {
			if now[i].Name != was[i].Name {
				f.forbidden(at.Child(kind).Index(i).Child("name"), kind+" may not be renamed or reordered on resize")
			}
		}
	}
	compare(p.Spec.Containers, old.Spec.Containers, "containers")
	compare(p.Spec.InitContainers, old.Spec.InitContainers, "initContainers")
	return f.list
}

// resizedPod checks resources of the pod as a whole and takes the allowed
// changes out of s.
func resizedPod(s, old *corev1.PodSpec, at *field.Path) field.ErrorList {
	var f faults
	var now, was corev1.ResourceRequirements
	if s.Resources != nil {
		now = *s.Resources
	}
	if old.Resources != nil {
		was = *old.Resources
	}
	if removed(now.Requests, was.Requests) {
		f.forbidden(at.Child("resources", "requests"), "resource requests cannot be removed")
	}
	if removed(now.Limits, was.Limits) {
		f.forbidden(at.Child("resources", "limits"), "resource limits cannot be removed")
	}
	if same(withoutCompute(now.Requests, was.Requests), was.Requests) && same(withoutCompute(now.Limits, was.Limits), was.Limits) {
		s.Resources = old.Resources
	}
	return f.list
}

func removed(now, was corev1.ResourceList) bool {
	for name := range was {
		if _, ok := now[name]; !ok {
			return true
		}
	}
	return false
}

// withoutCompute is now with the cpu and memory of before.
func withoutCompute(now, before corev1.ResourceList) corev1.ResourceList {
	out := now.DeepCopy()
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		q, had := before[name]
		if !had {
			delete(out, name)
			continue
		}
		if out == nil {
			out = corev1.ResourceList{}
		}
		out[name] = q
	}
	return out
}
