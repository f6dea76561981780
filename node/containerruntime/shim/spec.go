package shim

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"
)

// validate says what of a process cannot be started, in runc's words.
func validate(p *specs.Process) error {
	switch {
	case p == nil:
		return errors.New("process property must not be empty")
	case p.Cwd == "":
		return errors.New("Cwd property must not be empty")
	case !filepath.IsAbs(p.Cwd):
		return errors.New("Cwd must be an absolute path")
	case len(p.Args) == 0:
		return errors.New("args must not be empty")
	case p.SelinuxLabel != "" && !selinux.GetEnabled():
		return errors.New("selinux label is specified in config, but selinux is disabled or not supported")
	}
	return nil
}

// toProcess translates a process of a description into libcontainer's terms.
func toProcess(p *specs.Process) (*libcontainer.Process, error) {
	out := &libcontainer.Process{
		Args: p.Args, Env: p.Env, Cwd: p.Cwd,
		UID: int(p.User.UID), GID: int(p.User.GID),
		Label: p.SelinuxLabel, AppArmorProfile: p.ApparmorProfile,
		NoNewPrivileges: &p.NoNewPrivileges,
		Scheduler:       p.Scheduler,
		IOPriority:      p.IOPriority,
	}
	if s := p.ConsoleSize; s != nil {
		out.ConsoleWidth, out.ConsoleHeight = uint16(s.Width), uint16(s.Height)
	}
	if c := p.Capabilities; c != nil {
		out.Capabilities = &configs.Capabilities{
			Bounding: c.Bounding, Effective: c.Effective, Inheritable: c.Inheritable, Permitted: c.Permitted, Ambient: c.Ambient,
		}
	}
	for _, g := range p.User.AdditionalGids {
		out.AdditionalGroups = append(out.AdditionalGroups, int(g))
	}
	for _, r := range p.Rlimits {
		number, ok := rlimits[r.Type]
		if !ok {
			return nil, fmt.Errorf("wrong rlimit value: %s", r.Type)
		}
		out.Rlimits = append(out.Rlimits, configs.Rlimit{Type: number, Hard: r.Hard, Soft: r.Soft})
	}
	var err error
	out.CPUAffinity, err = configs.ConvertCPUAffinity(p.ExecCPUAffinity)
	return out, err
}

var rlimits = map[string]int{
	"RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_CPU": unix.RLIMIT_CPU, "RLIMIT_DATA": unix.RLIMIT_DATA,
	"RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_LOCKS": unix.RLIMIT_LOCKS, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK,
	"RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE, "RLIMIT_NICE": unix.RLIMIT_NICE, "RLIMIT_NOFILE": unix.RLIMIT_NOFILE,
	"RLIMIT_NPROC": unix.RLIMIT_NPROC, "RLIMIT_RSS": unix.RLIMIT_RSS, "RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO,
	"RLIMIT_RTTIME": unix.RLIMIT_RTTIME, "RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING, "RLIMIT_STACK": unix.RLIMIT_STACK,
}
