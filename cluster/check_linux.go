package cluster

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"knarr/addons/localstorage/disk"
	"knarr/internal/run"
	"knarr/node/cni"
	"knarr/node/cni/network"
	"knarr/node/containerruntime"
	"knarr/node/kubeproxy"
	"knarr/node/networkpolicy"
)

// A requirement is something that a node's kernel must do, or should. Try does the
// thing itself, since what a kernel has in name it may still refuse.
type requirement struct {
	what string
	try  func() error
	// otherwise is what follows without it.
	otherwise string
	fatal     bool
}

// requirements are in the order in which a node meets them.
var requirements = []requirement{
	{"root", asRoot, "knarr server must be started as root, or with --disable-agent", true},
	{"namespaces", spaces(unix.CLONE_NEWNS|unix.CLONE_NEWPID|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS, nil), "containers cannot be made; the kernel needs CONFIG_NAMESPACES, and the process CAP_SYS_ADMIN", true},
	{"network namespaces", spaces(unix.CLONE_NEWNET, nil), "pods cannot be made; the kernel needs CONFIG_NET_NS, and the process CAP_SYS_ADMIN", true},
	{"overlayfs", spaces(unix.CLONE_NEWNS, mountOverlay), "images are unpacked by copying, which takes more disk and time", false},
	{"nftables for Services", spaces(unix.CLONE_NEWNET, kubeproxy.Check), "no Service can be reached; the kernel needs CONFIG_NF_TABLES with NFT_NUMGEN, NFT_FIB, NFT_CT, NFT_NAT, NFT_MASQ and NFT_REJECT, for IPv4 and IPv6, and the process CAP_NET_ADMIN", true},
	{"nftables for network policies", spaces(unix.CLONE_NEWNET, networkpolicy.Check), "no NetworkPolicy is in force; the kernel needs CONFIG_NF_TABLES_INET with NFT_CT and sets of ranges (5.6 or newer); or start the server with --disable-network-policy", true},
	{"bridges and veth links", spaces(unix.CLONE_NEWNET, network.CheckBridge), "there is no pod network; the kernel needs CONFIG_BRIDGE and CONFIG_VETH", true},
	{"nftables for the pod network", spaces(unix.CLONE_NEWNET, network.CheckTable), "no pod is attached, since it could speak for its neighbours; the kernel needs CONFIG_NF_TABLES_INET and CONFIG_NF_TABLES_BRIDGE (with NFT_BRIDGE_META where that is a module)", true},
	{"VXLAN", spaces(unix.CLONE_NEWNET, cni.CheckTunnel), "nodes that share no link cannot be joined; with nodes that do, start the server with --flannel-backend=host-gw", false},
	{"loop devices and e2fsprogs", disk.Check, "volumes of the class local-path may grow beyond their size, except on file systems with project quotas", false},
	{"cgroups", makeCgroup, "mount them at /sys/fs/cgroup", true},
	{"CAP_SYS_RESOURCE", capability(unix.CAP_SYS_RESOURCE), "oom_score_adj of pods stays as it is, so a node short of memory may end the wrong process", false},
	{"seccomp", filterCalls, "pods with a seccomp profile do not start", false},
	{"user namespaces", spaces(unix.CLONE_NEWNS, containerruntime.CheckUserNamespaces), "pods with hostUsers: false do not start; the kernel needs CONFIG_USER_NS and must be 6.3 or newer, and the sysctl user.max_user_namespaces above 0", false},
	{"AppArmor", enabled("/sys/module/apparmor/parameters/enabled"), "its profiles have no effect", false},
}

var (
	errNotRoot = errors.New("this is another user")
	// errNotTried says that there was no namespace to try a thing in, from which
	// nothing follows for the thing.
	errNotTried = errors.New("not tried")
)

// Check writes what this host has and lacks and reports whether a server can run.
func Check(w io.Writer) bool { return check(w, requirements) }

// CheckSettings writes what is wrong with flags and files, as their validation has it, a line for
// each fault, and reports whether nothing is.
func CheckSettings(w io.Writer, err error) bool {
	if err == nil {
		fmt.Fprintln(w, "ok    settings")
		return true
	}
	for fault := range strings.Lines(err.Error()) {
		fmt.Fprintf(w, "FAIL  settings: %s\n", strings.TrimSuffix(fault, "\n"))
	}
	return false
}

// answerTime is how long a check may take: a slow machine that loads modules of its
// kernel meanwhile takes seconds.
const answerTime = 20 * time.Second

var errNoAnswer = fmt.Errorf("no answer within %v; dmesg may say why, such as a module that is not loaded, and what comes next follows if it is the same again", answerTime)

func check(w io.Writer, all []requirement) bool {
	ok := true
	for n, err := range answers(all) {
		switch {
		case err == nil:
			fmt.Fprintf(w, "ok    %s\n", n.what)
		case errors.Is(err, errNotRoot):
			fmt.Fprintf(w, "FAIL  %s: %v: %s; the rest is only tried as root\n", n.what, err, n.otherwise)
			return false
		case errors.Is(err, errNotTried):
			ok = ok && !n.fatal
			fmt.Fprintf(w, "%s  %s: %v\n", map[bool]string{true: "FAIL", false: "note"}[n.fatal], n.what, err)
		case n.fatal:
			ok = false
			fmt.Fprintf(w, "FAIL  %s: %v: %s\n", n.what, err, n.otherwise)
		default:
			fmt.Fprintf(w, "note  %s: %v: %s\n", n.what, err, n.otherwise)
		}
	}
	return ok
}

// answers gives each requirement's answer, in order. The first, whether this is root, is
// tried before the others; these all at once, so that several without an answer take no
// longer than one. What gives none is left behind, for the process ends soon.
func answers(all []requirement) iter.Seq2[requirement, error] {
	return func(yield func(requirement, error) bool) {
		if len(all) == 0 || !yield(all[0], within(all[0].try)()) {
			return
		}
		var waits []func() error
		for _, n := range all[1:] {
			waits = append(waits, within(n.try))
		}
		for i, n := range all[1:] {
			if !yield(n, waits[i]()) {
				return
			}
		}
	}
}

// within starts a try, and gives what waits for its answer as long as answerTime.
func within(try func() error) (wait func() error) {
	answer := make(chan error, 1)
	run.Go("check", func() { answer <- run.Catch("check", try) })
	end := time.After(answerTime)
	return func() error {
		select {
		case err := <-answer:
			return err
		case <-end:
		}
		select {
		case err := <-answer: // both were there
			return err
		default:
			return errNoAnswer
		}
	}
}

// spaces tries in new namespaces of these kinds, which end with the try.
func spaces(kinds int, try func() error) func() error {
	return func() error {
		result := make(chan error, 1)
		run.Go("check", func() {
			runtime.LockOSThread() // for good: the namespaces end with the thread
			result <- run.Catch("check", func() error {
				if err := unix.Unshare(kinds); err != nil && try != nil {
					return fmt.Errorf("%w: make namespaces: %w", errNotTried, err)
				} else if err != nil {
					return fmt.Errorf("make namespaces: %w", err)
				}
				if kinds&unix.CLONE_NEWNS != 0 { // what is mounted here stays here
					if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
						return fmt.Errorf("make mounts private: %w", err)
					}
				}
				if try == nil {
					return nil
				}
				return try()
			})
		})
		return <-result
	}
}

func asRoot() error {
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	return nil
}

// mountOverlay mounts one in a file system of its own, for not every file
// system can hold its layers.
func mountOverlay() error {
	dir, err := os.MkdirTemp("", "knarr-check-")
	if err != nil {
		return err
	}
	defer os.Remove(dir)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return err
		}
	}
	layers := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir)
	if err := unix.Mount("overlay", filepath.Join(dir, "merged"), "overlay", 0, layers); err != nil {
		return fmt.Errorf("mount an overlay: %w", err)
	}
	return nil
}

// makeCgroup makes a group where the kubelet will, in v2 or in what it needs of
// v1, and removes it.
func makeCgroup() error {
	const root = "/sys/fs/cgroup"
	parents := []string{root}
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return err
	}
	if fs.Type != unix.CGROUP2_SUPER_MAGIC {
		parents = []string{root + "/memory", root + "/cpu", root + "/pids"}
	} else if b, err := os.ReadFile(root + "/cgroup.controllers"); err != nil {
		return err
	} else if have := strings.Fields(string(b)); len(have) > 0 {
		for _, want := range []string{"cpu", "memory", "pids"} {
			if !strings.Contains(" "+strings.Join(have, " ")+" ", " "+want+" ") {
				return fmt.Errorf("there is no controller for %s", want)
			}
		}
	}
	for _, parent := range parents {
		dir := filepath.Join(parent, fmt.Sprint("knarr-check-", os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Rmdir(dir); err != nil {
			return fmt.Errorf("remove %s: %w", dir, err)
		}
	}
	return nil
}

func capability(bit uint) func() error {
	return func() error {
		if !capable(bit) {
			return errors.New("this process does not have it")
		}
		return nil
	}
}

// filterCalls asks for a filter of system calls without giving one: a kernel
// that has them finds the address bad.
func filterCalls() error {
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0, 0, 0); err != nil && !errors.Is(err, unix.EFAULT) && !errors.Is(err, unix.EACCES) {
		return err
	}
	return nil
}

func enabled(path string) func() error {
	return func() error {
		b, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(b), "Y") {
			return errors.New("it is not enabled")
		}
		return nil
	}
}
