package vm

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// wide is a machine for the kubelet's managers of processors and memory: two sockets of
// two cores of two threads each, and a NUMA node for each socket.
var wide = machine{size: []string{
	"-smp", "8,sockets=2,cores=2,threads=2", "-m", "10240",
	"-object", "memory-backend-ram,id=m0,size=5120M", "-numa", "node,nodeid=0,cpus=0-3,memdev=m0",
	"-object", "memory-backend-ram,id=m1,size=5120M", "-numa", "node,nodeid=1,cpus=4-7,memdev=m1",
}}

// nodeSuite are the paths of what runs upstream's suite for a single node, as
// test/conformance/run makes it: that program itself, the suite's and ginkgo, and archives
// of images. make vm-node-specs builds them.
var nodeSuite = strings.Fields(os.Getenv("KNARR_VM_NODE_SUITE"))

// TestNodeSpecs runs the specs of e2e-node-left.txt below the reasons that name the guest,
// on a node that is the whole guest. KNARR_VM takes some of them.
func TestNodeSpecs(t *testing.T) {
	if len(nodeSuite) < 4 {
		t.Skip("needs upstream's suite for nodes: make vm-node-specs")
	}
	const lists = "../conformance/"
	list, err := os.ReadFile(lists + "e2e-node-left.txt")
	if err != nil {
		t.Fatal(err)
	}
	of := wantedCases(t)
	var specs []string
	for _, name := range specsOf(string(list), "make vm-node-specs") {
		if of.MatchString(name) {
			specs = append(specs, regexp.QuoteMeta(name))
		}
	}
	if len(specs) == 0 {
		t.Fatal("no spec of e2e-node-left.txt is for the guest")
	}
	// Its names of paths are those of a checkout.
	const checkout = "given/checkout/"
	files := map[string]string{checkout + "bin/knarr": "../../bin/knarr"}
	for _, name := range []string{"e2e-node-left.txt", "e2e-node-passing.txt"} {
		files[checkout+"test/conformance/"+name] = lists + name
	}
	var suite []string
	for _, path := range nodeSuite {
		name := checkout + "suite/" + filepath.Base(path)
		files[name] = path
		suite = append(suite, "/"+name)
	}
	g := start(t, wide, nil, func(a *initramfs) error {
		for name, file := range files {
			a.copy(name, file)
		}
		return nil
	})
	limit := time.Hour
	if end, ok := t.Deadline(); ok {
		limit = time.Until(end) - 2*slack
	}
	script := strings.Join([]string{
		"mkdir -p /var/lib/kubelet && cd /" + checkout + "test/conformance",
		"export KNARR_NODE_SUITE='" + strings.Join(suite[1:], " ") + "' PATH=/bin:/sbin",
		"exec unshare -n -m -p -f --mount-proc " + suite[0] + " -node -try -procs 1 -data-dir /var/lib/knarr-e2e-node -out /var/lib/e2e-node" +
			" -timeout " + limit.String() + " -focus '" + strings.ReplaceAll("^("+strings.Join(specs, "|")+")$", "'", `'\''`) + "'",
	}, "\n")
	out, code, err := g.run(limit, script)
	t.Logf("%s", out)
	if err != nil || code != 0 {
		logs, _, _ := g.run(2*time.Minute, "tail -n 60 /var/lib/e2e-node/node.log; grep -B 30 -h FAILED /var/lib/e2e-node/run*.log | tail -n 400")
		t.Errorf("exit code %d, %v\n%s", code, err, logs)
	}
}
