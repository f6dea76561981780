package containerruntime

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pauseCalls are the system calls that the embedded sandbox program makes, and
// that the program which becomes it may make until then. They are few of those
// that the runtime's default profile allows, which is hundreds of rules: to
// compile those for a program that only waits takes a fifth of the CPU time of a
// pod's start.
var pauseCalls = []string{
	// of pause
	"execve", "exit", "exit_group", "rt_sigprocmask", "rt_sigtimedwait", "wait4",
	// of the kernel's start of a program and of signals
	"arch_prctl", "brk", "restart_syscall", "rt_sigreturn",
	// of Go, on its way to execve
	"clock_gettime", "clock_nanosleep", "close", "close_range", "epoll_ctl", "epoll_pwait", "execveat", "fcntl", "fstat", "fstatfs", "futex",
	"getdents64", "getpid", "getppid", "gettid", "lseek", "madvise", "mmap", "mprotect", "munmap", "nanosleep", "newfstatat",
	"openat", "openat2", "prctl", "pread64", "read", "readlinkat", "rt_sigaction", "sched_getaffinity", "sched_yield", "sigaltstack", "stat",
	"statx", "tgkill", "write",
}

// writePauseProfile writes the profile to where the CRI reads it.
func writePauseProfile(state string) (path string, err error) {
	denied := uint(1) // EPERM, as the default profile answers
	b, err := json.Marshal(&specs.LinuxSeccomp{
		DefaultAction: specs.ActErrno, DefaultErrnoRet: &denied,
		Syscalls: []specs.LinuxSyscall{{Names: pauseCalls, Action: specs.ActAllow}},
	})
	if err != nil {
		return "", err
	}
	path = filepath.Join(state, pauseProfileName)
	return path, os.WriteFile(path, b, 0o600)
}

// A pauseProfile is the profile of the embedded sandbox program.
type pauseProfile struct {
	path string
	// name is the sandbox image's, image the digest that it has while the program is
	// the embedded one.
	name  string
	image digest.Digest
}

// narrow gives a sandbox whose profile is the default one that of its only
// program. The containers of the pod have profiles of their own. Another program,
// which somebody loaded or pulled in the place of the embedded one, keeps the
// default profile: upstream's waits by another call, and spins where that is refused.
func (e *executor) narrow(ctx context.Context, r *cri.RunPodSandboxRequest) {
	pause := e.pause.Load()
	s := r.GetConfig().GetLinux().GetSecurityContext()
	if pause == nil || s.GetSeccomp() == nil || s.Seccomp.ProfileType != cri.SecurityProfile_RuntimeDefault {
		return
	}
	image, err := e.images.Get(namespaces.WithNamespace(ctx, imageNamespace), pause.name)
	if err == nil && image.Target.Digest == pause.image {
		s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: pause.path}
	}
}
