package containerruntime

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/need"
	"knarr/internal/programs"
)

// isolated runs the calling test in network and mount namespaces of its own
// and reports whether this is the outer process, which has nothing left to do.
func isolated(t testing.TB) (outer bool) {
	t.Helper()
	need.Root(t)
	if _, err := programs.Read(programs.Shim); err != nil {
		need.Skip(t, "needs the embedded programs: make build")
	}
	if os.Getenv("KNARR_ISOLATED") == t.Name() {
		return false
	}
	// One that hangs says where, before the outer process is ended.
	args := []string{"-test.run", "^" + t.Name() + "$", "-test.v", "-test.timeout", "3m"}
	if b, ok := t.(*testing.B); ok {
		args = []string{"-test.run", "^$", "-test.bench", "^" + strings.ReplaceAll(b.Name(), "/", "$/^") + "$", "-test.benchtime", "30x"}
		if strings.Contains(b.Name(), "/") { // many pods in each
			args[len(args)-1] = "2x"
		}
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "KNARR_ISOLATED="+t.Name())
	// Unshareflags for the mounts: that makes them private, too.
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   syscall.CLONE_NEWNET,
		Unshareflags: syscall.CLONE_NEWNS,
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	return true
}

// node is a runtime with the pod network, in directories of its own.
type node struct {
	config Config
	conn   *grpc.ClientConn
	stop   func()
	// podConfig changes the containers of pods to come.
	podConfig func(*cri.ContainerConfig)
	// users is the user namespace of pods to come; nil: the node's.
	users *cri.UserNamespace
	// handler is the runtime of pods to come; "": the default.
	handler string
	cri.RuntimeServiceClient
	cri.ImageServiceClient
}

func newNode(t testing.TB) *node { return newNodeWith(t, func(*Config) {}) }

// newNodeWith is one whose configuration is changed before it starts.
func newNodeWith(t testing.TB, change func(*Config)) *node {
	if os.Getenv("KNARR_ISOLATED") == "" {
		t.Fatal("its bridge would be the machine's, and stay: call isolated first")
	}
	// Short, for the sake of socket names.
	dir, err := os.MkdirTemp("", "kn")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{config: Config{
		Root: dir + "/root", State: dir + "/run", CNIConfDir: dir + "/net.d", CNIBinDir: dir + "/bin",
		CgroupParent: "/" + filepath.Base(dir),
	}}
	change(&n.config)
	n.addNetwork(t, dir)
	t.Cleanup(func() {
		n.stop()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := Purge(ctx, n.config); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob("/sys/fs/cgroup/*" + n.config.CgroupParent); len(left) > 0 {
			t.Errorf("cgroups are left: %v", left)
		}
		if mounts, _ := os.ReadFile("/proc/self/mounts"); strings.Contains(string(mounts), dir) {
			t.Errorf("mounts are left:\n%s", mounts)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	began := time.Now()
	n.start(t)
	t.Logf("the first start, with unpacking, took %v", time.Since(began))
	return n
}

// addNetwork gives the node the embedded plugin, which makes the bridge itself.
func (n *node) addNetwork(t testing.TB, dir string) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	if _, err := programs.Unpack(n.config.CNIBinDir, programs.CNI); err != nil {
		t.Fatal(err)
	}
	list := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "test-%s", "plugins": [{"type": %q, "bridge": "knarr0",
		"podCIDRs": ["10.99.0.0/24"], "table": "knarr-cni", "stateDir": %q, "capabilities": {"portMappings": true}}]}`,
		filepath.Base(dir), programs.CNI, dir+"/cni")
	if err := os.MkdirAll(n.config.CNIConfDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.config.CNIConfDir+"/10-test.conflist", []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// libcni's own notes on pods that ended without its knowing.
		left, _ := filepath.Glob("/var/lib/cni/results/test-" + filepath.Base(dir) + "-*")
		for _, path := range left {
			os.Remove(path)
		}
	})
}

func (n *node) start(t testing.TB) {
	t.Helper()
	r, err := New(n.config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	n.stop = func() {
		if n.conn != nil {
			n.conn.Close()
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		done <- nil
	}
	select {
	case <-r.Ready():
	case err := <-done:
		done <- nil
		t.Fatalf("Run: %v", err)
	}
	if n.conn, err = r.Conn(ctx); err != nil {
		t.Fatal(err)
	}
	n.RuntimeServiceClient = cri.NewRuntimeServiceClient(n.conn)
	n.ImageServiceClient = cri.NewImageServiceClient(n.conn)
}

// pod starts a pod with one container and gives their ids.
func (n *node) pod(ctx context.Context, name string) (sandbox, container string, err error) {
	return n.podOf(ctx, name, DefaultSandboxImage)
}

func (n *node) podOf(ctx context.Context, name, image string) (sandbox, container string, err error) {
	parent := n.config.CgroupParent + "/" + name
	config := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Uid: name, Namespace: "test"},
		LogDirectory: filepath.Join(n.config.State, "logs", name),
		DnsConfig:    &cri.DNSConfig{},
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: parent, SecurityContext: &cri.LinuxSandboxSecurityContext{
			Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}, // as of every pod
			NamespaceOptions: &cri.NamespaceOption{UsernsOptions: n.users},
		}},
	}
	phase := phases{time.Now()}
	sb, err := n.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: n.handler})
	if err != nil {
		return "", "", fmt.Errorf("sandbox: %w", err)
	}
	phase.end("sandbox")
	main := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main"},
		Image:    &cri.ImageSpec{Image: image},
		LogPath:  "main.log",
		Linux:    &cri.LinuxContainerConfig{Resources: &cri.LinuxContainerResources{CpuShares: 100}, SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: &cri.NamespaceOption{UsernsOptions: n.users}}},
	}
	if n.podConfig != nil {
		n.podConfig(main)
	}
	c, err := n.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sb.PodSandboxId, SandboxConfig: config, Config: main})
	if err != nil {
		return "", "", fmt.Errorf("create: %w", err)
	}
	phase.end("create")
	_, err = n.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ContainerId})
	phase.end("start")
	return sb.PodSandboxId, c.ContainerId, err
}

func (n *node) remove(ctx context.Context, sandbox string) error {
	if _, err := n.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		return err
	}
	_, err := n.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sandbox})
	return err
}

func TestContainersOutliveTheRuntime(t *testing.T) {
	if isolated(t) {
		return
	}
	ctx := t.Context()
	n := newNode(t)
	status, err := n.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range status.Status.Conditions {
		if !c.Status {
			t.Errorf("condition %s: %s %s", c.Type, c.Reason, c.Message)
		}
	}
	sandbox, container, err := n.pod(ctx, "one")
	if err != nil {
		t.Fatal(err)
	}
	pod, err := n.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: sandbox})
	if err != nil {
		t.Fatal(err)
	}
	if ip := pod.Status.Network.Ip; !strings.HasPrefix(ip, "10.99.0.") {
		t.Errorf("pod address %q is not from the node's range", ip)
	}

	n.stop()
	known := n.config.networkNamespaces()
	stray := filepath.Join(filepath.Dir(known[0]), "cni-stray") // as one that was killed here leaves it
	if err := os.WriteFile(stray, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("/proc/self/ns/net", stray, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	n.start(t)
	if now := n.config.networkNamespaces(); !slices.Equal(now, known) {
		t.Errorf("after a restart the network namespaces are %v, not %v", now, known)
	}
	after, err := n.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: container})
	if err != nil {
		t.Fatal(err)
	}
	if after.Status.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("after a restart the container is %s", after.Status.State)
	}
	if err := n.remove(ctx, sandbox); err != nil {
		t.Fatal(err)
	}
	// One is left running, for Purge to find.
	if _, _, err := n.pod(ctx, "two"); err != nil {
		t.Fatal(err)
	}
}

func TestImages(t *testing.T) {
	if isolated(t) {
		return
	}
	ctx := t.Context()
	n := newNode(t)
	images, err := OpenImages(n.config.withDefaultsForTest(t).Socket(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer images.Close()
	archive, _, err := pauseArchive("example.com/app:1", []byte("program"))
	if err != nil {
		t.Fatal(err)
	}
	changes, err := ImageChanges(ctx, n.conn)
	if err != nil {
		t.Fatal(err)
	}
	<-changes // what came before
	names, err := images.LoadArchive(ctx, bytes.NewReader(archive), nil)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-changes:
	case <-time.After(10 * time.Second):
		t.Error("no event of the image that was loaded")
	}
	if want := []string{"example.com/app:1"}; !slices.Equal(names, want) {
		t.Errorf("loaded %v, want %v", names, want)
	}
	listed := func() (names []string) {
		t.Helper()
		all, err := images.ListImages(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range all {
			names = append(names, i.Names...)
			if !i.Pinned {
				t.Errorf("%v is not pinned", i.Names)
			}
			if i.Size == 0 {
				t.Errorf("%v has no size", i.Names)
			}
		}
		return names
	}
	if got, want := listed(), []string{"example.com/app:1", DefaultSandboxImage}; !slices.Equal(got, want) {
		t.Errorf("images %v, want %v", got, want)
	}
	if err := images.RemoveImage(ctx, "example.com/app:1"); err != nil {
		t.Fatal(err)
	}
	if got, want := listed(), []string{DefaultSandboxImage}; !slices.Equal(got, want) {
		t.Errorf("images after removal %v, want %v", got, want)
	}
	if err := images.RemoveImage(ctx, "example.com/app:1"); err == nil {
		t.Error("removing it twice succeeds")
	}
	if _, err := images.LoadArchive(ctx, strings.NewReader("not an archive"), nil); err == nil {
		t.Error("garbage loads")
	}
}

// TestPinnedByDirectory: the CRI shows such an image as pinned until it is let go, but for
// one that a user has loaded.
func TestPinnedByDirectory(t *testing.T) {
	if isolated(t) {
		return
	}
	ctx := t.Context()
	n := newNode(t)
	images, err := OpenImages(n.config.withDefaultsForTest(t).Socket(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer images.Close()
	const name = "example.com/app:1"
	archive, _, err := pauseArchive(name, []byte("program"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "app.tar")
	if err := os.WriteFile(file, archive, 0o600); err != nil {
		t.Fatal(err)
	}
	shown := func(pinned bool) {
		t.Helper()
		for began := time.Now(); ; {
			res, err := n.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
			if err != nil {
				t.Fatal(err)
			}
			if res.Image != nil && res.Image.Pinned == pinned {
				return
			}
			if time.Since(began) > 10*time.Second {
				t.Fatalf("pinned %v is not shown: %v", pinned, res.Image)
			}
			runtime.Gosched()
		}
	}
	if names, err := images.LoadPinned(ctx, file); err != nil || !slices.Equal(names, []string{name}) {
		t.Fatal(names, err)
	}
	shown(true)
	if err := images.Unpin(ctx, name); err != nil {
		t.Fatal(err)
	}
	shown(false)
	if full, err := images.PullPinned(ctx, name); err != nil || full != name { // without its registry
		t.Fatal(full, err)
	}
	shown(true)
	if err := images.Unpin(ctx, name); err != nil {
		t.Fatal(err)
	}
	shown(false)
	if _, err := images.LoadFile(ctx, file, nil); err != nil {
		t.Fatal(err)
	}
	if err := images.Unpin(ctx, name); err != nil {
		t.Fatal(err)
	}
	shown(true)
	if there, err := images.Has(ctx, "example.com/none:1"); err != nil || there {
		t.Error(there, err)
	}
	if _, err := images.PullPinned(ctx, "!"); err == nil {
		t.Error("no name is a name")
	}
}

func TestLoadedImageRunsAndLogs(t *testing.T) {
	if isolated(t) {
		return
	}
	ctx := t.Context()
	n := newNode(t)
	// Any static program that says something and ends will do.
	program, err := programs.Read(programs.CNI)
	if err != nil {
		t.Fatal(err)
	}
	archive, _, err := pauseArchive("example.com/says:1", program)
	if err != nil {
		t.Fatal(err)
	}
	images, err := OpenImages(n.config.withDefaultsForTest(t).Socket(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer images.Close()
	if _, err := images.LoadArchive(ctx, bytes.NewReader(archive), nil); err != nil {
		t.Fatal(err)
	}
	conn := cri.NewImageServiceClient(n.conn)
	if err := waitForImage(ctx, conn, "example.com/says:1"); err != nil {
		t.Fatal(err)
	}
	events, err := n.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, container, err := n.podOf(ctx, "says", "example.com/says:1")
	if err != nil {
		t.Fatal(err)
	}
	for {
		e, err := events.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e.ContainerId == container && e.ContainerEventType == cri.ContainerEventType_CONTAINER_STOPPED_EVENT {
			break
		}
	}
	status, err := n.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: container})
	if err != nil {
		t.Fatal(err)
	}
	if status.Status.ExitCode != 1 {
		t.Errorf("exit code %d, want 1", status.Status.ExitCode)
	}
	log, err := os.ReadFile(status.Status.LogPath)
	if err != nil || !strings.Contains(string(log), ` stdout F {"cniVersion"`) {
		t.Errorf("log %q, %v", log, err)
	}
}

func (c Config) withDefaultsForTest(t testing.TB) Config {
	t.Helper()
	c, err := c.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func BenchmarkStart(b *testing.B) {
	if isolated(b) {
		return
	}
	n := newNode(b)
	for b.Loop() {
		b.StopTimer()
		n.stop()
		b.StartTimer()
		n.start(b)
	}
	b.StopTimer()
	if status, err := os.ReadFile("/proc/self/status"); err == nil {
		for line := range strings.Lines(string(status)) {
			if strings.HasPrefix(line, "Rss") || strings.HasPrefix(line, "VmRSS") {
				b.Log(strings.TrimSpace(line))
			}
		}
	}
}

// TestLostProcess: a process that nobody knows of does not keep its cgroup.
func TestLostProcess(t *testing.T) {
	need.Root(t)
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	group := "/knarr-lost-" + filepath.Base(t.TempDir())
	for _, top := range hierarchies("/sys/fs/cgroup") {
		dir := filepath.Join(top, group, "deep")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			continue // not a hierarchy
		}
		_ = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0)
	}
	if err := removeCgroup(t.Context(), "/sys/fs/cgroup", group); err != nil {
		_ = cmd.Process.Kill()
		t.Error(err)
	}
	<-ended
}

// TestHostWithoutHosts: a machine that has no /etc/hosts, as small images have
// none, runs pods.
func TestHostWithoutHosts(t *testing.T) {
	if isolated(t) {
		return
	}
	etc := t.TempDir()
	for _, f := range []string{"resolv.conf", "passwd", "group", "hostname"} {
		b, err := os.ReadFile("/etc/" + f)
		if err != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(etc, f), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mount(etc, "/etc", "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount("/etc", syscall.MNT_DETACH) })
	n := newNode(t)
	sandbox, _, err := n.pod(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.remove(t.Context(), sandbox); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile("/etc/hosts"); err != nil || !strings.Contains(string(b), "127.0.0.1\tlocalhost\n") {
		t.Errorf("/etc/hosts: %q, %v", b, err)
	}
}

// TestCgroupDriver: the runtime says how it has control groups made, as it is set.
func TestCgroupDriver(t *testing.T) {
	if isolated(t) {
		return
	}
	for set, want := range map[bool]cri.CgroupDriver{false: cri.CgroupDriver_CGROUPFS, true: cri.CgroupDriver_SYSTEMD} {
		n := newNodeWith(t, func(c *Config) { c.SystemdCgroup = set })
		answer, err := n.RuntimeConfig(t.Context(), &cri.RuntimeConfigRequest{})
		if err != nil || answer.GetLinux().GetCgroupDriver() != want {
			t.Errorf("with %v: %v, %v, want %v", set, answer, err, want)
		}
		n.stop()
	}
}
