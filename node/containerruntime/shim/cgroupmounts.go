package shim

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// joined are the cgroupMounts of version 1 in which libcontainer makes a container's group.
var joined = map[string]bool{
	"cpuset": true, "devices": true, "memory": true, "cpu": true, "cpuacct": true, "pids": true, "blkio": true, "hugetlb": true,
	"net_cls": true, "net_prio": true, "perf_event": true, "freezer": true, "rdma": true, "systemd": true, "misc": true,
}

// cgroupMounts are the node's mounts of control groups of version 1; none where they are of
// version 2.
var cgroupMounts = sync.OnceValues(func() ([]cgroups.Mount, error) {
	if cgroups.IsCgroup2UnifiedMode() {
		return nil, nil
	}
	return cgroups.GetCgroupMounts(true)
})

// mountCgroups puts in the place of a container's mount of control groups those that it
// stands for: libcontainer would look for them, in each container's first program, among
// all mounts of the node, of which there are thousands where there are hundreds of pods.
// What it cannot say for certain it leaves to libcontainer.
func mountCgroups(config *configs.Config, mounted []cgroups.Mount) {
	i := slices.IndexFunc(config.Mounts, func(m *configs.Mount) bool { return m.Device == "cgroup" })
	if i < 0 || len(mounted) == 0 || config.Namespaces.Contains(configs.NEWCGROUP) ||
		config.Cgroups == nil || config.Cgroups.Systemd || !filepath.IsAbs(config.Cgroups.Path) {
		return
	}
	m := config.Mounts[i]
	mounts := []*configs.Mount{{
		Source: "tmpfs", Device: "tmpfs", Destination: m.Destination, Data: "mode=755",
		Flags: unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV, PropagationFlags: m.PropagationFlags,
	}}
	for _, h := range mounted {
		if slices.ContainsFunc(h.Subsystems, func(s string) bool { return !joined[s] }) {
			return
		}
		names := []string{filepath.Base(h.Mountpoint)}
		if of := strings.Split(names[0], ","); len(of) > 1 { // of several, each is found by its name too
			names = append(names, of...)
		}
		for _, name := range names {
			mounts = append(mounts, &configs.Mount{
				Source: filepath.Join(h.Mountpoint, config.Cgroups.Path), Device: "bind", Destination: filepath.Join(m.Destination, name),
				Flags: unix.MS_BIND | unix.MS_REC | m.Flags, PropagationFlags: m.PropagationFlags,
			})
		}
	}
	config.Mounts = slices.Replace(config.Mounts, i, i+1, mounts...)
}
