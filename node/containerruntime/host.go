package containerruntime

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
	"github.com/moby/sys/capability"
	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"

	"knarr/internal/unixsocket"
)

// host is what the machine offers and where the programs are.
type host struct {
	snapshotter string
	// restrictOOM: the kernel will not let us make a process safer from its
	// out-of-memory killer than we are.
	restrictOOM bool
	// hugetlb: the kernel limits huge pages. Elsewhere containerd would warn of each container.
	hugetlb bool
	// selinux: containers get labels, since the kernel enforces what policies say of them.
	selinux bool
	// nriTaken: another runtime has the customary socket of the node resource interface.
	nriTaken   bool
	shim, verb string
	handlers   []handler
	// shimSockets is a directory short enough for the shims' socket names.
	shimSockets string
}

func inspect(c Config) (host, error) {
	h := host{snapshotter: c.Snapshotter, shimSockets: shimSockets(c.State)}
	dirs := programDirs()
	var err error
	if h.handlers, err = named(findHandlers(dirs, c.Log), c.Handlers, dirs); err != nil {
		return h, err
	}
	h.hugetlb = limitsHugepages("/sys/fs/cgroup")
	h.selinux = labelled(selinux.GetEnabled(), selinux.EnforceMode())
	if h.nriTaken = c.nriTaken(); h.nriTaken {
		c.Log.Info("another container runtime has the socket of the node resource interface; plugins reach this one by another", "taken", c.NRISocket, "socket", c.ownNRISocket())
	}
	if h.snapshotter == "" {
		h.snapshotter = "overlayfs"
		if err := overlayutils.Supported(c.Root); err != nil {
			c.Log.Warn("overlayfs does not work here, using plain copies", "dir", c.Root, "err", err)
			h.snapshotter = "native"
		}
	}
	caps, err := capability.NewPid2(0)
	if err == nil {
		err = caps.Load()
	}
	if err != nil {
		return h, fmt.Errorf("read own capabilities: %w", err)
	}
	if !caps.Get(capability.EFFECTIVE, capability.CAP_SYS_RESOURCE) {
		h.restrictOOM = true
		c.Log.Info("no CAP_SYS_RESOURCE: containers keep this process's oom_score_adj or a higher one")
	}
	return h, nil
}

// limitsHugepages says whether the control groups mounted at root, of either version, have
// limits of huge pages.
func limitsHugepages(root string) bool {
	if b, err := os.ReadFile(filepath.Join(root, "cgroup.controllers")); err == nil {
		return slices.Contains(strings.Fields(string(b)), "hugetlb")
	}
	_, err := os.Stat(filepath.Join(root, "hugetlb", "cgroup.procs"))
	return err == nil
}

// labelled says whether containers get labels of SELinux: where it is on and enforces. One
// that only logs what it would refuse is often one that has no policy for containers.
func labelled(enabled bool, mode int) bool { return enabled && mode == selinux.Enforcing }

// shimSockets gives the directory for the shims' sockets: below state, unless
// that would make their names longer than the kernel allows.
func shimSockets(state string) string {
	const room = unixsocket.MaxPath - len("/") - 2*sha256.Size
	if dir := filepath.Join(state, "s"); len(dir) <= room {
		return dir
	}
	return fmt.Sprintf("/run/knarr-%x", sha256.Sum256([]byte(state)))[:len("/run/knarr-")+16]
}

// lock takes the file for this process, so that two of them never work on the
// same images.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: another process runs containers from this directory", path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// searchFirst puts dir at the head of this process's search path. containerd
// looks there for the shim of a container it finds running, and the shim for
// runc when it is asked what that can do; only starting a container goes by
// the configured paths.
func searchFirst(dir string) error {
	path := os.Getenv("PATH")
	if first, _, _ := strings.Cut(path, ":"); first == dir {
		return nil
	}
	return os.Setenv("PATH", dir+":"+path)
}
