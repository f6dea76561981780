// Command upstream builds upstream's own programs, to run beside knarr: the
// official e2e suite, the components it is compared with, and the programs of
// the suite's images. It reads this module's pins and writes into a cache outside
// the repository, one folder per version; what is there is not built again.
//
//	go run ./upstream [-cache DIR] PROGRAM...     builds, prints one path a line
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"knarr/test/conformance/programs"
)

// A program is how one is built.
type program struct {
	pkg  string
	test bool // a test binary
}

var known = map[string]program{
	"kube-apiserver":          {pkg: "k8s.io/kubernetes/cmd/kube-apiserver"},
	"kube-controller-manager": {pkg: "k8s.io/kubernetes/cmd/kube-controller-manager"},
	"kube-scheduler":          {pkg: "k8s.io/kubernetes/cmd/kube-scheduler"},
	"kubelet":                 {pkg: "k8s.io/kubernetes/cmd/kubelet"},
	"kube-proxy":              {pkg: "k8s.io/kubernetes/cmd/kube-proxy"},
	"kubeadm":                 {pkg: "k8s.io/kubernetes/cmd/kubeadm"},
	"etcd":                    {pkg: "go.etcd.io/etcd/server/v3"},
	"agnhost":                 {pkg: "k8s.io/kubernetes/test/images/agnhost"},
	"consume-cpu":             {pkg: "k8s.io/kubernetes/test/images/resource-consumer/consume-cpu"},
	"consumer":                {pkg: "k8s.io/kubernetes/test/images/resource-consumer"},
	"nonewprivs":              {pkg: "k8s.io/kubernetes/test/images/nonewprivs"},
	"regression-issue-74839":  {pkg: "k8s.io/kubernetes/test/images/regression-issue-74839"},
	"sample-apiserver":        {pkg: "k8s.io/sample-apiserver"},
	"sample-device-plugin":    {pkg: "k8s.io/kubernetes/test/images/sample-device-plugin"},
	"ginkgo":                  {pkg: "github.com/onsi/ginkgo/v2/ginkgo"},
	"e2e.test":                {pkg: "k8s.io/kubernetes/test/e2e", test: true},
	"e2e_node.test":           {pkg: "k8s.io/kubernetes/test/e2e_node", test: true},
}

func main() {
	cache := flag.String("cache", "", "`directory` for what is built (default: knarr in the user's cache directory)")
	flag.Parse()
	if err := run(*cache, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "upstream:", err)
		os.Exit(1)
	}
}

func run(cache string, names []string) error {
	if len(names) == 0 {
		return fmt.Errorf("name the programs to build: %s", strings.Join(slices.Sorted(maps.Keys(known)), " "))
	}
	cache, err := programs.Cache(cache)
	if err != nil {
		return err
	}
	dir := programs.Dir(cache)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		p, ok := known[name]
		if !ok {
			return fmt.Errorf("no program %q; there are: %s", name, strings.Join(slices.Sorted(maps.Keys(known)), " "))
		}
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			if err := compile(p, path); err != nil {
				return fmt.Errorf("build %s: %w", name, err)
			}
		}
		fmt.Println(path)
	}
	return nil
}

// compile writes the program at path, whole or not at all.
func compile(p program, path string) error {
	const component = "k8s.io/component-base/version"
	args := []string{"build"}
	if p.test {
		args = []string{"test", "-c", "-vet=off"} // the packages of others, which takes minutes
	}
	made := fmt.Sprintf("%s.%d", path, os.Getpid()) // several runs may build it at a time
	cmd := exec.Command("go", append(args, "-trimpath", "-ldflags",
		"-s -w -X "+component+".gitVersion="+programs.Version+" -X "+component+".gitMajor=1 -X "+component+".gitMinor=36",
		"-o", made, p.pkg)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	return os.Rename(made, path)
}
