package vm

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// specFiles are what upstream's suite needs in the guest, if it is to run there: its
// program, and an archive of its image agnhost. make vm-specs builds them.
var specFiles = map[string]string{
	"given/e2e.test":    os.Getenv("KNARR_VM_SUITE"),
	"given/agnhost.tar": os.Getenv("KNARR_VM_IMAGES"),
}

// specsOf are the specs of a list of those that a test machine cannot run, below the
// reasons that name the target which runs them in the guest.
func specsOf(list, target string) (specs []string) {
	here := false
	for line := range strings.Lines(list) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "#"):
			here = strings.Contains(line, target)
		case here && line != "":
			specs = append(specs, line)
		}
	}
	return specs
}

// testSpecs runs them on two nodes of both families, one after the other: beside each
// other they would wait for the guest's processors until their time is over.
func testSpecs(t *testing.T, g *guest) {
	list, err := os.ReadFile("../conformance/e2e-left.txt")
	if err != nil {
		t.Fatal(err)
	}
	specs := specsOf(string(list), "make vm-specs")
	if len(specs) == 0 {
		t.Fatal("no spec of e2e-left.txt is for the guest")
	}
	defer func() { must(t, g, 3*time.Minute, "/given/knarr dev down --name vm") }()
	for _, step := range []string{
		"modprobe sctp",
		"/given/knarr dev up --name vm --nodes 2 --ip-family dual --timeout 10m",
		"/given/knarr images load --all-nodes --name vm /given/agnhost.tar",
	} {
		must(t, g, 12*time.Minute, step)
	}
	for _, name := range specs {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			out, code, err := g.run(20*time.Minute, fmt.Sprintf("/given/e2e.test --kubeconfig=/var/lib/knarr-dev/vm/kubeconfig --provider=skeleton --num-nodes=2"+
				" --ginkgo.no-color --ginkgo.timeout=19m --ginkgo.focus='%s$' 2>&1", strings.ReplaceAll(regexp.QuoteMeta(name), "'", `'\''`)))
			if err != nil || code != 0 || !strings.Contains(out, "SUCCESS! -- 1 Passed | 0 Failed") {
				state, _, _ := g.run(2*time.Minute, nodesKubectl+"get pods,nodes -A -o wide; tail -n 20 /var/lib/knarr-dev/vm/*.log")
				t.Fatalf("exit code %d, %v\n%s\n%s", code, err, out, state)
			}
			t.Logf("passed in the guest after %v", time.Since(began).Round(time.Second))
		})
	}
}
