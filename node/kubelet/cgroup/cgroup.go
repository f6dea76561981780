// Package cgroup keeps the control groups of pods: one per pod below one per
// quality-of-service class. It writes below the parent it is given, on the
// unified hierarchy or on version 1's controllers. Where systemd has the groups, it
// asks that over D-Bus for slices, and writes beside it what systemd does not know.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const root = "/sys/fs/cgroup"

// Limits of one group; zero leaves a value alone, a negative CPUQuota takes the limit away.
type Limits struct {
	CPUShares, CPUQuota, CPUPeriod, Memory, Pids int64
	// MemoryMin is memory that the kernel takes from the group never, MemoryLow such that it
	// takes last; a negative one takes the protection away. Only version 2 has them.
	MemoryMin, MemoryLow int64
}

// A Tree is the hierarchy of this machine.
type Tree struct {
	root string
	v2   bool
	// controllers on version 1: mount name to controller.
	controllers []string
	systemd     atomic.Pointer[systemd] // nil: groups are made by this process alone
}

// Open finds out which hierarchy this machine has.
func Open() *Tree { return OpenAt(root) }

// OpenAt works on a hierarchy mounted elsewhere.
func OpenAt(dir string) *Tree {
	t := &Tree{root: dir}
	if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil {
		t.v2 = true
		return t
	}
	for _, c := range []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "hugetlb", "net_cls", "net_prio", "perf_event", "systemd"} {
		dir := filepath.Join(t.root, c)
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP_SUPER_MAGIC {
			t.controllers = append(t.controllers, c)
		}
	}
	return t
}

// V2 says whether the hierarchy is unified.
func (t *Tree) V2() bool { return t.v2 }

// HasHugepages says whether groups have limits of huge pages: the kernel may know them where
// nobody mounted their controller.
func (t *Tree) HasHugepages() bool {
	if !t.v2 {
		return slices.Contains(t.controllers, "hugetlb")
	}
	b, _ := os.ReadFile(filepath.Join(t.root, "cgroup.controllers"))
	return slices.Contains(strings.Fields(string(b)), "hugetlb")
}

// Ensure makes the group and sets its limits.
func (t *Tree) Ensure(path string, l Limits) error {
	if s := t.unitsOf(path); s != nil {
		l = l.wholePercent()
		if err := s.ensure(path, l, t.v2, func() bool { return t.anywhere(path) }); err != nil {
			return err
		}
	}
	if t.v2 {
		return t.ensure2(path, l)
	}
	var errs []error
	for _, c := range t.controllers {
		dir := filepath.Join(t.root, c, path)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			errs = append(errs, err)
			continue
		}
		switch c {
		case "cpuset":
			errs = append(errs, inherit(filepath.Join(t.root, c), path))
		case "cpu":
			if l.CPUShares > 0 {
				errs = append(errs, write(dir, "cpu.shares", l.CPUShares))
			}
			if l.CPUQuota != 0 {
				errs = append(errs, write(dir, "cpu.cfs_period_us", l.CPUPeriod), write(dir, "cpu.cfs_quota_us", l.CPUQuota))
			}
		case "memory":
			_ = write(dir, "memory.use_hierarchy", 1)
			if l.Memory > 0 {
				errs = append(errs, write(dir, "memory.limit_in_bytes", l.Memory))
			}
		case "pids":
			if l.Pids > 0 {
				errs = append(errs, write(dir, "pids.max", l.Pids))
			}
		}
	}
	return errors.Join(errs...)
}

func (t *Tree) ensure2(path string, l Limits) error {
	dir := t.root
	for _, part := range strings.Split(strings.Trim(path, "/"), "/") {
		// A group hands its controllers down before its child can use them.
		have, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		on, _ := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
		for _, c := range strings.Fields(string(have)) {
			if slices.Contains([]string{"cpu", "cpuset", "memory", "pids", "io", "hugetlb"}, c) && !slices.Contains(strings.Fields(string(on)), c) {
				_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0)
			}
		}
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
			return err
		}
	}
	var errs []error
	if l.CPUShares > 0 {
		errs = append(errs, write(dir, "cpu.weight", Weight(l.CPUShares)))
	}
	if l.CPUQuota != 0 {
		quota := "max"
		if l.CPUQuota > 0 {
			quota = strconv.FormatInt(l.CPUQuota, 10)
		}
		errs = append(errs, os.WriteFile(filepath.Join(dir, "cpu.max"), fmt.Appendf(nil, "%s %d", quota, l.CPUPeriod), 0))
	}
	if l.Memory > 0 {
		errs = append(errs, write(dir, "memory.max", l.Memory))
	}
	if l.MemoryMin != 0 {
		errs = append(errs, write(dir, "memory.min", max(l.MemoryMin, 0)))
	}
	if l.MemoryLow != 0 {
		errs = append(errs, write(dir, "memory.low", max(l.MemoryLow, 0)))
	}
	if l.Pids > 0 {
		errs = append(errs, write(dir, "pids.max", l.Pids))
	}
	return errors.Join(errs...)
}

// Weight turns version 1's shares [2,262144] into version 2's weight [1,10000].
func Weight(shares int64) int64 {
	if shares < 2 {
		shares = 2
	}
	return 1 + (min(shares, 262144)-2)*9999/262142
}

func write(dir, file string, v int64) error {
	return os.WriteFile(filepath.Join(dir, file), strconv.AppendInt(nil, v, 10), 0)
}

// inherit copies the cpus and memory nodes of each parent down to path: an
// empty set on version 1 takes no process.
func inherit(mount, path string) error {
	dir := mount
	for _, part := range strings.Split(strings.Trim(path, "/"), "/") {
		child := filepath.Join(dir, part)
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			have, err := os.ReadFile(filepath.Join(child, f))
			if err != nil {
				return err
			}
			if strings.TrimSpace(string(have)) != "" {
				continue
			}
			from, err := os.ReadFile(filepath.Join(dir, f))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(child, f), from, 0); err != nil {
				return err
			}
		}
		dir = child
	}
	return nil
}

// Kill ends every process in the group and below.
func (t *Tree) Kill(path string) error {
	if strings.Trim(path, "/") == "" {
		return errors.New("the root group cannot be killed")
	}
	if t.v2 {
		err := os.WriteFile(filepath.Join(t.root, path, "cgroup.kill"), []byte("1"), 0)
		if os.IsNotExist(err) {
			return nil
		}
		return err
	}
	var errs []error
	for _, c := range t.controllers {
		errs = append(errs, filepath.WalkDir(filepath.Join(t.root, c, path), func(dir string, e fs.DirEntry, err error) error {
			if os.IsNotExist(err) || err == nil && !e.IsDir() {
				return nil
			}
			if err != nil {
				return err
			}
			b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err != nil {
				return err
			}
			for word := range strings.FieldsSeq(string(b)) {
				if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
					_ = unix.Kill(pid, unix.SIGKILL) // it may be gone by now
				}
			}
			return nil
		}))
	}
	return errors.Join(errs...)
}

// Remove removes the group and everything below; processes still in it are an
// error.
func (t *Tree) Remove(path string) error {
	if strings.Trim(path, "/") == "" {
		return errors.New("the root group cannot be removed")
	}
	if s := t.unitsOf(path); s != nil && t.anywhere(path) {
		if t.populated(path) { // systemd would wait for them to end
			return fmt.Errorf("remove %s: %w", path, unix.EBUSY)
		}
		if err := s.stop(path); err != nil {
			return err
		}
	}
	var errs []error
	if t.v2 {
		return removeAll(filepath.Join(t.root, path))
	}
	for _, c := range t.controllers {
		errs = append(errs, removeAll(filepath.Join(t.root, c, path)))
	}
	// Beside version 1 the runtime makes the group in the empty unified tree too.
	errs = append(errs, removeAll(filepath.Join(t.root, "unified", path)))
	return errors.Join(errs...)
}

func removeAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	err = unix.Rmdir(dir)
	if err != nil && err != unix.ENOENT {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// Memory reads the usage and the working set of a group.
func (t *Tree) Memory(path string) (usage, workingSet uint64, err error) {
	dir, file, stat := filepath.Join(t.root, path), "memory.current", "inactive_file"
	if !t.v2 {
		dir, file, stat = filepath.Join(t.root, "memory", path), "memory.usage_in_bytes", "total_inactive_file"
	}
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, 0, err
	}
	usage, err = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, 0, err
	}
	workingSet = usage
	if b, err := os.ReadFile(filepath.Join(dir, "memory.stat")); err == nil {
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == stat {
				n, _ := strconv.ParseUint(f[1], 10, 64)
				workingSet -= min(n, workingSet)
			}
		}
	}
	return usage, workingSet, nil
}

// Swap is how much of a group is in swap and how much may be, bytes; false where control
// groups of version 2 do not count it.
func (t *Tree) Swap(path string) (used, limit uint64, ok bool) {
	if !t.v2 {
		return 0, 0, false
	}
	read := func(name string) (uint64, bool) {
		b, err := os.ReadFile(filepath.Join(t.root, path, name))
		text := strings.TrimSpace(string(b))
		if err == nil && text == "max" {
			return math.MaxUint64, true
		}
		n, perr := strconv.ParseUint(text, 10, 64)
		return n, err == nil && perr == nil
	}
	used, a := read("memory.swap.current")
	limit, b := read("memory.swap.max")
	return used, limit, a && b
}

// Pids counts the processes of a group and those below.
func (t *Tree) Pids(path string) (uint64, error) {
	dir := filepath.Join(t.root, path)
	if !t.v2 {
		dir = filepath.Join(t.root, "pids", path)
	}
	b, err := os.ReadFile(filepath.Join(dir, "pids.current"))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
}

// SwapControl says whether groups below path can be limited to some of the swap, which
// not all kernels are built for.
func (t *Tree) SwapControl(path string) bool {
	if !t.v2 {
		return false
	}
	_, err := os.Stat(filepath.Join(t.root, path, "memory.swap.max"))
	return err == nil
}

// Exists says whether a group is there, in every hierarchy.
func (t *Tree) Exists(path string) bool {
	return !slices.ContainsFunc(t.dirs(path), func(dir string) bool { return !isDir(dir) })
}

// anywhere says whether a group is there, in any hierarchy.
func (t *Tree) anywhere(path string) bool { return slices.ContainsFunc(t.dirs(path), isDir) }

// dirs are the directories of a group, one in each hierarchy.
func (t *Tree) dirs(path string) (all []string) {
	if t.v2 {
		return []string{filepath.Join(t.root, path)}
	}
	for _, c := range t.controllers {
		all = append(all, filepath.Join(t.root, c, path))
	}
	return all
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// populated says whether a process is in the group or below.
func (t *Tree) populated(path string) (any bool) {
	for _, dir := range t.dirs(path) {
		_ = filepath.WalkDir(dir, func(at string, e fs.DirEntry, err error) error {
			if err != nil || !e.IsDir() {
				return nil
			}
			b, _ := os.ReadFile(filepath.Join(at, "cgroup.procs"))
			if any = len(strings.TrimSpace(string(b))) > 0; any {
				return filepath.SkipAll
			}
			return nil
		})
		if any {
			return true
		}
	}
	return false
}

// CPU reads the nanoseconds of processor time a group has used.
func (t *Tree) CPU(path string) (uint64, error) {
	if !t.v2 {
		b, err := os.ReadFile(filepath.Join(t.root, "cpuacct", path, "cpuacct.usage"))
		if err != nil {
			return 0, err
		}
		return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	}
	b, err := os.ReadFile(filepath.Join(t.root, path, "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "usage_usec" {
			n, err := strconv.ParseUint(f[1], 10, 64)
			return n * 1000, err
		}
	}
	return 0, errors.New("no cpu usage")
}
