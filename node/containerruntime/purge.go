package containerruntime

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/programs"
)

// Purge ends every container of the runtime with this configuration, which
// must not be running, and removes its shims, mounts, network namespaces,
// cgroups and State. Root, with the images, stays.
func Purge(ctx context.Context, c Config) error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	if _, err := os.Stat(c.Root); err == nil {
		unlock, err := lock(filepath.Join(c.Root, "lock"))
		if err != nil {
			return err
		}
		defer unlock()
	}
	groups := bundleCgroups(c.State)
	if err := killAll(ctx, c.Socket()); err != nil {
		return err
	}
	for _, dir := range bundles(c.State) {
		deleteForeign(ctx, c, dir)
	}
	if c.CgroupParent != "" {
		groups = append(groups, c.CgroupParent)
	}
	errs := []error{unmountBelow(c.State), unmountBelow(c.Root)}
	for _, g := range groups {
		errs = append(errs, removeCgroup(ctx, "/sys/fs/cgroup", g))
	}
	errs = append(errs, os.RemoveAll(shimSockets(c.State)))
	c.removeNRI()
	if errors.Join(errs...) == nil { // never remove through a mount that is still there
		errs = append(errs, os.RemoveAll(c.State))
	}
	return errors.Join(errs...)
}

// process is what /proc shows of one.
type process struct {
	pid, parent int
	args        []string
}

// killAll kills everything that runs below the shims that report to socket,
// then these shims. It looks again until none is left, since what is being
// killed may still be starting others.
func killAll(ctx context.Context, socket string) error {
	for {
		all, err := processes()
		if err != nil {
			return err
		}
		doomed := next(all, socket)
		if len(doomed) == 0 {
			return nil
		}
		for _, p := range doomed {
			if err := kill(p); err != nil {
				return fmt.Errorf("kill process %d: %w", p.pid, err)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes do not end: %w", len(doomed), ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// next gives the processes to kill now: those of the containers or, once there
// are none, the shims. A container outlives its shim, by which alone it is
// found, so shims go last.
func next(all []process, socket string) []process {
	children := map[int][]process{}
	for _, p := range all {
		children[p.parent] = append(children[p.parent], p)
	}
	var below, shims []process
	var descend func(int)
	descend = func(pid int) {
		for _, child := range children[pid] {
			below = append(below, child)
			descend(child.pid)
		}
	}
	for _, p := range all {
		if isShim(p, socket) {
			shims = append(shims, p)
			descend(p.pid)
		}
	}
	if len(below) > 0 {
		return below
	}
	return shims
}

// formerShim is the shim of versions before, one for each pod, and of runtimes that are
// driven as runc is.
const formerShim = "containerd-shim-runc-v2"

// foreignShim begins the names of other runtimes' shims.
const foreignShim = "containerd-shim-"

func isShim(p process, socket string) bool {
	if len(p.args) == 0 {
		return false
	}
	name := filepath.Base(p.args[0])
	if name != programs.Shim && !strings.HasPrefix(name, foreignShim) {
		return false
	}
	i := slices.Index(p.args, "-address")
	return i >= 0 && i+1 < len(p.args) && p.args[i+1] == socket
}

// kill ends exactly the process that was looked at: the handle is opened
// first, and then it is made sure that the number has not passed to another.
func kill(p process) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	} else if err != nil {
		return err
	}
	defer unix.Close(fd)
	now, ok := readProcess(p.pid)
	if !ok || !slices.Equal(now.args, p.args) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

func processes() ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []process
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if p, ok := readProcess(pid); ok {
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// readProcess reads one process; none that has ended counts.
func readProcess(pid int) (process, bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return process{}, false
	}
	// The name, in parentheses, may contain anything.
	_, rest, ok := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 2 || fields[0] == "Z" || fields[0] == "X" {
		return process{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return process{}, false
	}
	line, err := os.ReadFile(dir + "/cmdline")
	if err != nil {
		return process{}, false
	}
	return process{pid, parent, strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")}, true
}

// bundles gives the directories of containers that containerd still keeps, below one
// for each of its namespaces.
func bundles(state string) []string {
	ours, _ := filepath.Glob(filepath.Join(state, bundlesName, "*", "*"))
	theirs, _ := filepath.Glob(filepath.Join(state, "io.containerd.runtime.v2.task", "*", "*"))
	return append(ours, theirs...)
}

// foreignDelete bounds what another runtime's shim may take to remove a container.
const foreignDelete = 10 * time.Second

// deleteForeign removes what another runtime has of a container beside its processes, as
// containerd does after the end of a shim: it alone knows what that is. What it leaves, or
// if it is no longer there, the mounts and cgroups, go as those of any container.
func deleteForeign(ctx context.Context, c Config, bundle string) {
	path, err := os.ReadFile(filepath.Join(bundle, "shim-binary-path"))
	shim := string(path)
	if err != nil || !filepath.IsAbs(shim) || !strings.HasPrefix(filepath.Base(shim), foreignShim) {
		return
	}
	id, namespace := filepath.Base(bundle), filepath.Base(filepath.Dir(bundle))
	limited, cancel := context.WithTimeout(ctx, foreignDelete)
	defer cancel()
	cmd := exec.CommandContext(limited, shim, "-namespace", namespace, "-address", c.Socket(), "-publish-binary", "/bin/false", "-id", id, "-bundle", bundle, "delete")
	cmd.Dir = bundle
	if out, err := cmd.CombinedOutput(); err != nil {
		c.Log.Warn("another runtime's shim did not remove a container", "shim", shim, "id", id, "err", err, "output", string(out[:min(len(out), 1<<10)]))
	}
	// Shims that know of no other directory have their sockets in containerd's own.
	if b, err := os.ReadFile(filepath.Join(bundle, "address")); err == nil {
		if socket, ok := strings.CutPrefix(strings.TrimSpace(string(b)), "unix://"); ok && filepath.Dir(socket) == "/run/containerd/s" {
			_ = os.Remove(socket)
		}
	}
}

// bundleCgroups gives the cgroups of containers that containerd still keeps
// bundles of, also those of containers that have ended.
func bundleCgroups(state string) []string {
	var groups []string
	for _, dir := range bundles(state) {
		b, err := os.ReadFile(filepath.Join(dir, "config.json"))
		if err != nil {
			continue
		}
		var spec struct {
			Linux struct{ CgroupsPath string }
		}
		// A path with colons is a scope of systemd's, whose slices end with it.
		if json.Unmarshal(b, &spec) == nil && strings.HasPrefix(spec.Linux.CgroupsPath, "/") {
			groups = append(groups, spec.Linux.CgroupsPath)
		}
	}
	return groups
}

// removeCgroup removes the group and those below it from every hierarchy
// mounted below root.
func removeCgroup(ctx context.Context, root, group string) error {
	group = filepath.Clean("/" + group)
	if group == "/" {
		return nil
	}
	var errs []error
	for _, top := range hierarchies(root) {
		var dirs []string
		_ = filepath.WalkDir(filepath.Join(top, group), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			emptyCgroup(dir)
			errs = append(errs, rmdir(ctx, dir))
		}
	}
	return errors.Join(errs...)
}

// emptyCgroup ends what is still in a group: a process that containerd lost sight
// of, as when it was killed while it started one.
func emptyCgroup(dir string) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return
	}
	for word := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
			_ = unix.Kill(pid, unix.SIGKILL) // it may be gone by now
		}
	}
}

// hierarchies gives the top of each cgroup tree: one for version 2, one per
// controller for version 1.
func hierarchies(root string) []string {
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return []string{root}
	}
	entries, _ := os.ReadDir(root)
	var tops []string
	for _, e := range entries {
		if e.IsDir() {
			tops = append(tops, filepath.Join(root, e.Name()))
		}
	}
	return tops
}

// rmdir removes a cgroup and ends what is in it still: containers whose shim is
// gone, by which alone they were found. Processes that were killed may take a
// moment to leave.
func rmdir(ctx context.Context, dir string) error {
	for range 200 {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
		members, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for line := range strings.Lines(string(members)) {
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 && pid != os.Getpid() {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	return fmt.Errorf("remove cgroup %s: %w", dir, unix.EBUSY)
}

// unmountBelow unmounts whatever is mounted at dir or below it, the latest first.
func unmountBelow(dir string) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	var points []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			points = append(points, unescape(fields[4]))
		}
	}
	var errs []error
	for _, point := range slices.Backward(points) {
		if point != dir && !strings.HasPrefix(point, dir+"/") {
			continue
		}
		if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", point, err))
		}
	}
	return errors.Join(errs...)
}

// unescape undoes the kernel's octal notation of blanks in paths.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}
