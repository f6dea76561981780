package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/cgroup/systemdtest"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/podtest"
)

// withSystemd gives a node a tree of version 2 whose slices a systemd of the test's makes.
func (n *node) withSystemd() *systemdtest.Systemd {
	n.t.Helper()
	tree := n.t.TempDir()
	if err := os.WriteFile(filepath.Join(tree, "cgroup.controllers"), nil, 0o600); err != nil {
		n.t.Fatal(err)
	}
	s := systemdtest.Start(n.t, tree)
	n.cgroups, n.bus = cgroup.OpenAt(tree), s.Address
	n.config = func(c *Config) { c.CgroupParent = "/kubepods" }
	return s
}

// TestDriverOfRuntime: a runtime that has its groups made by systemd has the kubelet do so
// too, whatever is set: slices for all pods, classes and a pod, which systemd ends with it.
func TestDriverOfRuntime(t *testing.T) {
	n := newNode(t)
	s := n.withSystemd()
	n.rt.Systemd = func() bool { return true }
	n.start()
	n.until("the slices of classes", func() bool {
		return s.Properties("kubepods-burstable.slice")["CPUWeight"] == uint64(1) && s.Properties("kubepods-besteffort.slice")["CPUWeight"] == uint64(1) &&
			s.Properties("kubepods.slice")["MemoryMax"] != nil
	})
	p := podtest.Pod("p", "c")
	p.UID = "u-1"
	p.Spec.Containers[0].Resources = podtest.Resources("100m", "1Mi", "200m", "2Mi")
	n.api.addPod(p)
	n.until("ready", n.ready("p"))
	const unit = "kubepods-burstable-podu_1.slice"
	of := s.Properties(unit)
	if of["CPUWeight"] != uint64(4) || of["MemoryMax"] != uint64(2<<20) || of["CPUQuotaPerSecUSec"] != uint64(200000) {
		t.Errorf("the pod's slice: %v", of)
	}
	if got := n.rt.CgroupParent("p"); got != "/kubepods.slice/kubepods-burstable.slice/"+unit {
		t.Errorf("the runtime is given %q", got)
	}
	if got := (host{n.k}).Configz().(map[string]any)["kubeletconfig"].(configuration.Settings).CgroupDriver; got != "systemd" {
		t.Errorf("/configz says %s", got)
	}
	n.resizeTo("p", map[string]any{"requests": map[string]any{"cpu": "300m", "memory": "1Mi"}, "limits": map[string]any{"cpu": "400m", "memory": "3Mi"}}, 2)
	n.until("the resize", func() bool {
		of := s.Properties(unit)
		return of["MemoryMax"] == uint64(3<<20) && of["CPUQuotaPerSecUSec"] == uint64(400000) && of["CPUWeight"] == uint64(12)
	})
	n.api.deletePod("p")
	n.until("the slice's end", func() bool { return !slices.Contains(s.Units(), unit) })
	if !slices.Contains(s.Units(), "kubepods-burstable.slice") {
		t.Error("its class has gone with it")
	}
}

// TestDriverAsked: the runtime is asked again while it does not answer, before any group is
// made; one that is older than the question leaves it to the setting, and cgroupfs wins over
// the setting too.
func TestDriverAsked(t *testing.T) {
	for name, c := range map[string]struct {
		runtime func() bool
		set     string
		want    string
	}{
		"the setting counts": {nil, "systemd", "systemd"},
		"the runtime wins":   {func() bool { return false }, "systemd", "cgroupfs"},
		"nothing said":       {nil, "", "cgroupfs"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			s := n.withSystemd()
			n.rt.Systemd = c.runtime
			config := n.config
			n.config = func(of *Config) { config(of); of.Settings.CgroupDriver = c.set }
			var away atomic.Bool
			away.Store(true)
			n.rt.Fail = func(method string) error {
				if method == "RuntimeConfig" && away.Load() {
					return errors.New("not yet")
				}
				return nil
			}
			n.start()
			n.until("not ready", func() bool { return n.nodeReady().Status == corev1.ConditionFalse })
			if c := n.nodeReady(); !strings.Contains(c.Message, "container runtime is down: ") || len(s.Units()) > 0 || n.cgroups.Exists("/kubepods") {
				t.Errorf("before it has answered: %s, units %v", c.Message, s.Units())
			}
			away.Store(false)
			n.until("the groups", func() bool {
				return n.cgroups.Exists(map[string]string{"systemd": "/kubepods.slice/kubepods-burstable.slice", "cgroupfs": "/kubepods/burstable"}[c.want])
			})
			n.until("ready", func() bool { return n.nodeReady().Status == corev1.ConditionTrue })
			if got := len(s.Units()) > 0; got != (c.want == "systemd") {
				t.Errorf("units %v", s.Units())
			}
		})
	}
}

// TestSystemdMissing: where systemd is not the init, the setting and what to do are said.
func TestSystemdMissing(t *testing.T) {
	there := t.TempDir()
	for _, c := range []struct {
		driver, dir, want string
	}{
		{"cgroupfs", there + "/no", ""},
		{"systemd", there, ""},
		{"systemd", there + "/no", "cgroupDriver (--cgroup-driver) is systemd, and systemd is not the init of this machine: there is no " + there + "/no; set it to cgroupfs, or leave it out"},
	} {
		got := ""
		if err := checkSystemd(&configuration.Settings{CgroupDriver: c.driver}, c.dir); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.driver, c.dir, got, c.want)
		}
	}
}
