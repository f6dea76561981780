package kubelet

import (
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// rootDir is where the kubelet keeps its own files.
func (k *Kubelet) rootDir() string { return k.cfg.RootDir }

// imageDir is where the runtime keeps images.
func (k *Kubelet) imageDir() string {
	images, _ := k.runtimeDirs()
	return images
}

// containerDir is where the runtime keeps what containers write to their own files.
func (k *Kubelet) containerDir() string {
	_, containers := k.runtimeDirs()
	return containers
}

// runtimeDirs asks the runtime once. One that says nothing of containers' files keeps
// them with the images.
func (k *Kubelet) runtimeDirs() (images, containers string) {
	u := &k.imageUse
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.dir == "" {
		res, err := k.images.ImageFsInfo(k.ctx, &cri.ImageFsInfoRequest{})
		if err != nil || len(res.ImageFilesystems) == 0 {
			return k.cfg.RootDir, k.cfg.RootDir
		}
		u.dir = res.ImageFilesystems[0].GetFsId().GetMountpoint()
		u.layers = u.dir
		if c := res.ContainerFilesystems; len(c) > 0 && c[0].GetFsId().GetMountpoint() != "" {
			u.layers = c[0].GetFsId().GetMountpoint()
		}
	}
	return u.dir, u.layers
}
