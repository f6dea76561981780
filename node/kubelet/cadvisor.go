package kubelet

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/cadvisor"
	"knarr/node/kubelet/cgroup"
)

// newCadvisor is what answers /metrics/cadvisor.
func (k *Kubelet) newCadvisor() *cadvisor.Collector {
	m := k.machine
	return cadvisor.New(cadvisor.Config{
		Tree: k.cgroups, Groups: k.cgroupsOfNode, Filesystems: k.nodeFilesystems,
		Machine: cadvisor.Machine{
			ID: m.machineID, UUID: m.uuid, BootID: m.bootID, Kernel: m.kernel, OS: m.osImage,
			Cores: m.cpus, Memory: m.memory, Swap: m.swap,
		},
	})
}

// cgroupsOfNode are the root group, this process's, those above pods, and those of
// each running pod: its own, its sandbox's and its containers'.
func (k *Kubelet) cgroupsOfNode(ctx context.Context) []cadvisor.Group {
	all := []cadvisor.Group{{Path: "/", Network: true, Started: bootTime()}}
	if own := ownCgroup(readTrim("/proc/self/cgroup")); own != "" && own != "/" {
		all = append(all, cadvisor.Group{Path: own})
	}
	if parent := k.cgroupParent(); parent != "-" {
		parent = path.Join("/", parent)
		all = append(all, cadvisor.Group{Path: parent}, cadvisor.Group{Path: cgroup.Child(parent, "besteffort")},
			cadvisor.Group{Path: cgroup.Child(parent, "burstable")})
	}
	live := map[string]bool{}
	for _, w := range k.all() {
		s := w.shown.Load()
		group := k.podCgroup(s.pod)
		if s.ended || s.observed == nil || group == "" {
			continue
		}
		if sb, ok := s.observed.ReadySandbox(); ok {
			live[sb.Id] = true
			all = append(all, podGroups(s, path.Join("/", group), k.runtimeName(), k.sandboxes.image(ctx, k.runtime, sb.Id))...)
		}
	}
	k.sandboxes.keep(live)
	return all
}

// podGroups are the groups of one pod. Its sandbox has the pod's network, and like
// the pod's own group no name of a container. Pure.
func podGroups(s *shown, group, runtime, sandboxImage string) (all []cadvisor.Group) {
	own := cadvisor.Group{Path: group, Namespace: s.pod.Namespace, Pod: s.pod.Name}
	if s.status.StartTime != nil {
		own.Started = s.status.StartTime.Time
	}
	add := func(id, image, container string, network bool, at time.Time) {
		g := own
		g.Path, g.Name, g.Image, g.Container, g.Network, g.Started = cgroup.ContainerGroup(group, runtime, id), id, image, container, network, at
		all = append(all, g)
	}
	all = append(all, own)
	if sb, ok := s.observed.ReadySandbox(); ok {
		add(sb.Id, sandboxImage, "", true, time.Unix(0, sb.CreatedAt))
	}
	for _, c := range s.observed.Running() {
		add(c.Id, c.Image.GetImage(), c.Name(), false, c.Started())
	}
	return all
}

// ownCgroup reads /proc/self/cgroup: the group on the CPU controller, or on the
// unified hierarchy. Pure.
func ownCgroup(text string) (group string) {
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, at, _ := strings.Cut(rest, ":")
		if controllers == "" && group == "" {
			group = at
		}
		for c := range strings.SplitSeq(controllers, ",") {
			if c == "cpu" {
				return at
			}
		}
	}
	return group
}

// sandboxImages remembers the images of sandboxes, which the runtime tells only
// if asked for everything it knows of one.
type sandboxImages struct {
	mu   sync.Mutex
	byID map[string]string
}

// imageTime is how long a scrape waits for a runtime that hangs.
const imageTime = 2 * time.Second

func (m *sandboxImages) image(ctx context.Context, runtime cri.RuntimeServiceClient, id string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if image, ok := m.byID[id]; ok {
		return image
	}
	ctx, cancel := context.WithTimeout(ctx, imageTime)
	defer cancel()
	res, err := runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return "" // asked again at the next scrape
	}
	var info struct {
		Image string `json:"image"`
	}
	if err := json.Unmarshal([]byte(res.Info["info"]), &info); err != nil {
		slog.Debug("read what the runtime says of a sandbox", "sandbox", id, "err", err)
	}
	if m.byID == nil {
		m.byID = map[string]string{}
	}
	m.byID[id] = info.Image
	return info.Image
}

func (m *sandboxImages) keep(live map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.byID {
		if !live[id] {
			delete(m.byID, id)
		}
	}
}

// nodeFilesystems are those on the node's own devices. One that does not answer is
// left out.
func (k *Kubelet) nodeFilesystems(context.Context) (out []cadvisor.Filesystem) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	began := time.Now()
	for _, m := range cadvisor.ParseMounts(b) {
		if time.Since(began) > answerTime {
			break // disks that hang hold up one answer no longer than one of them
		}
		d, err := k.statDisk(m.Dir)
		if err != nil {
			continue
		}
		out = append(out, cadvisor.Filesystem{
			Device: m.Source, Major: m.Major, Minor: m.Minor,
			Size: d.size, Free: d.free, Inodes: d.inodes, InodesFree: d.inodesFree,
		})
	}
	return out
}
