package containerruntime

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/need"
	"knarr/internal/oomscore"
)

// shell runs a command in a pod of its own, until it is told to end.
func (n *node) shell(t *testing.T, name, script string, changes ...func(*cri.ContainerConfig)) (sandbox, container string) {
	t.Helper()
	if _, err := os.Stat("/bin/busybox"); err != nil {
		need.Skip(t, "needs a static busybox: apt-get install busybox-static")
	}
	n.podConfig = func(c *cri.ContainerConfig) {
		c.Command = []string{"/bin/busybox", "sh", "-c", script}
		c.Mounts = []*cri.Mount{{HostPath: "/bin/busybox", ContainerPath: "/bin/busybox", Readonly: true}}
		c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{}
		c.Linux.Resources.MemoryLimitInBytes = 64 << 20
		for _, change := range changes {
			change(c)
		}
	}
	defer func() { n.podConfig = nil }()
	sandbox, container, err := n.pod(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return sandbox, container
}

// shimPid is the process that runs the containers.
func (n *node) shimPid(t *testing.T) int {
	t.Helper()
	all, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, p := range all {
		if isShim(p, n.config.withDefaultsForTest(t).Socket()) && p.args[len(p.args)-1] == "serve" {
			if found != 0 {
				t.Fatalf("two shims: %d and %d", found, p.pid)
			}
			found = p.pid
		}
	}
	return found
}

// await waits for a container to be in a state and gives what is known of it.
func (n *node) await(t *testing.T, container string, state cri.ContainerState) *cri.ContainerStatus {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); ; {
		res, err := n.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: container})
		if err != nil {
			t.Fatal(err)
		}
		if res.Status.State == state {
			return res.Status
		}
		if time.Now().After(until) {
			t.Fatalf("container is %s, not %s", res.Status.State, state)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func (n *node) exec(t *testing.T, container string, command ...string) string {
	t.Helper()
	var res *cri.ExecSyncResponse
	var err error
	for range 60 { // a shim that is not ready yet says nothing of the container, as to the kubelet
		res, err = n.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: container, Cmd: command, Timeout: 10})
		if status.Code(err) != codes.Unavailable {
			break
		}
		time.Sleep(time.Second)
	}
	if err != nil {
		t.Fatal(err)
	}
	if res.ExitCode != 0 {
		t.Fatalf("%v: exit code %d: %s", command, res.ExitCode, res.Stderr)
	}
	return strings.TrimSpace(string(res.Stdout))
}

// otherShim waits until a shim serves that is not the one of before.
func (n *node) otherShim(t *testing.T, before int) int {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); <-time.After(5 * time.Millisecond) {
		if pid := n.shimPid(t); pid != 0 && pid != before {
			return pid
		}
	}
	t.Fatal("no other shim")
	return 0
}

// TestScores: the kernel spares the shim, which it and ps call by its name, not its containers
// nor what runs in them.
func TestScores(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	scored := func(c *cri.ContainerConfig) { c.Linux.Resources.OomScoreAdj = 500 }
	_, ended := n.shell(t, "ended", "read score < /proc/self/oom_score_adj; exit $((score / 10))", scored)
	if got := n.await(t, ended, cri.ContainerState_CONTAINER_EXITED).ExitCode; got != 50 {
		t.Errorf("a tenth of the container's is %d", got)
	}
	_, container := n.shell(t, "score", "exec sleep 1000", scored)
	n.await(t, container, cri.ContainerState_CONTAINER_RUNNING)
	read := func(process, name string) string {
		b, err := os.ReadFile("/proc/" + process + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	of := func(process string) string { return read(process, "oom_score_adj") }
	if got := read(strconv.Itoa(n.shimPid(t)), "comm"); got != "knarr-shim" {
		t.Errorf("the shim is called %q", got)
	}
	want := "-998"
	if oomscore.Of(os.Getpid(), -1) != nil { // it may not be lowered here
		want = of("self")
	}
	if got := of(strconv.Itoa(n.shimPid(t))); got != want {
		t.Errorf("the shim has %s, want %s", got, want)
	}
	if got := n.exec(t, container, "/bin/busybox", "cat", "/proc/self/oom_score_adj"); got != "500" {
		t.Errorf("a command in the container has %s", got)
	}
}

// TestShimKilled: another one takes up the containers, which do not notice.
func TestShimKilled(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	first, long := n.shell(t, "long", `trap 'exit 7' TERM; while :; do echo tick; /bin/busybox sleep 0.1; done`)
	second, gone := n.shell(t, "gone", `exec /bin/busybox sleep 1000`)
	before := n.await(t, long, cri.ContainerState_CONTAINER_RUNNING)
	shim := n.shimPid(t)
	if err := unix.Kill(shim, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.otherShim(t, shim)
	if got := n.exec(t, long, "/bin/busybox", "echo", "there"); got != "there" {
		t.Errorf("exec says %q", got)
	}
	after := n.await(t, long, cri.ContainerState_CONTAINER_RUNNING)
	if after.StartedAt != before.StartedAt {
		t.Error("the container was started anew")
	}
	goesOn(t, after.LogPath)
	// Both the runtime and its shim are away while a container ends.
	shim = n.shimPid(t)
	n.stop()
	if err := unix.Kill(shim, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.killIn("gone", t)
	n.start(t)
	if s := n.await(t, gone, cri.ContainerState_CONTAINER_EXITED); s.ExitCode == 0 {
		t.Error("a container whose end nobody saw has exit code 0")
	}
	if _, err := n.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: long, Timeout: 10}); err != nil {
		t.Fatal(err)
	}
	// The kernel tells the exit code of a process that is not a child since 6.15.
	if s := n.await(t, long, cri.ContainerState_CONTAINER_EXITED); s.ExitCode != 7 && s.ExitCode != 255 {
		t.Errorf("exit code %d, want 7", s.ExitCode)
	}
	for _, s := range []string{first, second} {
		if err := n.remove(t.Context(), s); err != nil {
			t.Error(err)
		}
	}
	n.nothingLeft(t)
}

// children are the command lines of a process' children; zombies have none.
func children(t *testing.T, parent int) (lines []string) {
	t.Helper()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			lines = append(lines, strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " ")))
		}
	}
	return lines
}

// goesOn waits until more is written to a log.
func goesOn(t *testing.T, path string) {
	t.Helper()
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); <-time.After(5 * time.Millisecond) {
		now, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(now) > len(log) {
			return
		}
	}
	t.Fatalf("nothing more is written to %s", path)
}

// killIn kills the processes of a pod's control group, but for its sandbox'.
func (n *node) killIn(pod string, t *testing.T) {
	t.Helper()
	killed := false
	for _, top := range hierarchies("/sys/fs/cgroup") {
		groups, _ := filepath.Glob(filepath.Join(top, n.config.CgroupParent, pod, "*", "cgroup.procs"))
		for _, g := range groups {
			b, _ := os.ReadFile(g)
			for word := range strings.FieldsSeq(string(b)) {
				pid, _ := strconv.Atoi(word)
				if p, ok := readProcess(pid); ok && p.args[0] != "/pause" {
					killed = unix.Kill(pid, unix.SIGKILL) == nil || killed
				}
			}
		}
	}
	if !killed {
		t.Fatalf("pod %s has no process", pod)
	}
}

// nothingLeft says what is left of containers that were removed.
func (n *node) nothingLeft(t *testing.T) {
	t.Helper()
	for _, glob := range []string{
		n.config.State + "/" + bundlesName + "/*/*", n.config.State + "/runc/*/*", "/sys/fs/cgroup/*" + n.config.CgroupParent + "/*/*/cgroup.procs",
	} {
		if left, _ := filepath.Glob(glob); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
	shim := n.shimPid(t)
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", shim))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", shim, fd.Name())); strings.Contains(to, "/io.containerd.") || strings.Contains(to, "pidfd") {
			t.Errorf("the shim holds %s", to)
		}
	}
	if log, err := os.ReadFile(n.config.State + "/" + shimLogName); err == nil && len(log) > 0 {
		t.Logf("the shim says: %s", log)
	}
}

// TestShimReplaced: a runtime of another version has the shim become its own,
// whose children the containers stay, with their pipes and terminals.
func TestShimReplaced(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	const script = `trap 'exit 7' TERM; while :; do echo tick; /bin/busybox sleep 0.01; done`
	sandbox, container := n.shell(t, "long", script)
	other, terminal := n.shell(t, "terminal", script, func(c *cri.ContainerConfig) { c.Tty = true })
	shim := n.shimPid(t)
	// A process that was added ends after those who asked for it have gone.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = n.ExecSync(context.Background(), &cri.ExecSyncRequest{ContainerId: container, Cmd: []string{"/bin/busybox", "sleep", "3"}, Timeout: 60})
	}()
	for until := time.Now().Add(20 * time.Second); !slices.Contains(children(t, shim), "/bin/busybox sleep 3"); <-time.After(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the command does not start")
		}
	}
	n.stop()
	<-ended
	c := n.config.withDefaultsForTest(t)
	n.otherVersion(t)
	was, err := os.ReadFile(filepath.Join(c.State, shimProgramName))
	if err != nil {
		t.Fatal(err)
	}
	n.start(t)
	if got := n.exec(t, container, "/bin/busybox", "echo", "there"); got != "there" {
		t.Errorf("exec says %q", got)
	}
	if now := n.shimPid(t); now != shim {
		t.Errorf("the shim is process %d, was %d", now, shim)
	}
	for _, id := range []string{container, terminal} {
		goesOn(t, n.await(t, id, cri.ContainerState_CONTAINER_RUNNING).LogPath)
	}
	if is, err := os.ReadFile(filepath.Join(c.State, shimProgramName)); err != nil || string(is) == string(was) {
		t.Errorf("the shim is still the former program: %s, %v", is, err)
	}
	for _, id := range []string{container, terminal} {
		if _, err := n.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: id, Timeout: 10}); err != nil {
			t.Fatal(err)
		}
		if s := n.await(t, id, cri.ContainerState_CONTAINER_EXITED); s.ExitCode != 7 {
			t.Errorf("exit code %d, want 7", s.ExitCode)
		}
	}
	for until := time.Now().Add(20 * time.Second); slices.Contains(children(t, shim), ""); <-time.After(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("the shim does not wait for its children: %q", children(t, shim))
		}
	}
	for _, s := range []string{sandbox, other} {
		if err := n.remove(t.Context(), s); err != nil {
			t.Error(err)
		}
	}
	n.nothingLeft(t)
}

// otherVersion puts the same program into another file, which is another version.
func (n *node) otherVersion(t *testing.T) {
	t.Helper()
	path := filepath.Join(n.config.withDefaultsForTest(t).Programs, "knarr-shim")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+"-other", b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+"-other", path); err != nil {
		t.Fatal(err)
	}
}

// TestShimReplacedAmidStarts: commands that a container stops on their way in do not outlive
// the shim's version: neither where their callers go with the runtime, nor where a caller is
// still there, or the version before gave none up, so that they are cut off.
func TestShimReplacedAmidStarts(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	sandbox, hostile := n.shell(t, "stops", fmt.Sprintf(stopsEntering, ":"))
	shim := n.shimPid(t)
	halfway := func() (found []string) {
		for _, line := range children(t, shim) {
			if strings.HasSuffix(line, " init") {
				found = append(found, line)
			}
		}
		return found
	}
	process := &anypb.Any{Value: encoded(t, specs.Process{Args: []string{"/bin/busybox", "true"}, Cwd: "/"})}
	for name, start := range map[string]func() error{
		"of the runtime": func() error {
			_, err := n.ExecSync(context.Background(), &cri.ExecSyncRequest{ContainerId: hostile, Cmd: []string{"/bin/busybox", "true"}, Timeout: 60})
			return err
		},
		"of another caller": func() error {
			conn, err := net.Dial("unix", filepath.Join(n.config.State, shimSocketName))
			if err != nil {
				return err
			}
			defer conn.Close()
			ctx, id, other := namespaces.WithNamespace(t.Context(), imageNamespace), rand.Text(), api.NewTTRPCTaskClient(ttrpc.NewClient(conn))
			if _, err := other.Exec(ctx, &api.ExecProcessRequest{ID: hostile, ExecID: id, Spec: process}); err != nil {
				return err
			}
			_, err = other.Start(ctx, &api.StartRequest{ID: hostile, ExecID: id})
			return err
		},
	} {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for err := error(nil); err == nil; err = start() { // one that is too quick is not stopped
				}
			})
		}
		for until := time.Now().Add(20 * time.Second); len(halfway()) < 4; <-time.After(5 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("%s: no command is stopped: %q", name, halfway())
			}
		}
		n.stop()
		n.otherVersion(t)
		n.start(t)
		wg.Wait()
		for until := time.Now().Add(30 * time.Second); len(halfway()) > 0; <-time.After(5 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("%s: left on their way into a container: %q", name, halfway())
			}
		}
		if now := n.shimPid(t); now != shim {
			t.Fatalf("the shim is process %d, was %d", now, shim)
		}
		n.await(t, hostile, cri.ContainerState_CONTAINER_RUNNING)
	}
	if err := n.remove(t.Context(), sandbox); err != nil {
		t.Error(err)
	}
	n.nothingLeft(t)
}

// TestShimLimits: what a container may use can be changed, and the kernel's
// killing it for want of memory is told.
func TestShimLimits(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	ctx := t.Context()
	sandbox, container := n.shell(t, "big", `while [ ! -e /go ]; do /bin/busybox sleep 0.02; done; x=1234567890123456; while :; do x=$x$x; done`)
	limit := func() string {
		for _, g := range []string{"/sys/fs/cgroup/memory" + n.config.CgroupParent + "/big/" + container + "/memory.limit_in_bytes", "/sys/fs/cgroup" + n.config.CgroupParent + "/big/" + container + "/memory.max"} {
			if b, err := os.ReadFile(g); err == nil {
				return strings.TrimSpace(string(b))
			}
		}
		return "no group"
	}
	if got := limit(); got != strconv.Itoa(64<<20) {
		t.Errorf("limit %s", got)
	}
	if _, err := n.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{
		ContainerId: container, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 32 << 20},
	}); err != nil {
		t.Fatal(err)
	}
	if got := limit(); got != strconv.Itoa(32<<20) {
		t.Errorf("limit %s after the change", got)
	}
	stats, err := n.ContainerStats(ctx, &cri.ContainerStatsRequest{ContainerId: container})
	if err != nil {
		t.Fatal(err)
	}
	if stats.Stats.GetMemory().GetWorkingSetBytes().GetValue() == 0 || stats.Stats.GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 {
		t.Errorf("measured %v", stats.Stats)
	}
	n.exec(t, container, "/bin/busybox", "touch", "/go")
	s := n.await(t, container, cri.ContainerState_CONTAINER_EXITED)
	if s.Reason != "OOMKilled" || s.ExitCode != 137 {
		t.Errorf("ended with %s, code %d", s.Reason, s.ExitCode)
	}
	if err := n.remove(ctx, sandbox); err != nil {
		t.Error(err)
	}
	n.nothingLeft(t)
}

// TestShimRefuses: a container that cannot start leaves nothing, and says why in
// runc's words.
func TestShimRefuses(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	n.podConfig = func(c *cri.ContainerConfig) { c.Command = []string{"/nothing"} }
	_, _, err := n.pod(t.Context(), "none")
	const want = `OCI runtime create failed: runc create failed: unable to start container process: error during container init: exec: "/nothing": stat /nothing: no such file or directory`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v\nwant %s", err, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	list, err := n.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		if err := n.remove(ctx, s.Id); err != nil {
			t.Error(err)
		}
	}
	n.nothingLeft(t)
}
