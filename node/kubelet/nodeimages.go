package kubelet

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// updateImages refreshes the list of images the Node shows.
func (k *Kubelet) updateImages(ctx context.Context) {
	res, err := k.images.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return // shown again once the runtime answers
	}
	list := nodeImages(res.Images, int(*k.cfg.Settings.NodeStatusMaxImages))
	k.imageList.Store(&list)
}

// nodeImages are the largest images, as the Node shows them.
func nodeImages(all []*cri.Image, most int) []corev1.ContainerImage {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b *cri.Image) int { return cmp.Compare(int64(b.Size), int64(a.Size)) })
	if most < 0 {
		most = len(all)
	}
	out := make([]corev1.ContainerImage, 0, min(len(all), most))
	for _, i := range all[:min(len(all), most)] {
		names := append(slices.Clone(i.RepoDigests), i.RepoTags...)
		if len(names) == 0 {
			names = []string{i.Id}
		}
		out = append(out, corev1.ContainerImage{Names: names[:min(len(names), maxNames)], SizeBytes: int64(i.Size)})
	}
	return out
}
