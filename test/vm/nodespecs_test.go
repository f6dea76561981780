package vm

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// wide is a machine for the kubelet's managers of processors and memory: two sockets of
// two cores of two threads each, and a NUMA node for each socket. They call themselves
// Intel's, whose last cache the guest's kernel takes to be shared by a socket.
var wide = machine{disk: "16G", size: []string{
	"-cpu", "max,vendor=GenuineIntel",
	"-smp", "8,sockets=2,cores=2,threads=2", "-m", "10240",
	"-object", "memory-backend-ram,id=m0,size=5120M", "-numa", "node,nodeid=0,cpus=0-3,memdev=m0",
	"-object", "memory-backend-ram,id=m1,size=5120M", "-numa", "node,nodeid=1,cpus=4-7,memdev=m1",
}}

// narrow is one of so many processors, for what wants none of these: on few of this machine it
// is several times faster, for a processor of the guest that waits for a lock takes the time of
// the one that has it.
func narrow(processors string) machine {
	return machine{disk: "16G", size: []string{"-smp", processors, "-m", "8192"}}
}

// nodeSuite are the paths of what runs upstream's suite for a single node, as
// test/conformance/run makes it: that program itself, the suite's and ginkgo, and archives
// of images. make vm-node-specs builds them.
var nodeSuite = strings.Fields(os.Getenv("KNARR_VM_NODE_SUITE"))

var update = flag.Bool("update", false, "add the specs that pass in the guest to their list")

// Lists of the specs for a single node: those that pass on a test machine, those that it
// cannot run, and those of these that pass in the guest.
const (
	specLists   = "../conformance/"
	nodePassing = "e2e-node-passing.txt"
	nodeLeft    = "e2e-node-left.txt"
	nodeGuest   = "e2e-node-vm.txt"
)

// TestNodeSpecs runs the specs of e2e-node-vm.txt on a node that is the whole guest: all of
// them must pass. KNARR_VM takes others, that no list has or that e2e-node-left.txt leaves
// for a reason that names the guest.
func TestNodeSpecs(t *testing.T) {
	if len(nodeSuite) < 3 {
		t.Skip("needs upstream's suite for nodes: make vm-node-specs")
	}
	texts := map[string]string{}
	for _, name := range []string{nodePassing, nodeLeft, nodeGuest} {
		b, err := os.ReadFile(specLists + name)
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(b)
	}
	focus := wantedCases(t).String()
	if focus == "" {
		focus = exactly(strings.Split(strings.TrimSpace(texts[nodeGuest]), "\n"))
	}
	limit := time.Hour
	if end, ok := t.Deadline(); ok {
		limit = time.Until(end) - 2*slack
	}
	// Its names of paths are those of a checkout.
	const (
		checkout = "given/checkout/"
		lists    = checkout + "test/conformance/"
		out      = "/var/lib/e2e-node"
	)
	var suite []string
	for _, path := range nodeSuite {
		suite = append(suite, "/"+checkout+"suite/"+filepath.Base(path))
	}
	script := strings.Join([]string{
		"mkdir -p /var/lib/kubelet && cd /" + lists,
		"fallocate -l 4294967296 /var/lib/swap && mkswap /var/lib/swap && swapon /var/lib/swap",
		"export KNARR_NODE_SUITE='" + strings.Join(suite[1:], " ") + "' PATH=/bin:/sbin",
		"tail -n +1 -F " + out + "/run1.log " + out + "/run2.log " + out + "/node.log >/dev/ttyS0 2>/dev/null &", // the console tells how far it is
		"unshare -n -m -p -f --mount-proc " + suite[0] + " -node -procs 2 -data-dir /var/lib/knarr-e2e-node -out " + out +
			" -list " + nodeGuest + " -without " + nodePassing + " -update -timeout " + (limit - specSlack).Round(time.Second).String() +
			" -focus '" + strings.ReplaceAll(focus, "'", `'\''`) + "'",
		"code=$?; kill $!; exit $code",
	}, "\n")
	lscpu, err := exec.LookPath("lscpu")
	if err != nil {
		t.Fatal("needs lscpu: apt-get install util-linux: ", err)
	}
	of := wide
	if n := os.Getenv("KNARR_VM_NARROW"); n != "" {
		of = narrow(n)
	}
	g := start(t, of, nil, func(a *initramfs) error {
		a.copy(checkout+"bin/knarr", "../../bin/knarr")
		a.data(lists+nodeLeft, leftInGuest(texts[nodeLeft]))
		a.data(lists+nodePassing, texts[nodePassing]) // not all are in the suite there: AppArmor's are others
		a.data(lists+nodeGuest, texts[nodeGuest])
		a.data("given/node-specs", script)
		for i, path := range nodeSuite {
			a.copy(strings.TrimPrefix(suite[i], "/"), path)
		}
		return a.program("bin/lscpu", lscpu) // the suite asks it
	})
	output, code, err := g.run(limit, "sh /given/node-specs")
	t.Logf("%s", output)
	logs, _, _ := g.run(5*time.Minute, "cat "+out+"/times.txt; for f in "+out+"/failed/*; do echo \"== $f\"; tail -n 400 \"$f\"; done")
	t.Logf("%s", logs)
	if err != nil || code != 0 {
		logs, _, _ = g.run(2*time.Minute, "tail -n 60 "+out+"/node.log "+out+"/server.log")
		t.Errorf("exit code %d, %v\n%s", code, err, logs)
	}
	now, code, err := g.run(time.Minute, "cat /"+lists+nodeGuest)
	if err != nil || code != 0 {
		t.Fatalf("exit code %d, %v", code, err)
	}
	switch {
	case now == texts[nodeGuest]:
	case *update:
		if err := os.WriteFile(specLists+nodeGuest, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("specs pass that are not in %s; make vm-node-specs UPDATE=1 adds them", nodeGuest)
	}
}

// specSlack is what the guest needs at its end to say which specs passed.
const specSlack = 5 * time.Minute

// exactly is the regular expression of these names and no others.
func exactly(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = regexp.QuoteMeta(n)
	}
	return "^(" + strings.Join(quoted, "|") + ")$"
}

// leftInGuest is the list of the specs that a test machine cannot run for reasons that hold in
// the guest too.
func leftInGuest(left string) string {
	var b strings.Builder
	here := false
	for line := range strings.Lines(left) {
		if strings.HasPrefix(line, "#") {
			here = strings.Contains(line, "make vm-node-specs")
		}
		if !here {
			b.WriteString(line)
		}
	}
	return b.String()
}

// TestGuestSpecs: a spec that passes in the guest is one that a test machine cannot run, and
// the reason names the guest.
func TestGuestSpecs(t *testing.T) {
	left, err := os.ReadFile(specLists + nodeLeft)
	if err != nil {
		t.Fatal(err)
	}
	guest, err := os.ReadFile(specLists + nodeGuest)
	if err != nil {
		t.Fatal(err)
	}
	named := specsOf(string(left), "make vm-node-specs")
	for name := range strings.Lines(string(guest)) {
		name = strings.TrimSpace(name)
		if !slices.ContainsFunc(named, func(line string) bool {
			family, ok := strings.CutPrefix(line, "~")
			return line == name || ok && regexp.MustCompile("^(?:"+strings.TrimSpace(family)+")$").MatchString(name)
		}) {
			t.Errorf("%s has a spec that %s does not leave to the guest: %s", nodeGuest, nodeLeft, name)
		}
	}
}

func TestLeftInGuest(t *testing.T) {
	got := leftInGuest("# needs a cloud\na\n# needs SMT; make vm-node-specs has it\nb\n~ c.*\n# slow\nd\n")
	if want := "# needs a cloud\na\n# slow\nd\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := exactly([]string{"a.b", "c"}), `^(a\.b|c)$`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
