package shim

import (
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ofSandbox is a description as containerd writes it for a pod's sandbox.
func ofSandbox() *specs.Spec {
	oom := -998
	return &specs.Spec{
		Hostname:    "web-0",
		Annotations: map[string]string{"io.kubernetes.cri.container-type": "sandbox"},
		Process: &specs.Process{
			Args: []string{"/pause"}, Cwd: "/", NoNewPrivileges: true, OOMScoreAdj: &oom,
			User: specs.User{UID: 65535, GID: 65535, AdditionalGids: []uint32{65535}},
		},
		Linux: &specs.Linux{
			Sysctl:  map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"},
			Seccomp: ofPause(),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace, Path: "/run/netns/a"},
			},
		},
	}
}

func ofPause() *specs.LinuxSeccomp {
	return &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"wait4"}, Action: specs.ActAllow}}}
}

func TestSandboxOf(t *testing.T) {
	s, ok := sandboxOf(ofSandbox(), ofPause())
	if !ok {
		t.Fatal("the sandbox of every pod is left to libcontainer")
	}
	if s.flags != unix.CLONE_NEWIPC|unix.CLONE_NEWUTS || !s.ownPID || s.network != "/run/netns/a" || s.hostname != "web-0" ||
		s.uid != 65535 || s.gid != 65535 || !slices.Equal(s.groups, []uint32{65535}) || *s.oom != -998 || len(s.sysctls) != 1 {
		t.Fatalf("%+v", s)
	}
	host := ofSandbox()
	host.Hostname, host.Linux.Namespaces = "", []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	if s, ok := sandboxOf(host, ofPause()); !ok || s.flags != 0 || s.ownPID || s.network != "" {
		t.Errorf("a pod in the host's namespaces: %+v, %v", s, ok)
	}
}

// TestNotSandboxOf: whatever needs more than this program does is left to libcontainer.
func TestNotSandboxOf(t *testing.T) {
	if _, ok := sandboxOf(ofSandbox(), nil); ok {
		t.Error("there is no program, and it is started")
	}
	for name, change := range map[string]func(*specs.Spec){
		"a container":             func(s *specs.Spec) { s.Annotations["io.kubernetes.cri.container-type"] = "container" },
		"another program":         func(s *specs.Spec) { s.Process.Args = []string{"/pause", "-v"} },
		"no profile":              func(s *specs.Spec) { s.Linux.Seccomp = nil },
		"another profile":         func(s *specs.Spec) { s.Linux.Seccomp.Syscalls[0].Names = []string{"wait4", "ptrace"} },
		"new privileges":          func(s *specs.Spec) { s.Process.NoNewPrivileges = false },
		"AppArmor":                func(s *specs.Spec) { s.Process.ApparmorProfile = "cri-containerd.apparmor.d" },
		"SELinux":                 func(s *specs.Spec) { s.Process.SelinuxLabel = "system_u:system_r:container_t:s0:c1,c2" },
		"a user namespace":        func(s *specs.Spec) { s.Linux.UIDMappings = []specs.LinuxIDMapping{{Size: 65536}} },
		"a limit":                 func(s *specs.Spec) { s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE"}} },
		"a terminal":              func(s *specs.Spec) { s.Process.Terminal = true },
		"hooks":                   func(s *specs.Spec) { s.Hooks = &specs.Hooks{} },
		"an own network":          func(s *specs.Spec) { s.Linux.Namespaces[4].Path = "" },
		"another pod's processes": func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/proc/1/ns/pid" },
		"a namespace twice":       func(s *specs.Spec) { s.Linux.Namespaces[1].Type = specs.PIDNamespace },
		"a clock":                 func(s *specs.Spec) { s.Linux.Namespaces[1].Type = specs.TimeNamespace },
		"the host's mounts":       func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[:3] },
		"the host's name":         func(s *specs.Spec) { s.Linux.Namespaces = slices.Delete(s.Linux.Namespaces, 2, 3) },
	} {
		t.Run(name, func(t *testing.T) {
			s := ofSandbox()
			change(s)
			if _, ok := sandboxOf(s, ofPause()); ok {
				t.Error("it is started without libcontainer")
			}
		})
	}
}
