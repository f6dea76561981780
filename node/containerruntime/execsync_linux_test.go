package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestExecOutputIsBounded: what a command writes is kept within bounds, and the
// command does not notice.
func TestExecOutputIsBounded(t *testing.T) {
	if isolated(t) {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n := newNode(t)
	config := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: "exec", Uid: "exec", Namespace: "test"},
		LogDirectory: filepath.Join(n.config.State, "logs", "exec"), DnsConfig: &cri.DNSConfig{},
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: n.config.CgroupParent + "/exec", SecurityContext: &cri.LinuxSandboxSecurityContext{}},
	}
	sb, err := n.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	var mounts []*cri.Mount
	for _, dir := range []string{"/bin", "/lib", "/lib64", "/usr"} {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			mounts = append(mounts, &cri.Mount{HostPath: real, ContainerPath: dir, Readonly: true})
		}
	}
	c, err := n.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sb.PodSandboxId, SandboxConfig: config, Config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main"}, Image: &cri.ImageSpec{Image: DefaultSandboxImage}, LogPath: "main.log", Mounts: mounts,
		Envs:  []*cri.KeyValue{{Key: "PATH", Value: []byte("/usr/bin:/bin")}},
		Linux: &cri.LinuxContainerConfig{Resources: &cri.LinuxContainerResources{CpuShares: 100}, SecurityContext: &cri.LinuxContainerSecurityContext{}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		t.Fatal(err)
	}
	sh := func(script string, timeout int64) (*cri.ExecSyncResponse, error) {
		return n.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: c.ContainerId, Cmd: []string{"sh", "-c", script}, Timeout: timeout})
	}
	if r, err := sh("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; exit 7", 60); err != nil {
		t.Error(err)
	} else if len(r.Stdout) != maxExecOutput || len(r.Stderr) != maxExecOutput || r.ExitCode != 7 {
		t.Errorf("%d and %d bytes, exit code %d", len(r.Stdout), len(r.Stderr), r.ExitCode)
	}
	if r, err := sh("echo out; echo err >&2", 0); err != nil || string(r.Stdout) != "out\n" || string(r.Stderr) != "err\n" || r.ExitCode != 0 {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := sh("sleep 1000 & echo started", 1); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a child that holds the outputs: %v", err)
	}
	if _, err := sh("sleep 1000", 1); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a command that does not end: %v", err)
	}
	if _, err := n.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: c.ContainerId, Cmd: []string{"/no/such"}}); err == nil {
		t.Error("a command that is not there ran")
	}
	if _, err := n.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: "none", Cmd: []string{"sh"}}); status.Code(err) != codes.NotFound {
		t.Errorf("a container that is not there: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(n.config.State, "exec", "*")); len(left) > 0 {
		t.Errorf("pipes are left: %v", left)
	}
	if err := n.remove(ctx, sb.PodSandboxId); err != nil {
		t.Error(err)
	}
}

// TestExecOfSilentShim: a command that is not started because the shim does not answer has not
// taken too long, so that its probe counts neither way.
func TestExecOfSilentShim(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	sandbox, container := n.shell(t, "silent", "exec sleep 1000")
	shim := n.shimPid(t)
	if err := unix.Kill(shim, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, err := n.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: container, Cmd: []string{"/bin/busybox", "true"}, Timeout: 1})
	if cerr := unix.Kill(shim, unix.SIGCONT); cerr != nil {
		t.Fatal(cerr)
	}
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "the shim does not answer") {
		t.Error(err)
	}
	if got := n.exec(t, container, "/bin/busybox", "echo", "again"); got != "again" {
		t.Error(got)
	}
	if err := n.remove(t.Context(), sandbox); err != nil {
		t.Error(err)
	}
}

// TestLateExec: a command that its container cannot start, while the shim answers, has taken
// too long.
func TestLateExec(t *testing.T) {
	past, cancel := context.WithTimeout(t.Context(), -time.Second)
	defer cancel()
	cause := errors.New("no answer")
	for answers, want := range map[bool]error{true: context.DeadlineExceeded, false: errShimSilent} {
		e := &executor{answers: func(context.Context) bool { return answers }}
		if err := e.late(t.Context(), past, cause); !errors.Is(err, want) {
			t.Errorf("answers %v: %v", answers, err)
		}
		if err := e.late(t.Context(), t.Context(), cause); err != cause {
			t.Errorf("in time: %v", err)
		}
	}
}

// stopsEntering is a shell's loop that stops each process on its way into the container, and
// does then what comes after.
const stopsEntering = `while :; do for d in /proc/[0-9]*; do
	name= && read -r name <$d/comm
	case "$name" in runc:*) kill -STOP ${d#/proc/}; %s;; esac
done 2>/dev/null; done`

// TestStoppedExecs: commands that a container stops on their way in are given up with their
// callers: they keep no place that others need, and no process is left of them. A command that
// is only slow to begin begins.
func TestStoppedExecs(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	stopping, hostile := n.shell(t, "stops", fmt.Sprintf(stopsEntering, ":"))
	slowing, slow := n.shell(t, "slows", fmt.Sprintf(stopsEntering, "/bin/busybox sleep 1; kill -CONT ${d#/proc/}; while [ -e $d ]; do /bin/busybox sleep 0.1; done"))
	quiet, other := n.shell(t, "quiet", "exec /bin/busybox sleep 1000")
	stopped := func() (err error) { // one that is too quick is not
		for err == nil && t.Context().Err() == nil {
			_, err = n.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: hostile, Cmd: []string{"/bin/busybox", "true"}, Timeout: 1})
		}
		return err
	}
	const places = 16 // of a container
	var wg sync.WaitGroup
	for range places + 2 {
		wg.Go(func() {
			if err := stopped(); status.Code(err) != codes.DeadlineExceeded && !strings.Contains(err.Error(), "container "+hostile+" has 16 processes that do not get to their start") {
				t.Error("one that is stopped:", err)
			}
		})
	}
	if got := n.exec(t, other, "/bin/busybox", "echo", "there"); got != "there" {
		t.Error("meanwhile, in another container:", got)
	}
	if got := n.exec(t, slow, "/bin/busybox", "echo", "late"); got != "late" {
		t.Error("one that is slow to begin:", got)
	}
	wg.Wait()
	shim := n.shimPid(t)
	halfway := func() (found []string) {
		for _, line := range children(t, shim) {
			if strings.HasSuffix(line, " init") {
				found = append(found, line)
			}
		}
		return found
	}
	for until := time.Now().Add(20 * time.Second); len(halfway()) > 0; <-time.After(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("left on their way into a container: %q", halfway())
		}
	}
	if err := stopped(); status.Code(err) != codes.DeadlineExceeded {
		t.Error("the places are not free again:", err)
	}
	for _, s := range []string{stopping, slowing, quiet} {
		if err := n.remove(t.Context(), s); err != nil {
			t.Error(err)
		}
	}
	n.nothingLeft(t)
}

// TestStoppedContainer: the making of a container that another one of its pod stops is given up
// with its caller, and leaves no process; the pod's first container and the pod are unharmed.
func TestStoppedContainer(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	shared := &cri.NamespaceOption{Pid: cri.NamespaceMode_POD}
	config := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: "shares", Uid: "shares", Namespace: "test"},
		LogDirectory: filepath.Join(n.config.State, "logs", "shares"), DnsConfig: &cri.DNSConfig{},
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: n.config.CgroupParent + "/shares", SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: shared}},
	}
	pod, err := n.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	start := func(name, script string, most time.Duration) (string, error) {
		c, err := n.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: pod.PodSandboxId, SandboxConfig: config, Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: DefaultSandboxImage}, LogPath: name + ".log",
			Command: []string{"/bin/busybox", "sh", "-c", script}, Mounts: []*cri.Mount{{HostPath: "/bin/busybox", ContainerPath: "/bin/busybox", Readonly: true}},
			Linux: &cri.LinuxContainerConfig{Resources: &cri.LinuxContainerResources{CpuShares: 100}, SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: shared, RunAsUser: &cri.Int64Value{}}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), most)
		defer cancel()
		_, err = n.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ContainerId})
		return c.ContainerId, err
	}
	first, err := start("first", fmt.Sprintf(stopsEntering, ":"), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := start("second", "exec /bin/busybox sleep 1000", 3*time.Second); status.Code(err) != codes.DeadlineExceeded {
		t.Error("the second container:", err)
	}
	shim := n.shimPid(t)
	for until := time.Now().Add(20 * time.Second); slices.ContainsFunc(children(t, shim), func(line string) bool { return strings.HasSuffix(line, " init") }); <-time.After(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("left on their way into a container: %q", children(t, shim))
		}
	}
	n.await(t, first, cri.ContainerState_CONTAINER_RUNNING)
	if err := n.remove(t.Context(), pod.PodSandboxId); err != nil {
		t.Error(err)
	}
	n.nothingLeft(t)
}
