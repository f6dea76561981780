package criconfig

import (
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// TestAddDevices: what two resources of one plugin ask for alike is there once, and the
// container's own variables come last, since the last one wins.
func TestAddDevices(t *testing.T) {
	answer := &pluginapi.ContainerAllocateResponse{
		Envs:        map[string]string{"MODE": "plugin"},
		Devices:     []*pluginapi.DeviceSpec{{HostPath: "/dev/a", ContainerPath: "/dev/b", Permissions: "rw"}},
		Mounts:      []*pluginapi.Mount{{HostPath: "/lib", ContainerPath: "/driver", ReadOnly: true}},
		Annotations: map[string]string{"x": "y"},
		CdiDevices:  []*pluginapi.CDIDevice{{Name: "v/c=1"}},
	}
	cfg := &cri.ContainerConfig{Annotations: map[string]string{}, Envs: []*cri.KeyValue{{Key: "MODE", Value: []byte("own")}}}
	addDevices(cfg, []*pluginapi.ContainerAllocateResponse{answer, answer})
	if len(cfg.Devices) != 1 || cfg.Devices[0].HostPath != "/dev/a" || len(cfg.Mounts) != 1 || !cfg.Mounts[0].Readonly || cfg.Annotations["x"] != "y" ||
		len(cfg.CDIDevices) != 1 || len(cfg.Envs) != 2 || string(cfg.Envs[1].Value) != "own" {
		t.Errorf("%+v", cfg)
	}
}
