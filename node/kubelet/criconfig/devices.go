package criconfig

import (
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// addDevices gives a container what the plugins of its devices want.
func addDevices(cfg *cri.ContainerConfig, answers []*pluginapi.ContainerAllocateResponse) {
	seen := map[string]bool{} // what two resources of one plugin ask for alike counts once
	once := func(key string) bool {
		was := seen[key]
		seen[key] = true
		return !was
	}
	var envs []*cri.KeyValue
	for _, a := range answers {
		for name, value := range a.Envs {
			if once("env " + name) {
				envs = append(envs, &cri.KeyValue{Key: name, Value: []byte(value)})
			}
		}
		for _, d := range a.Devices {
			if once("device " + d.ContainerPath) {
				cfg.Devices = append(cfg.Devices, &cri.Device{HostPath: d.HostPath, ContainerPath: d.ContainerPath, Permissions: d.Permissions})
			}
		}
		for _, m := range a.Mounts {
			if once("mount " + m.ContainerPath) {
				cfg.Mounts = append(cfg.Mounts, &cri.Mount{HostPath: m.HostPath, ContainerPath: m.ContainerPath, Readonly: m.ReadOnly})
			}
		}
		for name, value := range a.Annotations {
			if once("annotation " + name) {
				cfg.Annotations[name] = value
			}
		}
		for _, d := range a.CdiDevices {
			if once("CDI " + d.Name) {
				cfg.CDIDevices = append(cfg.CDIDevices, &cri.CDIDevice{Name: d.Name})
			}
		}
	}
	cfg.Envs = append(envs, cfg.Envs...) // the container's own win
}
