package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"

	"knarr/cluster/proxyflags"
	"knarr/node/containerruntime"
)

// DefaultDataDir is the data directory unless another is given.
const DefaultDataDir = "/var/lib/knarr"

// layout names everything that belongs to one cluster on this machine. All of
// it derives from the data directory, so that several clusters fit on one host.
type layout struct{ dir string }

func (l layout) tls(file string) string { return filepath.Join(l.dir, "tls", file) }
func (l layout) etcd() string           { return filepath.Join(l.dir, "etcd") }
func (l layout) kubeconfig() string     { return filepath.Join(l.dir, "kubeconfig") }
func (l layout) programs() string       { return filepath.Join(l.dir, "bin") }
func (l layout) lock() string           { return filepath.Join(l.dir, "lock") }
func (l layout) tokenFile() string      { return filepath.Join(l.dir, "node-token") }
func (l layout) serverTokenFile() string {
	return filepath.Join(l.dir, "server-token")
}
func (l layout) peerStateFile() string { return filepath.Join(l.dir, "servers.json") }
func (l layout) joined() string        { return filepath.Join(l.dir, "agent.json") }
func (l layout) state() string         { return filepath.Join(l.dir, "cluster.json") }
func (l layout) containerd() string    { return filepath.Join(l.dir, "containerd") }

// settings is the file of what the server that runs, or ran last, was told.
func (l layout) settings() string { return filepath.Join(l.dir, "settings.json") }

// runtimeEndpoint is the file that names another container runtime, which has this node's
// pods.
func (l layout) runtimeEndpoint() string { return filepath.Join(l.dir, "container-runtime-endpoint") }

// images is the directory that administrators put images into.
func (l layout) images() string { return filepath.Join(l.dir, "agent", "images") }

func (l layout) containerdState() string {
	return filepath.Join("/run", "knarr"+l.suffix(), "containerd")
}

// nriSocket is the customary one for the machine's own node, and none for further ones.
func (l layout) nriSocket() string {
	if l.suffix() != "" {
		return ""
	}
	return containerruntime.DefaultNRISocket
}

func (l layout) runDir() string { return filepath.Join("/run", "knarr"+l.suffix()) }
func (l layout) holder() string { return filepath.Join(l.runDir(), "holder.sock") }
func (l layout) cni() string    { return filepath.Join(l.dir, "cni") }
func (l layout) cniConf() string {
	return filepath.Join(l.dir, "cni", "net.d")
}

// UpstreamKubeletDir is where upstream's kubelet has its files, and where storage
// drivers count on finding them.
const UpstreamKubeletDir = "/var/lib/kubelet"

// DevRunPrefix begins the names of the directories in /run of clusters of several
// nodes on one machine.
const DevRunPrefix = "/run/knarr-dev-"

// KubeletFiles is where the kubelet's files are that is started with a data
// directory.
func KubeletFiles(dataDir string) string {
	if dataDir == DefaultDataDir {
		return UpstreamKubeletDir
	}
	return filepath.Join(dataDir, "kubelet")
}

// kubelet is the directory that the kubelet works with: upstream's for the default
// cluster, and where that is what this cluster's is mounted at.
func (l layout) kubelet() string {
	files := KubeletFiles(l.dir)
	here, err := os.Stat(files)
	if err != nil {
		return files
	}
	if there, err := os.Stat(UpstreamKubeletDir); err == nil && os.SameFile(here, there) {
		return UpstreamKubeletDir
	}
	return files
}

func (l layout) podLogs() string {
	if l.dir == DefaultDataDir {
		return "/var/log/pods"
	}
	return filepath.Join(l.dir, "log", "pods")
}

// suffix tells clusters apart where names are short: links, tables, cgroups.
func (l layout) suffix() string {
	if l.dir == DefaultDataDir {
		return ""
	}
	sum := sha256.Sum256([]byte(l.dir))
	return "-" + hex.EncodeToString(sum[:3])
}

func (l layout) bridge() string { return "knarr0" + l.suffix() } // at most 15 characters
func (l layout) tunnel() string { return "knarrx" + l.suffix() } // the same
func (l layout) cgroup() string { return "/knarr" + l.suffix() }

// proxyRecords remember what kube-proxy has changed on this machine.
func (l layout) proxyRecords() proxyflags.Records {
	return proxyflags.Records{Mode: filepath.Join(l.runDir(), "proxy-mode"), Conntrack: filepath.Join(l.runDir(), "conntrack.json")}
}
func (l layout) table() string { return "knarr" + l.suffix() }

func (l layout) policyTable() string { return l.table() + "-policy" }
