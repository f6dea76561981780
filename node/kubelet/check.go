package kubelet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/cpumanager"
	"knarr/node/kubelet/credentialprovider"
	"knarr/node/kubelet/memorymanager"
)

// Check says which settings a kubelet would not start with on this machine: of the
// configuration, its directory, settings and credential providers. With own, the runtime is in
// its process. It makes nothing and connects nothing, for whoever starts more than a kubelet
// and would start that again and again.
func Check(c Config, own bool) error {
	err := errors.Join(check(c.RootDir, "/sys/devices/system", readMachine, c.Settings), checkProviders(c.CredentialProviders, c.CredentialProviderBinDir))
	if own {
		err = errors.Join(err, checkSystemd(c.Settings, systemdRuns))
	}
	return err
}

// The flags that say which programs give credentials.
const (
	providersFlag = "--image-credential-provider-config"
	programsFlag  = "--image-credential-provider-bin-dir"
)

// checkProviders says what is wrong with the configuration of credential providers, and which of
// their programs are not there.
func checkProviders(file, binDir string) error {
	switch {
	case file == "" && binDir == "":
		return nil
	case file == "":
		return fmt.Errorf("%s: credential provider config path is empty; give %s too, or neither", providersFlag, providersFlag)
	case binDir == "":
		return fmt.Errorf("%s: plugin binary directory is empty; give %s too, or neither", programsFlag, programsFlag)
	}
	_, err := credentialprovider.New(credentialprovider.Config{File: file, BinDir: binDir})
	if err == nil {
		return nil
	}
	if errors.Is(err, credentialprovider.ErrProgram) {
		return fmt.Errorf("%s: %w", programsFlag, err)
	}
	return fmt.Errorf("%s: %w", providersFlag, err)
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
	return errors.Join(k.checkHost(), k.checkUserIDs(), err)
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
