package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Addresses of the control plane and of the node in the network of their own: an agent is
// refused that has its server's.
const (
	serverAddress = "10.167.0.1"
	agentAddress  = "10.167.0.2"
	nodeName      = "node"
)

// insideNode holds, within the namespaces, the paths of what was built outside of them.
const insideNode = "KNARR_NODE_SUITE"

// runNode runs the suite for a single node: all of it in namespaces of its own, since the
// suite takes ports, directories and control groups for granted.
func runNode(ctx context.Context, o options) error {
	if inside := os.Getenv(insideNode); inside != "" {
		return runNodeInside(ctx, o, strings.Fields(inside))
	}
	if os.Geteuid() != 0 {
		return errors.New("this makes namespaces and containers: run it as root")
	}
	if err := makeOut(o.out, o.given); err != nil {
		return err
	}
	built, err := build(ctx, "./upstream", "e2e_node.test", "ginkgo")
	if err != nil {
		return err
	}
	archives, err := build(ctx, "./images", "conformance", "beyond")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	release, err := holdKubeletDir()
	if err != nil {
		return err
	}
	defer release()
	// The shell reaps what nobody else does.
	args := append([]string{"--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", `"$@"; exit "$?"`, "sh", self}, os.Args[1:]...)
	cmd := exec.CommandContext(ctx, "unshare", args...)
	cmd.Env = append(os.Environ(), insideNode+"="+strings.Join(append(built, archives...), " "))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Minute
	return cmd.Run()
}

// kubeletDir is where the suite looks for the kubelet's files.
const kubeletDir = "/var/lib/kubelet"

// holdKubeletDir makes it, and a file in it while the suite runs: the node's directory is
// mounted on it out of sight from here, and the kernel would unmount that if somebody took
// the directory away, as a node of knarr dev or another run does at its end. Release takes
// the file away, and the directory if nobody else has something there.
func holdKubeletDir() (release func(), err error) {
	if err := os.MkdirAll(kubeletDir, 0o750); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(kubeletDir, ".e2e-node-")
	if err != nil {
		return nil, err
	}
	return func() {
		_ = os.Remove(f.Name())
		if dev, err := filepath.Glob("/run/knarr-dev-*"); err == nil && len(dev) == 0 {
			_ = os.Remove(kubeletDir) // unless somebody has put something into it
		}
	}, f.Close()
}

// A nodeCluster is a control plane and an agent that is its only node.
type nodeCluster struct {
	knarr, dir, out string
	server          cluster // and its directory
	agent           cluster
	work            string // where the suite runs, and writes the node's settings
	unit            unit
}

// dropIns is where the suite puts changes of the node's settings.
func (c *nodeCluster) dropIns() string { return filepath.Join(c.work, "kubelet.conf.d") }

// nodeSettings are as the suite's own start of a kubelet would make them.
const nodeSettings = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
readOnlyPort: 10255
staticPodPath: %s
serializeImagePulls: false
failSwapOn: false
fileCheckFrequency: 10s
evictionPressureTransitionPeriod: 30s
evictionHard: {memory.available: 250Mi, nodefs.available: "10%%", nodefs.inodesFree: "5%%"}
evictionMinimumReclaim: {nodefs.available: "5%%", nodefs.inodesFree: "5%%"}
`

// systemSpec asks nothing of the machine: which options its kernel was built with is not
// to be seen on every one.
const systemSpec = "os: Linux\nkernelSpec: {versions: ['.*']}\n"

func runNodeInside(ctx context.Context, o options, built []string) (err error) {
	l := lists{}
	if l.passing, err = readList(o.list); err != nil {
		return err
	}
	if l.left, l.whole, err = readLeft(o.left); err != nil {
		return err
	}
	if l.without, err = readWithout(o.without); err != nil {
		return err
	}
	knarr, err := filepath.Abs("../../bin/knarr")
	if err != nil {
		return err
	}
	c := &nodeCluster{knarr: knarr, dir: o.dataDir, out: o.out, work: filepath.Join(o.out, "work")}
	c.server = cluster{knarr: knarr, nodes: 1, dataDir: filepath.Join(c.dir, "server"), out: o.out}
	c.agent = cluster{knarr: knarr, nodes: 1, dataDir: filepath.Join(c.dir, "agent"), out: o.out}
	defer func() {
		c.unit.stop()
		err = errors.Join(err, c.agent.down(), c.server.down(), os.RemoveAll(c.dir))
	}()
	if err := errors.Join(c.agent.down(), c.server.down(), c.network(ctx)); err != nil {
		return err
	}
	if err := c.up(ctx); err != nil {
		return err
	}
	fmt.Println("loading the suite's images")
	for _, archive := range built[2:] {
		if err := c.agent.load(ctx, archive); err != nil {
			return err
		}
	}
	stop, err := serveRegistry(ctx, &c.agent, built[2:])
	if err != nil {
		return err
	}
	defer stop()
	s, err := c.suite(ctx, o, built[0], built[1])
	if err != nil {
		return err
	}
	results, err := s.choose(ctx, o, l)
	if err != nil && len(results) == 0 {
		return err
	}
	return errors.Join(err, conclude(os.Stdout, o, l, results))
}

// network makes this namespace look like a host's, and puts the node's files where the
// suite looks for them.
func (c *nodeCluster) network(ctx context.Context) error {
	files := filepath.Join(c.dir, "agent", "kubelet")
	if err := errors.Join(os.MkdirAll(files, 0o755), os.MkdirAll(filepath.Join(c.work, "static-pods"), 0o755), os.MkdirAll(c.dropIns(), 0o755)); err != nil {
		return err
	}
	script := strings.Join([]string{
		"mount --make-rshared /", "mount --bind " + files + " " + kubeletDir,
		"ip link set lo up", "ip link add uplink type bridge", "ip link set uplink up",
		"ip addr add " + serverAddress + "/24 dev uplink", "ip addr add " + agentAddress + "/24 dev uplink",
		"ip route add default via 10.167.0.254",
	}, " && ")
	if out, err := exec.CommandContext(ctx, "sh", "-c", script).CombinedOutput(); err != nil {
		return fmt.Errorf("set up the network: %w: %s", err, out)
	}
	return nil
}

// up starts control plane and node, and waits until that is Ready.
func (c *nodeCluster) up(ctx context.Context) error {
	fmt.Println("starting a control plane and a node")
	log, err := os.Create(filepath.Join(c.out, "server.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	// Nobody taints the node, as where upstream runs the suite: it looks for nodes without
	// taints while they are under pressure.
	server := exec.Command(c.knarr, "server", "--data-dir", c.server.dataDir, "--disable-agent", "--config", os.DevNull, "--node-ip", serverAddress,
		"--kube-apiserver-arg", "disable-admission-plugins=TaintNodesByCondition",
		"--kube-controller-manager-arg", "controllers=*,-node-lifecycle-controller")
	server.Stdout, server.Stderr = log, log
	server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := server.Start(); err != nil {
		return err
	}
	c.server.server, c.server.ended = server, make(chan error, 1)
	go func() { c.server.ended <- server.Wait() }()
	settings := filepath.Join(c.work, "kubelet-config")
	if err := os.WriteFile(settings, fmt.Appendf(nil, nodeSettings, filepath.Join(c.work, "static-pods")), 0o644); err != nil {
		return err
	}
	nodeLog, err := os.Create(filepath.Join(c.out, "node.log"))
	if err != nil {
		return err
	}
	c.unit.command = func() *exec.Cmd {
		cmd := exec.Command(c.knarr, "agent", "--server", "https://127.0.0.1:6443", "--token-file", filepath.Join(c.server.dataDir, "node-token"),
			"--data-dir", c.agent.dataDir, "--config", os.DevNull, "--node-name", nodeName, "--node-ip", agentAddress, "--kubelet-config", settings, "--kubelet-arg", "config-dir="+c.dropIns(),
			"--container-runtime-handler", "test-handler=runc") // as upstream sets up its machines
		cmd.Stdout, cmd.Stderr = nodeLog, nodeLog
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return cmd
	}
	if err := c.await(ctx, "/readyz", "get", "--raw", "/readyz"); err != nil {
		return err
	}
	if err := c.unit.start(); err != nil {
		return err
	}
	return c.await(ctx, "the node", "wait", "--for=condition=Ready", "node/"+nodeName, "--timeout=30s")
}

// upTime is how long control plane and node may take to be ready, each; in a guest without
// KVM they take minutes.
const upTime = 6 * time.Minute

// await asks kubectl until it succeeds.
func (c *nodeCluster) await(ctx context.Context, what string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, upTime)
	defer cancel()
	for {
		_, err := c.kubectl(ctx, args...)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, err)
		}
	}
}

// kubectl gives what kubectl prints.
func (c *nodeCluster) kubectl(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, c.knarr, append([]string{"kubectl", "--kubeconfig", c.server.kubeconfig()}, args...)...)
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, exit.Stderr)
	}
	return out, err
}

// suite is the one for nodes, with what it wants to know.
func (c *nodeCluster) suite(ctx context.Context, o options, e2e, ginkgo string) (*suite, error) {
	for _, args := range [][]string{
		{"create", "serviceaccount", "e2e", "-n", "kube-system"},
		{"create", "clusterrolebinding", "e2e", "--clusterrole", "cluster-admin", "--serviceaccount", "kube-system:e2e"},
	} {
		if _, err := c.kubectl(ctx, args...); err != nil {
			return nil, err
		}
	}
	token, err := c.kubectl(ctx, "create", "token", "e2e", "-n", "kube-system", "--duration", "24h")
	if err != nil {
		return nil, err
	}
	configz, err := c.kubectl(ctx, "get", "--raw", "/api/v1/nodes/"+nodeName+"/proxy/configz")
	if err != nil {
		return nil, err
	}
	var node struct {
		KubeletConfig struct{ CgroupRoot string }
	}
	if err := json.Unmarshal(configz, &node); err != nil {
		return nil, fmt.Errorf("read /configz: %w", err)
	}
	group := path.Dir(node.KubeletConfig.CgroupRoot)
	spec := filepath.Join(c.work, "system-spec.yaml")
	if err := os.WriteFile(spec, []byte(systemSpec), 0o644); err != nil {
		return nil, err
	}
	// The suite runs where its program is.
	link := filepath.Join(c.work, filepath.Base(e2e))
	if err := place(e2e, link); err != nil {
		return nil, err
	}
	if err := c.tools(); err != nil {
		return nil, err
	}
	flags := []string{"--start-services=false", "--stop-services=false", "--prepull-images=false", "--system-spec-file=" + spec,
		"--host=https://127.0.0.1:6443", "--bearer-token=" + strings.TrimSpace(string(token)), "--node-name=" + nodeName, "--dns-domain=cluster.local",
		"--container-runtime-endpoint=unix://" + filepath.Join("/run", group, "containerd", "containerd.sock")}
	return &suite{e2e: link, ginkgo: ginkgo, out: o.out, procs: o.procs, flags: flags, within: withinGroup(group)}, nil
}

// place makes a file be there under another name too, as a copy where that is on another
// file system.
func place(file, name string) error {
	err := os.Link(file, name)
	if !errors.Is(err, syscall.EXDEV) {
		return err
	}
	from, err := os.Open(file)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// withinGroup is the command within which the suite sees the node's control groups where a
// kubelet has them that has a machine to itself: at the root.
func withinGroup(group string) []string {
	const script = `mount --make-rprivate / && for g in /sys/fs/cgroup"$0" /sys/fs/cgroup/*"$0"; do
  if [ -d "$g" ]; then mount --bind "$g" "${g%"$0"}" || exit; fi
done && exec "$@"`
	return []string{"unshare", "--mount", "sh", "-c", script, group}
}

// tools are what the suite restarts a kubelet with.
func (c *nodeCluster) tools() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir := filepath.Join(c.work, "tools")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"systemctl", "sudo"} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	socket := filepath.Join(c.work, "unit")
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go c.unit.serve(l) // as long as this process
	return errors.Join(os.Setenv(unitSocket, socket), os.Setenv("PATH", dir+":"+os.Getenv("PATH")))
}
