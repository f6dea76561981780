package containerruntime

import (
	"fmt"
	"os"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/need"
)

// TestSandbox: the program that holds a pod's namespaces, which the shim starts without
// libcontainer, is as confined as that would have it, and has the pod's settings.
func TestSandbox(t *testing.T) {
	if isolated(t) {
		return
	}
	if _, err := os.Stat("/bin/busybox"); err != nil {
		need.Skip(t, "needs a static busybox: apt-get install busybox-static")
	}
	n := newNode(t)
	ctx := t.Context()
	hosts := pids(t, "/pause")
	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "a", Uid: "a", Namespace: "test"}, Hostname: "web-0", DnsConfig: &cri.DNSConfig{},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: n.config.CgroupParent + "/a",
			Sysctls:      map[string]string{"kernel.shm_rmid_forced": "1", "net.ipv4.ip_local_port_range": "40000 50000"},
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				Seccomp: &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
			},
		},
	}
	sandbox, err := n.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	for p := range pids(t, "/pause") {
		if !hosts[p] {
			pid = p
		}
	}
	read := func(format string, args ...any) string {
		b, err := os.ReadFile(fmt.Sprintf(format, args...))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	status := read("/proc/%d/status", pid)
	for _, want := range []string{
		"Uid:\t65535\t65535\t65535\t65535", "Gid:\t65535\t65535\t65535\t65535", "NoNewPrivs:\t1", "Seccomp:\t2",
		"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000",
	} {
		if !strings.Contains(status, "\n"+want+"\n") {
			t.Errorf("its status has no line %q:\n%s", want, status)
		}
	}
	if group := read("/proc/%d/cgroup", pid); !strings.Contains(group, n.config.CgroupParent+"/a/"+sandbox.PodSandboxId) {
		t.Errorf("it is not in its group: %s", group)
	}
	if mounts := strings.TrimSpace(read("/proc/%d/mountinfo", pid)); strings.Count(mounts, "\n") != 0 || !strings.Contains(mounts, " / ro,nosuid,nodev") {
		t.Errorf("it has other mounts than its root, to be read only: %s", mounts)
	}
	if fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)); err != nil || len(fds) != 3 {
		for _, fd := range fds {
			to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))
			t.Errorf("it has open: %s %v", to, err)
		}
	}
	for _, kind := range []string{"ipc", "uts", "net", "pid", "mnt"} {
		own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		host, herr := os.Readlink("/proc/self/ns/" + kind)
		if err != nil || herr != nil || own == host {
			t.Errorf("namespace %s is %s, ours %s: %v %v", kind, own, host, err, herr)
		}
	}
	// What is set in the namespaces is what the containers of the pod find.
	container, err := n.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sandbox.PodSandboxId, SandboxConfig: config, Config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main"}, Image: &cri.ImageSpec{Image: DefaultSandboxImage},
		Command: []string{"/bin/busybox", "sleep", "600"},
		Mounts:  []*cri.Mount{{HostPath: "/bin/busybox", ContainerPath: "/bin/busybox", Readonly: true}},
		Linux:   &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: &cri.NamespaceOption{}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: container.ContainerId}); err != nil {
		t.Fatal(err)
	}
	for want, command := range map[string][]string{
		"web-0":        {"/bin/busybox", "hostname"},
		"1":            {"/bin/busybox", "cat", "/proc/sys/kernel/shm_rmid_forced"},
		"40000\t50000": {"/bin/busybox", "cat", "/proc/sys/net/ipv4/ip_local_port_range"},
	} {
		if got := strings.TrimSpace(n.exec(t, container.ContainerId, command...)); got != want {
			t.Errorf("%v: %q, want %q", command, got, want)
		}
	}
	if err := n.remove(ctx, sandbox.PodSandboxId); err != nil {
		t.Error(err)
	}
	n.nothingLeft(t)

	// What does not belong to a pod is refused, in libcontainer's words.
	config.Linux.Sysctls = map[string]string{"vm.swappiness": "1"}
	if _, err := n.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config}); err == nil || !strings.Contains(err.Error(), `sysctl "vm.swappiness" is not in a separate kernel namespace`) {
		t.Errorf("a setting of the host: %v", err)
	}
	n.nothingLeft(t)
}

// pids are those of processes of this name.
func pids(t *testing.T, name string) map[int]bool {
	t.Helper()
	all, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	of := map[int]bool{}
	for _, p := range all {
		if len(p.args) > 0 && p.args[0] == name {
			of[p.pid] = true
		}
	}
	return of
}
