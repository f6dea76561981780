package shim

import (
	"fmt"
	"slices"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

func TestMountCgroups(t *testing.T) {
	mount := func(at string, of ...string) cgroups.Mount {
		return cgroups.Mount{Mountpoint: "/sys/fs/cgroup/" + at, Root: "/", Subsystems: of}
	}
	plain := []cgroups.Mount{mount("memory", "memory"), mount("systemd", "systemd")}
	const untouched = "cgroup cgroup /sys/fs/cgroup ro"
	for _, tt := range []struct {
		name    string
		mounted []cgroups.Mount
		change  func(*configs.Config)
		want    []string
	}{
		{"each its own", plain, nil, []string{
			"tmpfs tmpfs /sys/fs/cgroup rw", "bind /sys/fs/cgroup/memory/pods/c /sys/fs/cgroup/memory ro", "bind /sys/fs/cgroup/systemd/pods/c /sys/fs/cgroup/systemd ro",
		}},
		{"two in one", []cgroups.Mount{mount("cpu,cpuacct", "cpu", "cpuacct")}, nil, []string{
			"tmpfs tmpfs /sys/fs/cgroup rw", "bind /sys/fs/cgroup/cpu,cpuacct/pods/c /sys/fs/cgroup/cpu,cpuacct ro",
			"bind /sys/fs/cgroup/cpu,cpuacct/pods/c /sys/fs/cgroup/cpu ro", "bind /sys/fs/cgroup/cpu,cpuacct/pods/c /sys/fs/cgroup/cpuacct ro",
		}},
		{"version 2", nil, nil, []string{untouched}},
		{"a hierarchy that libcontainer does not know", append(plain, mount("new", "new")), nil, []string{untouched}},
		{"a namespace of control groups", plain, func(c *configs.Config) { c.Namespaces.Add(configs.NEWCGROUP, "") }, []string{untouched}},
		{"by systemd", plain, func(c *configs.Config) { c.Cgroups.Systemd = true }, []string{untouched}},
		{"below the runtime's own group", plain, func(c *configs.Config) { c.Cgroups.Path = "pods/c" }, []string{untouched}},
		{"no such mount", plain, func(c *configs.Config) { c.Mounts = c.Mounts[:1] }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := &configs.Config{Cgroups: &cgroups.Cgroup{Path: "/pods/c"}, Mounts: []*configs.Mount{
				{Device: "proc", Source: "proc", Destination: "/proc"},
				{Device: "cgroup", Source: "cgroup", Destination: "/sys/fs/cgroup", Flags: unix.MS_RDONLY},
				{Device: "bind", Source: "/etc/hosts", Destination: "/etc/hosts"},
			}}
			if tt.change != nil {
				tt.change(config)
			}
			mountCgroups(config, tt.mounted)
			var got []string
			for _, m := range config.Mounts {
				if m.Destination == "/proc" || m.Destination == "/etc/hosts" {
					continue
				}
				mode := "rw"
				if m.Flags&unix.MS_RDONLY != 0 {
					mode = "ro"
				}
				got = append(got, fmt.Sprint(m.Device, " ", m.Source, " ", m.Destination, " ", mode))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if last := config.Mounts[len(config.Mounts)-1]; tt.want != nil && last.Destination != "/etc/hosts" {
				t.Errorf("the last mount is now %s", last.Destination)
			}
		})
	}
}
