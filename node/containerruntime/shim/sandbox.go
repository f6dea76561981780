package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	checks "github.com/opencontainers/runc/libcontainer/configs/validate"
	"github.com/opencontainers/runc/libcontainer/system"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"knarr/internal/run"
)

// What containerd's side puts into the directory of sockets: a directory with the
// program pause and nothing else, and the profile by which its sandboxes are known.
const (
	pauseRootName    = "pause-root"
	pauseProfileName = "pause-seccomp.json"
)

// A sandbox is what a pod's first container needs where that is knarr's own program,
// which does nothing but hold namespaces: it is started by this program itself. A
// container's start by libcontainer has another program of Go build the container from
// within, which for this one is most of the work, and mounts a root for it.
type sandbox struct {
	flags    int    // namespaces that its thread makes
	ownPID   bool   // and one that its process begins
	network  string // the one to enter, or none
	hostname string
	domain   string
	sysctls  map[string]string
	uid, gid uint32
	groups   []uint32
	oom      *int
}

// sandboxOf says whether a description is that of such a sandbox, and has nothing that
// only libcontainer does.
func sandboxOf(spec *specs.Spec, profile *specs.LinuxSeccomp) (*sandbox, bool) {
	p, l := spec.Process, spec.Linux
	if l == nil || profile == nil || spec.Annotations["io.kubernetes.cri.container-type"] != "sandbox" ||
		!slices.Equal(p.Args, []string{"/pause"}) || p.Cwd != "/" || p.Terminal ||
		!reflect.DeepEqual(l.Seccomp, profile) || !p.NoNewPrivileges ||
		p.ApparmorProfile != "" || p.SelinuxLabel != "" || l.MountLabel != "" ||
		len(p.Rlimits) > 0 || p.Scheduler != nil || p.IOPriority != nil || p.ExecCPUAffinity != nil ||
		spec.Hooks != nil || len(l.UIDMappings) > 0 || len(l.GIDMappings) > 0 || l.Personality != nil || l.IntelRdt != nil {
		return nil, false
	}
	s := &sandbox{
		hostname: spec.Hostname, domain: spec.Domainname, sysctls: l.Sysctl,
		uid: p.User.UID, gid: p.User.GID, groups: p.User.AdditionalGids, oom: p.OOMScoreAdj,
	}
	seen := map[specs.LinuxNamespaceType]bool{}
	for _, n := range l.Namespaces {
		if seen[n.Type] || n.Path != "" && n.Type != specs.NetworkNamespace {
			return nil, false
		}
		seen[n.Type] = true
		switch n.Type {
		case specs.NetworkNamespace:
			if n.Path == "" {
				return nil, false
			}
			s.network = n.Path
		case specs.PIDNamespace:
			s.ownPID = true
		case specs.IPCNamespace:
			s.flags |= unix.CLONE_NEWIPC
		case specs.UTSNamespace:
			s.flags |= unix.CLONE_NEWUTS
		case specs.MountNamespace, specs.CgroupNamespace:
		default:
			return nil, false
		}
	}
	own := seen[specs.UTSNamespace]
	return s, seen[specs.MountNamespace] && (own || s.hostname == "" && s.domain == "")
}

// pauseProfile is that of the program that is in the sandboxes' root; nil where there is
// none.
func (s *Service) pauseProfile() *specs.LinuxSeccomp {
	if _, err := os.Stat(filepath.Join(s.state, pauseRootName, "pause")); err != nil {
		return nil
	}
	b, err := os.ReadFile(filepath.Join(s.state, pauseProfileName))
	if err != nil {
		return nil
	}
	profile := &specs.LinuxSeccomp{}
	if json.Unmarshal(b, profile) != nil {
		return nil
	}
	return profile
}

// createSandbox does for a sandbox what libcontainer does for a container, and leaves
// what that finds again. The program is started at once: what it waits for is its end.
func (t *task) createSandbox(s *sandbox, r *api.CreateTaskRequest, opts *options.Options, spec *specs.Spec) (err error) {
	if err := os.Mkdir(t.rootfs(), 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	config, err := toConfig(t.id, opts, spec)
	if err != nil {
		return err
	}
	labelBundle(config, t.bundle)
	if err := checks.Validate(config); err != nil {
		return err
	}
	// Nobody but the program is in the group, and that has no devices: not even null.
	config.Cgroups.SkipDevices = true
	dir := filepath.Join(t.root, t.id)
	if err := os.MkdirAll(t.root, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o711); err != nil {
		return err
	}
	group, err := manager.New(config.Cgroups)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	// Where there is no group yet there is no process in it.
	pids, err := group.GetAllPids()
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return errors.Join(fmt.Errorf("unable to get cgroup PIDs: %w", err), os.RemoveAll(dir))
	}
	if len(pids) > 0 {
		return errors.Join(fmt.Errorf("container's cgroup is not empty: %d process(es) found", len(pids)), os.RemoveAll(dir))
	}
	child, err := t.service.sandboxes.start(s)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	undo := func(err error) error {
		_ = child.Kill()
		_, _ = child.Wait()
		return errors.Join(err, group.Destroy(), os.RemoveAll(dir))
	}
	if err := s.settle(child.Pid, group, config); err != nil {
		return undo(err)
	}
	if err := writeState(dir, t.id, child.Pid, group, config); err != nil {
		return undo(err)
	}
	if t.container, err = t.load(); err != nil {
		return undo(err)
	}
	p := newProcess("", stdio{})
	p.wait = child.Wait
	if err := p.opened(child.Pid); err != nil {
		return undo(err)
	}
	t.service.mu.Lock()
	t.init = p
	t.service.mu.Unlock()
	if err := t.save(nil); err != nil {
		return undo(err)
	}
	return nil
}

// settle gives the process its place and its rank.
func (s *sandbox) settle(pid int, group cgroups.Manager, config *configs.Config) error {
	if err := group.Apply(pid); err != nil {
		return fmt.Errorf("unable to apply cgroup configuration: %w", err)
	}
	if err := group.Set(config.Cgroups.Resources); err != nil {
		return fmt.Errorf("unable to set cgroup configuration: %w", err)
	}
	if s.oom == nil {
		return nil
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.Itoa(*s.oom))
	return errors.Join(err, f.Close())
}

// writeState writes what libcontainer reads of a container that another program started.
func writeState(dir, id string, pid int, group cgroups.Manager, config *configs.Config) error {
	stat, err := system.Stat(pid)
	if err != nil {
		return err
	}
	state := libcontainer.State{
		BaseState: libcontainer.BaseState{
			ID: id, InitProcessPid: pid, InitProcessStartTime: stat.StartTime, Created: time.Now().UTC(), Config: *config,
		},
		CgroupPaths:         group.GetPaths(),
		NamespacePaths:      map[configs.NamespaceType]string{},
		ExternalDescriptors: []string{os.DevNull, os.DevNull, os.DevNull},
	}
	for _, kind := range configs.NamespaceTypes() {
		if configs.IsNamespaceSupported(kind) {
			n := configs.Namespace{Type: kind}
			state.NamespacePaths[kind] = n.GetPath(pid)
		}
	}
	b, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "state.json"), b, 0o600)
}

// sandboxes starts the programs of sandboxes, which share one mount namespace: it has
// the directory of their program, to be read and executed, and nothing else. A copy of
// this program's, as other containers get, costs the more the more containers there are.
type sandboxes struct {
	root string // the directory

	mu     sync.Mutex
	mounts *os.File // the namespace, once one was asked for
}

// start starts the program.
func (s *sandboxes) start(what *sandbox) (child *os.Process, err error) {
	mounts, err := s.namespace()
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	err = onThread(func() error {
		if err := what.enter(); err != nil {
			return err
		}
		if err := unix.Setns(int(mounts.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter the sandboxes' mount namespace: %w", err)
		}
		if err := renounce(); err != nil {
			return err
		}
		child, err = what.begin(null)
		return err
	})
	return child, err
}

// namespace makes the mount namespace that sandboxes share.
func (s *sandboxes) namespace() (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mounts != nil {
		return s.mounts, nil
	}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		f, err := os.Open("/proc/thread-self/ns/mnt")
		if err != nil {
			return err
		}
		if err := onlyMount(s.root); err != nil {
			return errors.Join(err, f.Close())
		}
		s.mounts = f
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("make the sandboxes' mount namespace: %w", err)
	}
	return s.mounts, nil
}

// onlyMount makes dir, read-only, all that the mount namespace of this thread has.
func onlyMount(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	const limits = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
	if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|limits, ""); err != nil {
		return err
	}
	if err := unix.Chdir(dir); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	// What was the root lies on the new one.
	return unix.Unmount(".", unix.MNT_DETACH)
}

// enter makes and enters the namespaces of a sandbox but that of mounts, and sets what is
// set in them.
func (s *sandbox) enter() error {
	if s.network != "" {
		fd, err := unix.Open(s.network, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open the network namespace: %w", err)
		}
		err = unix.Setns(fd, unix.CLONE_NEWNET)
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
	}
	if err := unix.Unshare(s.flags); err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	if s.hostname != "" {
		if err := unix.Sethostname([]byte(s.hostname)); err != nil {
			return fmt.Errorf("set the host's name: %w", err)
		}
	}
	if s.domain != "" {
		if err := unix.Setdomainname([]byte(s.domain)); err != nil {
			return fmt.Errorf("set the domain's name: %w", err)
		}
	}
	if len(s.sysctls) == 0 {
		return nil
	}
	// The kernel shows a thread the settings of its namespaces.
	settings, err := os.OpenRoot("/proc/sys")
	if err != nil {
		return err
	}
	defer settings.Close()
	for name, value := range s.sysctls {
		f, err := settings.OpenFile(strings.ReplaceAll(name, ".", "/"), os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(value)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			return fmt.Errorf("set sysctl %s: %w", name, err)
		}
	}
	return nil
}

// renounce takes from this thread, and what it starts, all that root may do beyond what
// starting a program under another user needs.
func renounce() error {
	if _, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0); err != nil && !errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("join a keyring: %w", err)
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop ambient capabilities: %w", err)
	}
	for c := range uintptr(64) {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			if errors.Is(err, unix.EINVAL) && c > unix.CAP_BLOCK_SUSPEND {
				break // there are no more
			}
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// begin starts the program, which confines itself further.
func (s *sandbox) begin(null *os.File) (*os.Process, error) {
	// What this program was started with is not the sandbox's.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("close files: %w", err)
	}
	attr := &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: s.uid, Gid: s.gid, Groups: s.groups}}
	if s.ownPID {
		attr.Cloneflags = unix.CLONE_NEWPID
	}
	return os.StartProcess("/pause", []string{"/pause"}, &os.ProcAttr{
		Dir: "/", Env: []string{"KNARR_PAUSE=confined"}, Files: []*os.File{null, null, null}, Sys: attr,
	})
}

// onThread runs a function on a thread of its own, with a directory of its own, which
// ends with it and takes with it whatever the function made of it. The first thread is
// never that one: the program keeps it for main.
func onThread(f func() error) error {
	done := make(chan error)
	run.Go("shim: sandbox", func() {
		runtime.LockOSThread() // and never unlocked
		done <- func() (err error) {
			defer func() {
				if r := recover(); r != nil {
					err = fmt.Errorf("panic: %v", r)
				}
			}()
			if unix.Gettid() == unix.Getpid() {
				return errors.New("this is the first thread")
			}
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			return f()
		}()
	})
	return <-done
}
