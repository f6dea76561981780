package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// pathCalls are the functions that follow links, wait for FIFOs, act on
// devices, ask mounted file systems, or read as much as a file says it has.
var pathCalls = map[string][]string{
	"os": {"Chmod", "Chown", "CopyFS", "Create", "DirFS", "Open", "OpenFile", "OpenInRoot", "OpenRoot", "ReadFile", "RemoveAll",
		"Stat", "Truncate", "WriteFile"},
	"kernfs":   {"NewReader"},
	"filepath": {"EvalSymlinks", "Walk", "WalkDir"},
	"unix":     {"Access", "Chmod", "Chown", "Lstat", "Open", "Openat", "Openat2", "Stat", "Statfs", "Statx"},
	"syscall":  {"Access", "Chmod", "Chown", "Lstat", "Open", "Openat", "Stat", "Statfs"},
}

// opensPaths are the kubelet's files that may call them, and on what.
var opensPaths = map[string]string{
	"node/kubelet/podfile/podfile.go":                "the helper for what containers can write",
	"node/kubelet/podfile/walk.go":                   "the helper for what containers can write",
	"node/kubelet/cgroup/cgroup.go":                  "control groups, which are the kernel's",
	"node/kubelet/cgroup/pressure.go":                "control groups and /proc/pressure, which are the kernel's",
	"internal/kernfs/kernfs.go":                      "control groups and /proc, which are the kernel's",
	"node/kubelet/cgroup/stats.go":                   "control groups, which are the kernel's",
	"node/kubelet/cadvisor.go":                       "/proc/self/mountinfo",
	"node/kubelet/cadvisor/machine.go":               "/sys of the node",
	"node/kubelet/cadvisor/proc.go":                  "directories of descriptors in /proc, which it reads in parts",
	"node/kubelet/metricsnow.go":                     "the kubelet's certificates",
	"node/kubelet/certificates/client.go":            "the kubelet's own kubeconfig",
	"node/kubelet/dirwatch.go":                       "the directory of static pods, which is the node's own",
	"node/kubelet/machine.go":                        "/proc, /sys and /etc of the node",
	"node/kubelet/criconfig/masked.go":               "/sys of the node",
	"node/kubelet/statefile/statefile.go":            "the kubelet's own records, which no container sees",
	"node/kubelet/nodecredentials.go":                "the node's configuration of Docker",
	"node/kubelet/settings.go":                       "/proc/sys of the node",
	"node/kubelet/configuration/configuration.go":    "the node's configuration files",
	"node/kubelet/credentialprovider/config.go":      "the node's configuration of plugins",
	"node/kubelet/credentialprovider/provider.go":    "the directory of plugins",
	"node/kubelet/cpumanager/topology.go":            "/sys of the node",
	"node/kubelet/memorymanager/machine.go":          "/sys of the node",
	"node/kubelet/shutdown/logind.go":                "logind's configuration",
	"node/kubelet/cgroup/systemdtest/systemdtest.go": "a tree of tests",
	"node/kubelet/systemoom/systemoom.go":            "the kernel's log",
	"node/kubelet/manifestdir.go":                    "the node's directory of manifests",
	"node/kubelet/logquery/open.go":                  "beneath the directory of logs, after a look at what lies there",
	"node/kubelet/logquery/own.go":                   "/proc/self/cgroup",
	"node/kubelet/podtest/cpus.go":                   "a machine of tests",
	"node/kubelet/podtest/memory.go":                 "a machine of tests",
	"node/kubelet/podtest/hung_linux.go":             "/dev/fuse, for a mount of tests",
	"node/kubelet/podlogs/rotate.go":                 "creates a file that must not be there",
	"node/kubelet/volume/atomic.go":                  "volumes made of API objects, which containers get read-only",
	"node/kubelet/disk.go":                           "how full the node's own disks are, within fscall",
	"node/kubelet/volume/device.go":                  "local disks, within fscall",
	"node/kubelet/volume/disk.go":                    "the kubelet's mount points; host paths and local disks, within fscall",
	"node/kubelet/volume/filesystem.go":              "the kernel's list of file systems, in /proc",
	"node/kubelet/volume/localdisk.go":               "local disks, within fscall",
	"node/kubelet/volume/iscsi/devices.go":           "/sys of the node, where the kernel has what iscsiadm was told to attach",
	"node/kubelet/volume/memory.go":                  "the kubelet's mount points",
	"node/kubelet/volume/own.go":                     "volumes, within fscall; their files by descriptors that podfile gives",
	"node/kubelet/volume/subpath.go":                 "beneath a volume's root, by the kernel's own checks, within fscall",
}

// TestPodFiles: nothing of the kubelet but the helper opens what a container
// can write: a container decides what lies there, how large it is, and whether
// opening it ever returns.
func TestPodFiles(t *testing.T) {
	used := map[string]bool{}
	for _, p := range tree(t) {
		if !within(p.name(), "node/kubelet") && p.name() != "internal/kernfs" {
			continue
		}
		for _, name := range p.GoFiles {
			where := p.name() + "/" + name
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				pkg, ok := sel.X.(*ast.Ident)
				if !ok || pkg.Obj != nil || !slices.Contains(pathCalls[pkg.Name], sel.Sel.Name) {
					return true
				}
				used[where] = true
				if opensPaths[where] == "" {
					t.Errorf("%s:%d calls %s.%s: open what a container can write with podfile, and say here what else it is",
						where, fset.Position(sel.Pos()).Line, pkg.Name, sel.Sel.Name)
				}
				return true
			})
		}
	}
	for where, what := range opensPaths {
		if !used[where] {
			t.Errorf("%s opens nothing any more (%s)", where, strings.TrimSpace(what))
		}
	}
}
