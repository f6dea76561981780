package criconfig

import (
	"context"
	"encoding/json"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"knarr/node/kubelet/crilabels"
	"knarr/node/kubelet/expansion"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/volume"
)

// Inputs is what a container is made of besides the node.
type Inputs struct {
	Pod      *corev1.Pod
	Spec     *corev1.Container
	Attempt  uint32
	Restarts int
	LogPath  string // below the pod's log directory
	Image    *cri.Image
	IPs      []string
	Volumes  map[string]volume.Mounted
	// imageVolumes are the ids of the images that are volumes, by volume name.
	ImageVolumes map[string]string
	// target is the container whose processes an ephemeral one joins.
	Target string
	// services are those that the variables of services are made of.
	Services []*corev1.Service
	// allocatable is what the node has for pods.
	Allocatable corev1.ResourceList
	// recursiveReadOnly says whether the runtime can mount a volume read-only
	// with everything that is mounted below it.
	RecursiveReadOnly bool
	// CPUs are those it runs on, MemoryNodes the NUMA nodes of its memory; "": all.
	CPUs, MemoryNodes string
	// Users is the pod's user namespace; nil: the node's.
	Users *cri.UserNamespace
	// Plugins are what the plugins of the container's devices want.
	Plugins []*pluginapi.ContainerAllocateResponse
	Objects Objects
	Files   Files
}

// Container is the configuration of a container.
func Container(ctx context.Context, n Node, in Inputs) (*cri.ContainerConfig, error) {
	pod, c := in.Pod, in.Spec
	down := NewDownward(n, pod, in.IPs, in.Allocatable)
	down.Volumes = in.Volumes
	left := expansion.Container
	services, err := serviceEnv(in.Services, pod.Namespace, pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks, &left)
	if err != nil {
		return nil, err
	}
	env, err := environment(pod, c, services, in.Objects, down, &left)
	if err != nil {
		return nil, err
	}
	vars := make(map[string]string, len(env))
	for _, e := range env {
		vars[e.name] = e.value
	}
	lookup := func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	mounts, devices, err := containerMounts(ctx, n, in, lookup)
	if err != nil {
		return nil, err
	}
	if in.Users != nil {
		// What is mounted belongs to the same users in the namespace as on the node.
		for _, m := range mounts {
			m.UidMappings, m.GidMappings = in.Users.Uids, in.Users.Gids
		}
	}
	linux, err := linuxConfig(n, in)
	if err != nil {
		return nil, err
	}
	cfg := &cri.ContainerConfig{
		Metadata:   &cri.ContainerMetadata{Name: c.Name, Attempt: in.Attempt},
		Image:      &cri.ImageSpec{Image: in.Image.Id, UserSpecifiedImage: c.Image},
		WorkingDir: c.WorkingDir,
		Labels: map[string]string{
			crilabels.PodName: pod.Name, crilabels.PodNamespace: pod.Namespace, crilabels.PodUID: string(pod.UID), crilabels.ContainerName: c.Name,
		},
		Annotations: containerAnnotations(pod, c, in.Restarts),
		Mounts:      mounts,
		Devices:     devices,
		LogPath:     in.LogPath,
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux:       linux,
	}
	if cfg.Command, err = expandAll(c.Command, lookup, &left); err != nil {
		return nil, err
	}
	if cfg.Args, err = expandAll(c.Args, lookup, &left); err != nil {
		return nil, err
	}
	for _, e := range env {
		cfg.Envs = append(cfg.Envs, &cri.KeyValue{Key: e.name, Value: []byte(e.value)})
	}
	addDevices(cfg, in.Plugins)
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		if s, ok := cri.Signal_value[string(*c.Lifecycle.StopSignal)]; ok {
			cfg.StopSignal = cri.Signal(s)
		}
	}
	return cfg, nil
}

// expandAll replaces the variables in a command or its arguments.
func expandAll(args []string, lookup func(string) (string, bool), left *expansion.Budget) (out []string, err error) {
	for _, a := range args {
		a, err := expansion.Expand(a, lookup, left)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

// containerAnnotations are what is read back of a container whose pod is gone.
func containerAnnotations(pod *corev1.Pod, c *corev1.Container, restarts int) map[string]string {
	a := map[string]string{
		crilabels.ContainerHash:            ContainerHash(c),
		crilabels.RestartCount:             strconv.Itoa(restarts),
		crilabels.TerminationMessagePath:   c.TerminationMessagePath,
		crilabels.TerminationMessagePolicy: string(c.TerminationMessagePolicy),
	}
	if g := pod.DeletionGracePeriodSeconds; g != nil {
		a[crilabels.DeletionGracePeriod] = strconv.FormatInt(*g, 10)
	}
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		a[crilabels.TerminationGracePeriod] = strconv.FormatInt(*g, 10)
	}
	if podspec.RestartsOnResize(c, corev1.ResourceMemory) {
		a[crilabels.MemoryRequest] = strconv.FormatInt(c.Resources.Requests.Memory().Value(), 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		if b, err := json.Marshal(c.Lifecycle.PreStop); err == nil {
			a[crilabels.PreStopHandler] = string(b)
		}
	}
	if len(c.Ports) > 0 {
		if b, err := json.Marshal(c.Ports); err == nil {
			a[crilabels.ContainerPorts] = string(b)
		}
	}
	return a
}
