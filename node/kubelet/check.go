package kubelet

import (
	"errors"
	"os"
	"path/filepath"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/cpumanager"
	"knarr/node/kubelet/memorymanager"
)

// Check says which settings a kubelet with this directory would not start with on this
// machine; with own, the runtime is in its process. It makes nothing and connects nothing,
// for whoever starts more than a kubelet and would start that again and again.
func Check(rootDir string, s *configuration.Settings, own bool) error {
	err := check(rootDir, "/sys/devices/system", readMachine, s)
	if own {
		err = errors.Join(err, checkSystemd(s, systemdRuns))
	}
	return err
}

func check(rootDir, sys string, read func() (machine, error), s *configuration.Settings) error {
	k := &Kubelet{cfg: Config{RootDir: existing(rootDir), Settings: s}, cgroups: cgroup.Open()}
	var err error
	if k.machine, err = read(); err != nil {
		return err
	}
	c, err := k.managerConfigs(sys)
	if err == nil {
		err = errors.Join(cpumanager.Check(c.cpus), memorymanager.Check(c.memory))
	}
	return errors.Join(k.checkHost(), err)
}

// existing is a directory, or the one above it that is there: it will be on that disk.
func existing(dir string) string {
	for {
		if _, err := os.Lstat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}
