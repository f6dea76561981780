package rig

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// NodeName is that of every node here.
const NodeName = "rig"

const (
	bridge, cgroup = "knarrbench0", "knarr-bench"
	podsOfNode     = "10.164.0.0/22" // for more pods than the 254 of a /24
)

// The pod network of upstream's node: the reference plugins' bridge.
const cniConfig = `{"cniVersion": "1.0.0", "name": "bench", "plugins": [
 {"type": "bridge", "bridge": "%s", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "%s", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`

const containerdConfig = `version = 3
root = "%[1]s/containerd"
state = "%[1]s/containerd-state"
[grpc]
address = "%[1]s/containerd.sock"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
enable_unprivileged_ports = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["%[2]s"]
conf_dir = "%[1]s/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "%[3]s/runc"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "registry.k8s.io/pause:3.10.2"
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %[2]s/ca.crt}}
tlsCertFile: %[2]s/kubelet-serving.crt
tlsPrivateKeyFile: %[2]s/kubelet-serving.key
cgroupDriver: cgroupfs
cgroupRoot: /%[3]s
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix://%[1]s/containerd.sock
podLogsDir: %[1]s/pods
port: %[4]d
healthzPort: 0
kubeAPIQPS: 10000
kubeAPIBurst: 10000
registryPullQPS: 0
eventRecordQPS: 0
clusterDomain: cluster.local
clusterDNS: ["%[5]s"]
`

// containerd starts one with the reference plugins' bridge as pod network.
func (c *Cluster) containerd(p Programs) error {
	config := filepath.Join(c.Dir, "containerd.toml")
	if err := writeFile(config, fmt.Sprintf(containerdConfig, c.Dir, p.Upstream, p.Made)); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(c.Dir, "cni", "10-bench.conflist"), fmt.Sprintf(cniConfig, bridge, filepath.Join(c.Dir, "ipam"), podsOfNode)); err != nil {
		return err
	}
	groups, err := makeGroups(cgroup)
	if err != nil {
		return err
	}
	c.cleanup = append(c.cleanup, func() {
		for _, pid := range pidsOf(c.Dir) { // shims, and so all containers
			killTree(pid)
		}
		time.Sleep(200 * time.Millisecond)
		for _, g := range groups {
			removeGroup(g)
		}
		_ = exec.Command("ip", "link", "delete", bridge).Run()
	})
	if err := c.runIn("containerd", filepath.Join(p.Upstream, "containerd"), []string{"PATH=" + p.Made + ":" + os.Getenv("PATH")}, "--config", config); err != nil {
		return err
	}
	return c.await(context.Background(), "containerd's socket", func(context.Context) error {
		_, err := os.Stat(filepath.Join(c.Dir, "containerd.sock"))
		return err
	})
}

// nodeIdentity is the kubeconfig of the node, and its serving certificate.
func (c *Cluster) nodeIdentity() (string, error) {
	if err := c.pki.issue("kubelet-serving", "system:node:"+NodeName, []string{"system:nodes"}, []string{NodeName, hostAddress()}); err != nil {
		return "", err
	}
	return c.pki.kubeconfig(c.Server, "kubelet", "system:node:"+NodeName, "system:nodes")
}

// upstreamNode starts containerd and upstream's kubelet on it.
func (c *Cluster) upstreamNode(p Programs) error {
	if err := c.containerd(p); err != nil {
		return err
	}
	kube, err := c.nodeIdentity()
	if err != nil {
		return err
	}
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	kc, config := filepath.Join(c.Dir, "kubelet.yaml"), fmt.Sprintf(kubeletConfig, c.Dir, c.pki.dir, cgroup, ports[0], c.ClusterDNS)
	if p.PodsOfNode > 0 {
		config += fmt.Sprintf("maxPods: %d\n", p.PodsOfNode)
	}
	if err := writeFile(kc, config); err != nil {
		return err
	}
	return c.run("kubelet", filepath.Join(p.Upstream, "kubelet"), "--config", kc, "--kubeconfig", kube,
		"--hostname-override", NodeName, "--node-ip", hostAddress(), "--root-dir", filepath.Join(c.Dir, "kubelet"))
}

func (c *Cluster) importImage(p Programs, archive string) error {
	out, err := exec.Command(filepath.Join(p.Upstream, "ctr"), "-a", filepath.Join(c.Dir, "containerd.sock"), "-n", "k8s.io",
		"images", "import", "--local", archive).CombinedOutput()
	if err != nil {
		return fmt.Errorf("import %s: %w: %s", archive, err, out)
	}
	return nil
}

// hostAddress is this machine's first that is not loopback.
func hostAddress() string {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && n.IP.To4() != nil {
			return n.IP.String()
		}
	}
	return "127.0.0.1"
}

// makeGroups makes a control group of that name in every hierarchy.
func makeGroups(name string) ([]string, error) {
	const root = "/sys/fs/cgroup"
	roots := []string{root}
	if !exists(root + "/cgroup.controllers") {
		entries, err := os.ReadDir(root)
		if err != nil {
			return nil, err
		}
		roots = nil
		for _, e := range entries {
			if e.IsDir() {
				roots = append(roots, filepath.Join(root, e.Name()))
			}
		}
	}
	var made []string
	for _, r := range roots {
		dir := filepath.Join(r, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return made, err
		}
		if strings.HasSuffix(r, "/cpuset") { // a new one has no CPU yet
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if b, err := os.ReadFile(filepath.Join(r, file)); err == nil {
					_ = os.WriteFile(filepath.Join(dir, file), b, 0o644)
				}
			}
		}
		made = append(made, dir)
	}
	return made, nil
}

// removeGroup removes a control group and those below it.
func removeGroup(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeGroup(filepath.Join(dir, e.Name()))
		}
	}
	_ = os.Remove(dir)
}

// HostAddress is what pods reach this machine at.
func HostAddress() string { return hostAddress() }

// DNSAlone says that the DNS server is one that runs alone on this machine.
func (c *Cluster) DNSAlone() bool {
	return slices.ContainsFunc(c.Processes, func(p *Process) bool { return p.Name == dnsName })
}
