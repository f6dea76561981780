package cluster

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"knarr/internal/programs"
	"knarr/node/containerruntime"
)

// Kubectl gives the path of the embedded kubectl, unpacked, and the
// environment to run it in: pointed at this machine's cluster unless the
// user's own says otherwise.
func Kubectl() (path string, env []string, err error) {
	l := layout{DefaultDataDir}
	dir := l.programs()
	if unix.Access(filepath.Dir(dir), unix.W_OK) != nil {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", nil, fmt.Errorf("unpack kubectl: %w", err)
		}
		dir = filepath.Join(cache, "knarr", "bin")
	}
	if path, err = programs.Unpack(dir, programs.Kubectl); err != nil {
		return "", nil, err
	}
	env = os.Environ()
	if os.Getenv("KUBECONFIG") == "" {
		home, _ := os.UserHomeDir()
		_, err := os.Stat(filepath.Join(home, ".kube", "config"))
		if unix.Access(l.kubeconfig(), unix.R_OK) == nil && (home == "" || err != nil) {
			env = append(env, "KUBECONFIG="+l.kubeconfig())
		}
	}
	return path, env, nil
}

// Images opens the image store of the running node of dir.
func Images(dir string) (*containerruntime.Images, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	socket := layout{dir}.runtimeConfig().Socket()
	if _, err := os.Stat(socket); err != nil {
		return nil, fmt.Errorf("no node of --data-dir %s runs on this machine; start one with knarr server", dir)
	}
	return containerruntime.OpenImages(socket, "")
}

// Check writes what this host has and lacks and says whether a server can run.
func Check(w io.Writer) bool {
	ok := true
	line := func(good bool, fatal bool, what, otherwise string) {
		mark := "ok  "
		if !good {
			mark, what = "note", otherwise
			if fatal {
				mark, ok = "FAIL", false
			}
		}
		fmt.Fprintf(w, "%s  %s\n", mark, what)
	}
	line(os.Geteuid() == 0, true, "root", "not root: knarr server must be started as root, or with --disable-agent")
	line(exists("/proc/self/ns/net"), true, "network namespaces", "no network namespaces: the kernel needs CONFIG_NET_NS")
	filesystems, _ := os.ReadFile("/proc/filesystems")
	line(strings.Contains(string(filesystems), "\toverlay\n"), false, "overlayfs", "no overlayfs: images are unpacked by copying, which takes more disk and time")
	line(netfilterSocket(), true, "nftables", "no nftables: services and the pod network need CONFIG_NF_TABLES")
	line(exists("/sys/class/net") && bridgeSupported(), true, "bridges", "no bridges: the pod network needs CONFIG_BRIDGE")
	var fs unix.Statfs_t
	v2 := unix.Statfs("/sys/fs/cgroup", &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
	v1 := exists("/sys/fs/cgroup/memory") && exists("/sys/fs/cgroup/cpu")
	switch {
	case v2:
		line(true, false, "cgroup v2", "")
	default:
		line(v1, true, "cgroup v1 (memory QoS and swap limits need v2)", "no cgroups: mount them at /sys/fs/cgroup")
	}
	line(capable(unix.CAP_SYS_RESOURCE), false, "CAP_SYS_RESOURCE", "no CAP_SYS_RESOURCE: oom_score_adj of pods stays as it is, so a node short of memory may end the wrong process")
	line(capable(unix.CAP_SYS_ADMIN), true, "CAP_SYS_ADMIN", "no CAP_SYS_ADMIN: containers cannot be made")
	line(capable(unix.CAP_NET_ADMIN), true, "CAP_NET_ADMIN", "no CAP_NET_ADMIN: the pod network cannot be made")
	seccomp, _ := os.ReadFile("/proc/self/status")
	line(strings.Contains(string(seccomp), "Seccomp:"), false, "seccomp", "no seccomp: pods with a seccomp profile do not start")
	line(exists("/sys/kernel/security/apparmor"), false, "AppArmor", "no AppArmor: its profiles have no effect")
	return ok
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func netfilterSocket() bool {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

func bridgeSupported() bool {
	return exists("/proc/sys/net/bridge") || exists("/sys/module/bridge") || exists("/proc/net/dev")
}

func capable(bit uint) bool {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		var mask uint64
		if n, _ := fmt.Sscanf(line, "CapEff:\t%x", &mask); n == 1 {
			return mask&(1<<bit) != 0
		}
	}
	return false
}
