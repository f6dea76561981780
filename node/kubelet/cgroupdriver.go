package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/configuration"
)

// systemdRuns is the directory that a machine has whose init is systemd.
const systemdRuns = "/run/systemd/system"

// checkSystemd says, if so, that nobody is there to make the control groups of a runtime in
// this process as they are to be made. Another runtime says itself how.
func checkSystemd(s *configuration.Settings, dir string) error {
	if s.CgroupDriver != configuration.Systemd {
		return nil
	}
	if st, err := os.Lstat(dir); err == nil && st.IsDir() {
		return nil
	}
	return fmt.Errorf("cgroupDriver (--cgroup-driver) is systemd, and systemd is not the init of this machine: there is no %s; set it to cgroupfs, or leave it out", dir)
}

// cgroupParent is the group of all pods as the driver has it, a slice of systemd's or a
// directory; "-" leaves groups to the runtime.
func (k *Kubelet) cgroupParent() string {
	if d := k.driver.Load(); k.cfg.CgroupParent != "-" && d != nil && *d == configuration.Systemd {
		return cgroup.SlicePath(k.cfg.CgroupParent)
	}
	return k.cfg.CgroupParent
}

// useDriver has control groups made as the runtime has its own made, which counts for more
// than the setting. It is called before there is any.
func (k *Kubelet) useDriver(driver string) {
	if driver != k.cfg.Settings.CgroupDriver {
		slog.Info("the container runtime says how control groups are made", "cgroupDriver", driver, "set", k.cfg.Settings.CgroupDriver)
	}
	if driver == configuration.Systemd {
		k.cgroups.UseSystemd(k.ctx, k.busAddress)
	} else {
		k.cgroups.UseDirectories()
	}
	k.driver.Store(&driver)
	k.driven.open()
}

// askDriver asks the runtime how it has control groups made. One that is older than the
// question leaves it to the setting.
func (k *Kubelet) askDriver(ctx context.Context) (driver string, err error) {
	c, err := k.runtime.RuntimeConfig(ctx, &cri.RuntimeConfigRequest{})
	switch {
	case status.Code(err) == codes.Unimplemented:
		k.metrics.losingSupport.WithLabelValues("1.37.0").Set(1)
		slog.Info("the container runtime does not say how it has control groups made: the setting counts", "cgroupDriver", k.cfg.Settings.CgroupDriver)
		return k.cfg.Settings.CgroupDriver, nil
	case err != nil:
		return "", fmt.Errorf("container runtime is down: %w", err)
	case c.GetLinux() == nil:
		return k.cfg.Settings.CgroupDriver, nil
	}
	switch d := c.Linux.CgroupDriver; d {
	case cri.CgroupDriver_SYSTEMD:
		return configuration.Systemd, nil
	case cri.CgroupDriver_CGROUPFS:
		return configuration.Cgroupfs, nil
	default:
		return "", fmt.Errorf("runtime returned an unknown cgroup driver %d", d)
	}
}
