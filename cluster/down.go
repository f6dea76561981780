package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"knarr/addons/localstorage"
	"knarr/node/cni"
	"knarr/node/containerruntime"
	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/shutdown"
	"knarr/node/networkpolicy"
)

// ErrNoCluster says that a directory is not one of a server or an agent.
var ErrNoCluster = errors.New("holds no cluster")

// Down stops the cluster of dir, if it runs, and removes its containers,
// mounts, links, tables and cgroups. With purge its data goes too, of which the
// cluster's other servers are informed unless leave is false. It returns when the
// last process has ended, and says in one line what it removed.
func Down(ctx context.Context, dir string, purge, leave bool) (done string, err error) {
	if os.Geteuid() != 0 {
		return "", errors.New("knarr down removes containers and must be root; start it with sudo")
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	l := layout{dir}
	if _, err := os.Stat(l.state()); errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("--data-dir %s %w; there is nothing to take down", dir, ErrNoCluster)
	}
	if purge && leave {
		l.leave(ctx)
	}
	pid, err := l.stopRunning(ctx)
	if err != nil {
		return "", err
	}
	files := KubeletFiles(dir)
	remove := []string{l.runDir(), filepath.Join(files, "pods"), l.podLogs()}
	if purge {
		remove = append(remove, l.dir, files)
	}
	removed := removal{process: pid, links: present("/sys/class/net", l.bridge(), l.tunnel()), paths: existing(remove), tables: presentTables(l.table(), l.table()+"-cni", l.policyTable()), data: dir, kept: !purge}
	// First, and all else only after it: the runtime needs the pods' network to end them.
	if err := l.removeForeignPods(ctx, filepath.Join(files, "pods")); err != nil {
		return "", err
	}
	errs := []error{
		endHolder(l),
		containerruntime.Purge(ctx, l.runtimeConfig()),
		cgroup.Open().EndSlices(ctx, l.cgroup()),
		cni.Remove(l.cniConfig()),
		l.proxyRecords().Restore(l.table()),
		networkpolicy.Remove(l.policyTable()),
		unmountBelow(filepath.Join(l.kubelet(), "pods")),
		unmountBelow(filepath.Join(l.kubelet(), "plugins")),
		localstorage.ReleaseDevices(l.storage()),
		shutdown.Forget("", l.kubelet()),
	}
	if errors.Join(errs...) == nil { // removing below a mount that stayed would remove what is mounted
		for _, path := range remove {
			if path == UpstreamKubeletDir {
				errs = append(errs, removeContents(path))
				RemoveKubeletDir()
				continue
			}
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return removed.String(), errors.Join(errs...)
}

// removeContents removes what is in a directory, and not the directory.
func removeContents(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return errors.Join(errs...)
}

// RemoveKubeletDir removes the directory of upstream's kubelet from this machine if
// it is empty. It stays while there are clusters of several nodes: each node has
// something mounted there, which the kernel would unmount.
func RemoveKubeletDir() {
	if dev, err := filepath.Glob(DevRunPrefix + "*"); err == nil && len(dev) == 0 {
		_ = os.Remove(UpstreamKubeletDir)
	}
}

// A removal is what was there to remove.
type removal struct {
	process      int // 0: none ran
	links, paths []string
	tables       []string
	data         string
	kept         bool // the data
}

// String says it in one line.
func (r removal) String() string {
	var parts []string
	if r.process != 0 {
		parts = append(parts, fmt.Sprintf("stopped process %d", r.process))
	}
	what := append([]string{"all containers"}, r.links...)
	for _, t := range r.tables {
		what = append(what, "nftables table "+t)
	}
	what = append(what, r.paths...)
	parts = append(parts, "removed "+strings.Join(what, ", "))
	if r.kept {
		parts = append(parts, "kept the data in "+r.data+" (--purge removes it)")
	}
	return strings.Join(parts, "; ")
}

// existing are the paths that are there, without those below another of them.
func existing(paths []string) (all []string) {
	for _, p := range paths {
		below := slices.ContainsFunc(paths, func(q string) bool { return strings.HasPrefix(p, q+"/") })
		if !below && exists(p) && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// present are the names that a directory has.
func present(dir string, names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return !exists(filepath.Join(dir, name)) })
}

// stopRunning ends the server that holds the lock, and gives its id once it has
// ended; 0 if none runs.
func (l layout) stopRunning(ctx context.Context) (int, error) {
	lock, err := os.OpenFile(l.lock(), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	free := func() bool { return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil }
	if free() {
		return 0, nil
	}
	b, err := os.ReadFile(l.lock())
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("%s is held by an unknown process; stop it by hand", l.lock())
	}
	// While the lock is held, the process that wrote its id there is alive and
	// is the one; ids are reused, but not while their owner lives.
	return pid, end(ctx, pid, func() bool { return !free() })
}

// unmountBelow takes down every mount in dir, the deepest first.
func unmountBelow(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			points = append(points, strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[4]))
		}
	}
	var errs []error
	for i := len(points) - 1; i >= 0; i-- {
		if err := unix.Unmount(points[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", points[i], err))
		}
	}
	return errors.Join(errs...)
}
