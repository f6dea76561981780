package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/volume"
)

// A configError makes a container wait with reason CreateContainerConfigError.
type configError struct{ err error }

func (e configError) Error() string { return e.err.Error() }
func (e configError) Unwrap() error { return e.err }

// containerInputs is what a container is made of besides its spec.
type containerInputs struct {
	pod      *corev1.Pod
	spec     *corev1.Container
	attempt  uint32
	image    *cri.Image
	ips      []string
	volumes  map[string]volume.Mounted
	images   map[string]string // image volumes by volume name
	target   string            // container whose processes an ephemeral one joins
	logPath  string
	restarts int
}

func (k *Kubelet) containerConfig(ctx context.Context, in containerInputs) (*cri.ContainerConfig, error) {
	pod, c := in.pod, in.spec
	down := k.downward(pod, in.ips)
	down.container = c
	down.volumes = in.volumes
	env, err := environment(pod, c, k.serviceEnv(pod), k.objects, down)
	if err != nil {
		return nil, configError{err}
	}
	vars := make(map[string]string, len(env))
	for _, e := range env {
		vars[e.name] = e.value
	}
	lookup := func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	mounts, devices, err := k.containerMounts(in, lookup)
	if err != nil {
		return nil, configError{err}
	}
	linux, err := k.linuxContainer(in)
	if err != nil {
		return nil, configError{err}
	}
	cfg := &cri.ContainerConfig{
		Metadata:   &cri.ContainerMetadata{Name: c.Name, Attempt: in.attempt},
		Image:      &cri.ImageSpec{Image: in.image.Id, UserSpecifiedImage: c.Image},
		WorkingDir: c.WorkingDir,
		Labels: map[string]string{
			labelPodName: pod.Name, labelPodNamespace: pod.Namespace, labelPodUID: string(pod.UID), labelContainerName: c.Name,
		},
		Annotations: containerAnnotations(pod, c, in.restarts),
		Mounts:      mounts,
		Devices:     devices,
		LogPath:     in.logPath,
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux:       linux,
	}
	for _, s := range c.Command {
		cfg.Command = append(cfg.Command, expand(s, lookup))
	}
	for _, s := range c.Args {
		cfg.Args = append(cfg.Args, expand(s, lookup))
	}
	for _, e := range env {
		cfg.Envs = append(cfg.Envs, &cri.KeyValue{Key: e.name, Value: []byte(e.value)})
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		if n, ok := cri.Signal_value[string(*c.Lifecycle.StopSignal)]; ok {
			cfg.StopSignal = cri.Signal(n)
		}
	}
	return cfg, nil
}

func containerAnnotations(pod *corev1.Pod, c *corev1.Container, restarts int) map[string]string {
	a := map[string]string{
		annHash:          containerHash(c),
		annRestartCount:  strconv.Itoa(restarts),
		annMessagePath:   c.TerminationMessagePath,
		annMessagePolicy: string(c.TerminationMessagePolicy),
	}
	if g := pod.DeletionGracePeriodSeconds; g != nil {
		a[annDeletionGrace] = strconv.FormatInt(*g, 10)
	}
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		a[annTerminationGrace] = strconv.FormatInt(*g, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		if b, err := json.Marshal(c.Lifecycle.PreStop); err == nil {
			a[annPreStop] = string(b)
		}
	}
	if len(c.Ports) > 0 {
		if b, err := json.Marshal(c.Ports); err == nil {
			a[annPorts] = string(b)
		}
	}
	return a
}

func (k *Kubelet) containerMounts(in containerInputs, lookup func(string) (string, bool)) (mounts []*cri.Mount, devices []*cri.Device, err error) {
	pod, c := in.pod, in.spec
	hosts := false
	for i, m := range c.VolumeMounts {
		v, ok := in.volumes[m.Name]
		if !ok {
			return nil, nil, fmt.Errorf("cannot find volume %q to mount into container %q", m.Name, c.Name)
		}
		hosts = hosts || filepath.Clean(m.MountPath) == "/etc/hosts"
		sub := m.SubPath
		if m.SubPathExpr != "" {
			missing := ""
			sub = expand(m.SubPathExpr, func(n string) (string, bool) {
				s, ok := lookup(n)
				if !ok {
					missing = n
				}
				return s, ok
			})
			if missing != "" {
				return nil, nil, fmt.Errorf("missing value for %q", missing)
			}
		}
		out := &cri.Mount{ContainerPath: m.MountPath, Readonly: m.ReadOnly || v.ReadOnly}
		if !strings.HasPrefix(m.MountPath, "/") {
			out.ContainerPath = "/" + m.MountPath
		}
		if v.Image != nil {
			out.Image = &cri.ImageSpec{Image: in.images[m.Name], UserSpecifiedImage: v.Image.Reference}
			out.ImageSubPath = sub
			mounts = append(mounts, out)
			continue
		}
		out.HostPath = v.Path
		if sub != "" {
			out.HostPath, err = k.volumes.SubPath(string(pod.UID), m.Name, c.Name, i, v.Path, sub)
			if err != nil {
				return nil, nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", m.Name, c.Name, err)
			}
		}
		if p := m.MountPropagation; p != nil {
			switch *p {
			case corev1.MountPropagationHostToContainer:
				out.Propagation = cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
			case corev1.MountPropagationBidirectional:
				out.Propagation = cri.MountPropagation_PROPAGATION_BIDIRECTIONAL
			}
		}
		if r := m.RecursiveReadOnly; r != nil && m.ReadOnly && (*r == corev1.RecursiveReadOnlyEnabled || *r == corev1.RecursiveReadOnlyIfPossible && k.recursiveReadOnly(pod)) {
			out.RecursiveReadOnly = true
		}
		mounts = append(mounts, out)
	}
	for _, d := range c.VolumeDevices {
		v, ok := in.volumes[d.Name]
		if !ok || v.Device == "" {
			return nil, nil, fmt.Errorf("cannot find volume %q to pass into container %q", d.Name, c.Name)
		}
		perm := "mrw"
		if v.ReadOnly {
			perm = "r"
		}
		devices = append(devices, &cri.Device{HostPath: v.Device, ContainerPath: d.DevicePath, Permissions: perm})
	}
	if !hosts {
		path, err := k.writeHosts(pod, in.ips)
		if err != nil {
			return nil, nil, err
		}
		mounts = append(mounts, &cri.Mount{HostPath: path, ContainerPath: "/etc/hosts"})
	}
	if c.TerminationMessagePath != "" {
		path, err := k.messageFile(pod, c)
		if err != nil {
			return nil, nil, err
		}
		mounts = append(mounts, &cri.Mount{HostPath: path, ContainerPath: c.TerminationMessagePath})
	}
	return mounts, devices, nil
}

// messageFile makes the file a container writes its last words to.
func (k *Kubelet) messageFile(pod *corev1.Pod, c *corev1.Container) (string, error) {
	dir := filepath.Join(k.volumes.PodDir(string(pod.UID)), "containers", c.Name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("%08x", rand.Uint32()))
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		return "", err
	}
	return path, os.Chmod(path, 0o666)
}

// writeHosts writes the hosts file of a pod.
func (k *Kubelet) writeHosts(pod *corev1.Pod, ips []string) (string, error) {
	dir := k.volumes.PodDir(string(pod.UID))
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	var text string
	if pod.Spec.HostNetwork {
		b, err := os.ReadFile("/etc/hosts")
		if err != nil && !os.IsNotExist(err) {
			return "", err
		}
		text = "# Kubernetes-managed hosts file (host network).\n" + string(b)
	} else {
		host, domain, err := k.podHostname(pod)
		if err != nil {
			return "", err
		}
		text = hostsText(ips, host, domain)
	}
	text += aliasText(pod.Spec.HostAliases)
	path := filepath.Join(dir, "etc-hosts")
	if have, err := os.ReadFile(path); err == nil && string(have) == text {
		return path, nil
	}
	// In place: containers that run already have the file mounted.
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return "", err
	}
	return path, os.Chmod(path, 0o644)
}

func hostsText(ips []string, host, domain string) string {
	var b strings.Builder
	b.WriteString("# Kubernetes-managed hosts file.\n" +
		"127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\n" +
		"fe00::2\tip6-allrouters\n")
	for _, ip := range ips {
		if domain != "" {
			fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, host, domain, host)
		} else {
			fmt.Fprintf(&b, "%s\t%s\n", ip, host)
		}
	}
	return b.String()
}

func aliasText(aliases []corev1.HostAlias) string {
	if len(aliases) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range aliases {
		fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	return b.String()
}

// sortIPs puts the node's first address family first, one address of each.
func (k *Kubelet) sortIPs(ips []string) (out []string) {
	four := len(k.cfg.NodeIPs) == 0 || k.cfg.NodeIPs[0].To4() != nil
	for _, want := range []bool{four, !four} {
		for _, s := range ips {
			if ip := net.ParseIP(s); ip != nil && (ip.To4() != nil) == want {
				out = append(out, ip.String())
				break
			}
		}
	}
	return out
}
