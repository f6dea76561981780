package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"knarr/internal/need"
)

// TestVM boots a guest and gives it the cases, one after the other.
func TestVM(t *testing.T) {
	of := wantedCases(t)
	tests := slices.DeleteFunc(slices.Clone(kernelTests), func(p kernelTest) bool { return !of.MatchString(p.folder) })
	g := start(t, plain, tests, func(*initramfs) error { return nil })

	t.Run("check", func(t *testing.T) { testCheck(t, g) })
	t.Run("machine", func(t *testing.T) { testMachine(t, g) })
	for _, c := range []struct {
		name string
		run  func(*testing.T, *guest)
	}{{"smoke", testSmoke}, {"nodes", testNodes}} {
		if of.MatchString(c.name) {
			t.Run(c.name, func(t *testing.T) { c.run(t, g) })
		}
	}
	if specFiles["given/e2e.test"] != "" {
		t.Run("specs", func(t *testing.T) { testSpecs(t, g) })
	}
	for _, p := range tests {
		t.Run(p.folder, func(t *testing.T) { p.test(t, g) })
		switch p.folder {
		case "node/kubelet":
			t.Run("project quotas", func(t *testing.T) { kernelTest{folder: p.folder, run: "TestProjectQuotas", disk: true}.test(t, g) })
		case "node/kubelet/volume":
			t.Run("XFS", func(t *testing.T) { testXFS(t, g) })
		}
	}
}

// wantedCases are those that RUN of the Makefile matches.
func wantedCases(t *testing.T) *regexp.Regexp {
	t.Helper()
	of, err := regexp.Compile(os.Getenv("KNARR_VM"))
	if err != nil {
		t.Fatal(err)
	}
	return of
}

// start boots a guest for the rest of a test, with tests of packages in it and what else add
// puts into it.
func start(t *testing.T, m machine, tests []kernelTest, add func(*initramfs) error) *guest {
	t.Helper()
	k, err := findKernel("../../build/vm")
	if err != nil {
		need.Skip(t, "needs Debian's kernel: make vm: ", err)
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		need.Skip(t, "needs QEMU: make vm: ", err)
	}
	dir := t.TempDir()
	initramfs := build(t, dir, k, tests, add)
	disk, err := makeDisk(t.Context(), dir, m.disk)
	if err != nil {
		need.Skip(t, "needs mke2fs: apt-get install e2fsprogs: ", err)
	}
	ctx, cancel := t.Context(), func() {}
	if end, ok := t.Deadline(); ok { // Go ends this process then, and nobody QEMU
		ctx, cancel = context.WithDeadline(ctx, end.Add(-slack))
	}
	t.Cleanup(cancel)
	began := time.Now()
	g, err := boot(ctx, m, k.image, initramfs, disk, dir)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the guest's console:\n%s", g.consoleEnd())
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.close(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("booted in %v", time.Since(began).Round(time.Second))
	os.Remove(initramfs)
	return g
}

// build makes the initramfs: busybox, the kernel's modules, and in /given what is
// tested.
func build(t *testing.T, dir string, k kernel, kernelTests []kernelTest, add func(*initramfs) error) string {
	t.Helper()
	tests := filepath.Join(dir, "tests")
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	var packages []string
	for _, p := range kernelTests {
		packages = append(packages, "../../"+p.folder)
	}
	if len(packages) == 0 {
		// RUN names none.
	} else if err := compileTests(ctx, tests, packages); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(dir, "hello.tar")
	if out, err := exec.CommandContext(ctx, "../tour/image", image).CombinedOutput(); err != nil {
		need.Skip(t, "needs a static busybox: apt-get install busybox-static: ", err, string(out))
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(dir, "initramfs")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	a := newInitramfs(f)
	a.copyAll(".", "testdata/root")
	a.copy("bin/busybox", busybox)
	for _, program := range []string{"mke2fs", "e2fsck", "resize2fs"} {
		if err := a.program("sbin/"+program, "/sbin/"+program); err != nil {
			t.Fatal(err)
		}
	}
	a.link("sbin/mkfs.ext4", "mke2fs")
	// CRIU has tar pack what is in memory, with options that busybox's has not.
	if err := errors.Join(a.program("sbin/criu", "/usr/sbin/criu"), a.program("bin/tar", "/bin/tar")); err != nil {
		need.Skip(t, "needs CRIU: apt-get install criu: ", err)
	}
	if err := add(a); err != nil {
		t.Fatal(err)
	}
	xfs, err := filepath.Abs("../../build/vm-xfs")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(xfs); err != nil {
		need.Skip(t, "needs programs of XFS: make vm: ", err)
	}
	if err := errors.Join(a.programOf(xfs, "sbin/mkfs.xfs", xfs+"/sbin/mkfs.xfs"), a.programOf(xfs, "sbin/xfs_quota", xfs+"/usr/sbin/xfs_quota")); err != nil {
		t.Fatal(err)
	}
	if err := a.addIptables(); err != nil {
		need.Skip(t, "needs iptables: apt-get install iptables: ", err)
	}
	a.copy("given/knarr", "../../bin/knarr")
	a.copy("given/hello.tar", image)
	a.copy("given/web.yaml", "testdata/web.yaml")
	a.copy("given/policy.yaml", "testdata/policy.yaml")
	a.copy("given/nodes.yaml", "testdata/nodes.yaml")
	for name, file := range specFiles {
		if file != "" {
			a.copy(name, file)
		}
	}
	for _, p := range kernelTests {
		if p.folder == "node/containerruntime" {
			// Not where containerd looks whether there is AppArmor: a test that wants it puts it there.
			if err := a.program("given/apparmor_parser", "../../build/vm-apparmor/sbin/apparmor_parser"); err != nil {
				need.Skip(t, "needs AppArmor's programs: make vm: ", err)
			}
		}
		name := filepath.Base(p.folder)
		a.copy("given/"+name+"/test", filepath.Join(tests, name+".test"))
		if data := filepath.Join("../..", p.folder, "testdata"); isFolder(data) {
			a.copyAll("given/"+name+"/testdata", data)
		}
	}
	if err := a.addModules(k); err != nil {
		t.Fatal(err)
	}
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// must wants a command of the guest to end with 0, and gives what it printed.
func must(t *testing.T, g *guest, limit time.Duration, command string) string {
	t.Helper()
	out, code, err := g.run(limit, command)
	if err != nil || code != 0 {
		t.Fatalf("%s\nexit code %d, %v\n%s", command, code, err, out)
	}
	return out
}

// testCheck wants an answer from a kernel that cannot load its module of packet rules,
// as happens for a moment where much is loaded at once: such a kernel answers one message
// of a transaction and no other.
func testCheck(t *testing.T, g *guest) {
	const loads = "/proc/sys/kernel/modprobe" // the program that the kernel has modules loaded by
	out := must(t, g, 2*time.Minute, "modprobe nfnetlink && ! lsmod | grep nf_tables && was=$(cat "+loads+") && echo /bin/false >"+loads+"; /given/knarr check; test $? = 1; ended=$?; echo $was >"+loads+"; exit $ended")
	if n := strings.Count(out, "the kernel has no nf_tables: modprobe nf_tables says why"); n != 3 || strings.Contains(out, "no answer") {
		t.Errorf("three lines of knarr check should name nf_tables:\n%s", out)
	}
}

// testMachine wants of the guest what it is there for.
func testMachine(t *testing.T, g *guest) {
	t.Logf("kernel %s", must(t, g, time.Minute, "uname -r"))
	for what, command := range map[string]string{
		"control groups of version 2 alone": `test "$(grep -c cgroup /proc/mounts)" = 1 && grep -q "memory" /sys/fs/cgroup/cgroup.controllers`,
		"CAP_SYS_RESOURCE":                  "echo -500 >/proc/self/oom_score_adj",
		"PSI":                               "cat /proc/pressure/memory",
		"IPVS":                              "modprobe ip_vs && test -e /proc/net/ip_vs",
		"SCTP":                              "modprobe sctp && test -e /proc/net/sctp",
		"WireGuard":                         "ip link add name wg0 type wireguard && ip link delete wg0",
		"netem":                             "modprobe sch_netem",
		"AppArmor":                          "grep Y /sys/module/apparmor/parameters/enabled",
		"no network but its own":            `test "$(ls /sys/class/net)" = "` + "eth0\nlo" + `"`,
		"file systems with project quotas":  "modprobe ext4 && modprobe quota_v2 && modprobe xfs && grep ext4 /proc/filesystems",
	} {
		if out, code, err := g.run(time.Minute, command); err != nil || code != 0 {
			t.Errorf("no %s: %s\nexit code %d, %v\n%s", what, command, code, err, out)
		}
	}
}

const kubectl = "/given/knarr kubectl "

// askWeb has a pod ask a Service, which a policy may keep it from.
const askWeb = kubectl + "exec client -- busybox timeout 5 wget -qO- http://web"

// leftovers shows what knarr must take back. Settings that come with a module are there
// before.
const leftovers = "modprobe nf_conntrack; ip -o link; ip rule; ip -6 rule; awk '{print $1, $2, $3, $8}' /proc/net/route; awk '{print $1, $2, $5, $10}' /proc/net/ipv6_route; " +
	"grep -r '' /proc/sys/net/core /proc/sys/net/ipv4 /proc/sys/net/ipv6 /proc/sys/net/netfilter 2>/dev/null | grep -v -e _key: -e _count: | sort; mount; find /sys/fs/cgroup -type d; find /run /var /etc /tmp -not -name '*.log'; grep ' 0A ' /proc/net/tcp /proc/net/tcp6 | wc -l"

// testSmoke is a cluster's day in short form. Its steps build on each other.
func testSmoke(t *testing.T, g *guest) {
	// The kernel counts who uses the modules of packet rules: the rules do.
	const rules = "lsmod | grep -E '^nft_(masq|chain_nat) +[0-9]+ +[1-9]'"
	before := must(t, g, time.Minute, leftovers)
	for _, step := range []struct{ name, command, want string }{
		{"check", "/given/knarr check | tee /tmp/check.log; ! grep -v '^ok ' /tmp/check.log", "ok    AppArmor"},
		{"start", "setsid /given/knarr server >/tmp/knarr.log 2>&1 </dev/null & /given/knarr wait --timeout 180s", ""},
		{"node", kubectl + "get nodes -o wide", " Ready "},
		{"image", "/given/knarr images load /given/hello.tar", "loaded knarr.test/hello:1"},
		{"pods", kubectl + "apply -f /given/web.yaml && " + kubectl + "rollout status deployment/web --timeout=180s && " +
			kubectl + "wait --for=condition=Ready pod/client --timeout=120s", "condition met"},
		{"service", kubectl + "exec client -- wget -qO- http://web", "hello from web-"},
		{"full name", kubectl + "exec client -- wget -qO- http://web.default.svc.cluster.local", "hello from web-"},
		{"exec", kubectl + "exec client -- hostname", "client"},
		{"exit code", kubectl + "exec client -- sh -c 'exit 7'; test $? = 7", ""},
		{"logs", kubectl + "logs deployment/web", "serving"},
		{"policy denies", kubectl + "apply -f /given/policy.yaml && while " + askWeb + "; do sleep 1; done", ""},
		{"policy allows", kubectl + "label pod client app=friend && until " + askWeb + "; do sleep 1; done", "hello from web-"},
		{"no policy", kubectl + "delete networkpolicy web && " + kubectl + "label pod client app- && until " + askWeb + "; do sleep 1; done", "hello from web-"},
		{"limit", "cat $(find /sys/fs/cgroup -path '*knarr*' -name memory.max) | sort -u", "33554432"},
		{"packet rules", rules, "nft"},
		{"claim", kubectl + "describe pvc data", "its size is enforced by a project quota"},
		{"full", kubectl + "exec client -- busybox dd if=/dev/zero of=/data/full bs=1M count=16 2>&1; test $? != 0", "quota exceeded"},
		{"others", "dd if=/dev/zero of=/var/lib/others bs=1M count=16 2>&1 && rm /var/lib/others", "16+0 records out"},
		{"expand", kubectl + `patch pvc data -p '{"spec":{"resources":{"requests":{"storage":"16Mi"}}}}' && ` + kubectl +
			"wait --for=jsonpath='{.status.capacity.storage}'=16Mi pvc/data --timeout=60s && " + kubectl + "exec client -- busybox dd if=/dev/zero of=/data/more bs=1M count=7 2>&1", "7+0 records out"},
		{"delete", kubectl + "delete pod/client pvc/data && " + kubectl + "wait --for=delete pv --all --timeout=60s; ls /var/lib/knarr/storage", ""},
		{"nothing left", "test -z \"$(ls /var/lib/knarr/storage)\"", ""},
		{"down", "/given/knarr down --purge", ""},
		{"processes", "! ps -o args | grep -v grep | grep -e knarr -e containerd -e runc", ""},
		{"no packet rules", "! " + rules, ""},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			if out := must(t, g, 5*time.Minute, step.command); !strings.Contains(out, step.want) {
				t.Errorf("%s\nsays %q, want %q", step.command, out, step.want)
			}
		}) {
			out, _, err := g.run(time.Minute, kubectl+"get pods,events -A -o wide; tail -n 60 /tmp/knarr.log")
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if after := must(t, g, time.Minute, leftovers); after != before {
		t.Errorf("knarr down --purge leaves something; before:\n%s\nafter:\n%s", before, after)
	}
}

// A kernelTest is a package whose tests want the kernel.
type kernelTest struct {
	folder string
	run    string            // which tests; "" is all
	slow   string            // which not: their own time limit is too short for the guest
	known  map[string]string // tests that fail here, and why
	disk   bool              // temporary files are on the disk, which counts by project
}

// kernelTests are quick ones first.
var kernelTests = []kernelTest{
	{folder: "cluster", run: "TestCheck|TestReleaseLeavesNothing"},
	{folder: "node/kubelet", run: "TestHung|TestStorageLimits"},
	{folder: "internal/dirfd"},
	{folder: "internal/nft"},
	{folder: "node/kubelet/cgroup"},
	{folder: "node/kubelet/csi"},
	{folder: "node/kubelet/podfile", disk: true}, // positions in directories of tmpfs shift before 6.6
	{folder: "node/kubelet/volume", disk: true},
	{folder: "addons/localstorage/disk", disk: true},
	{folder: "addons/localstorage/driver", disk: true},
	{folder: "addons/loadbalancer/announcer"},
	{folder: "node/cni"},
	{folder: "node/cni/network"},
	{folder: "node/kubeproxy"},
	{folder: "node/kubeproxy/mode", run: "TestBehaviour"},
	{folder: "node/networkpolicy"},
	{folder: "node/containerruntime", slow: "TestExecOutputIsBounded", disk: true}, // tmpfs has no mounts with other ids before 6.3
}

// test runs the package in the guest.
func (p kernelTest) test(t *testing.T, g *guest) {
	p.testIn(t, g, map[bool]string{false: "/tmp", true: "/var/lib"}[p.disk])
}

// testXFS runs what is on ext4 elsewhere on XFS, which counts by project in another way.
func testXFS(t *testing.T, g *guest) {
	const dir = "/run/xfs"
	must(t, g, 2*time.Minute, "truncate -s 512M /var/lib/xfs && mkfs.xfs -q /var/lib/xfs && mkdir "+dir+" && modprobe loop && mount -t xfs -o loop,prjquota /var/lib/xfs "+dir)
	kernelTest{folder: "node/kubelet/volume", run: "Project"}.testIn(t, g, dir)
	must(t, g, time.Minute, "umount "+dir+" && rm -r /var/lib/xfs "+dir)
}

// testIn runs the package in the guest, with its temporary files in a directory. Each of its
// tests is one here.
func (p kernelTest) testIn(t *testing.T, g *guest, dir string) {
	command := fmt.Sprintf("cd /given/%s && KNARR_MUST_RUN=1 KNARR_GUEST=1 TMPDIR=%s ./test -test.v -test.timeout=14m -test.run='%s' -test.skip='%s'",
		filepath.Base(p.folder), dir, p.run, p.slow)
	out, code, err := g.run(15*time.Minute, command)
	all := results(out)
	if err != nil || code != 0 && len(all) == 0 {
		t.Fatalf("%s\nexit code %d, %v\n%s", command, code, err, out)
	}
	for _, r := range all {
		t.Run(r.name, func(t *testing.T) {
			switch why := p.known[r.name]; {
			case r.outcome == "SKIP":
				t.Skip("skipped in the guest")
			case r.outcome == "PASS" && why != "":
				t.Errorf("passes: take it off the list of known failures, where it is for %q", why)
			case r.outcome == "FAIL" && why != "":
				t.Skip("known to fail: ", why)
			case r.outcome == "FAIL":
				t.Errorf("failed in the guest:\n%s", r.output)
			default:
				t.Logf("passed in the guest %s", r.took)
			}
		})
	}
	if failed(all) != (code != 0) {
		t.Errorf("exit code %d\n%s", code, out)
	}
}
