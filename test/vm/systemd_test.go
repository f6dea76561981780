package vm

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"knarr/internal/need"
)

// TestSystemd boots a guest whose init is systemd, and has that make control groups: each
// class of pods, a change of resources, systemd's own reload, another start of the server,
// and nothing left.
func TestSystemd(t *testing.T) {
	if !wantedCases(t).MatchString("systemd") {
		t.Skip("not asked for by RUN")
	}
	if _, err := os.Stat("/usr/lib/systemd/systemd"); err != nil {
		need.Skip(t, "needs systemd's program: apt-get install systemd: ", err)
	}
	g := start(t, machine{size: plain.size, disk: plain.disk, words: "systemd.unit=guest.target"}, nil, func(a *initramfs) error {
		a.copy("given/classes.yaml", "testdata/classes.yaml")
		a.copy("given/oom.yaml", "testdata/oom.yaml")
		return a.addSystemd()
	})
	const (
		systemctl = "/usr/bin/systemctl "
		units     = systemctl + "list-units --all --full --plain --no-legend --no-pager 'knarr*.slice' 'cri-containerd-*.scope'"
		server    = "/usr/bin/systemd-run --quiet --unit=knarr -p KillMode=process -p Delegate=yes -p StandardOutput=file:/tmp/knarr.log -p StandardError=inherit " +
			"-E PATH=/bin:/sbin -E HOME=/root /given/knarr server --kubelet-arg=cgroup-driver=systemd --disable local-storage,servicelb,ingress,network-policy && /given/knarr wait --timeout 1100s"
		pods = "knarr.slice/knarr-kubepods.slice/"
	)
	// slice has the name of a pod's unit in $unit, and its directory in $dir.
	slice := func(pod, class string) string {
		return fmt.Sprintf("uid=$(%sget pod %s -o jsonpath='{.metadata.uid}' | tr - _); unit=knarr-kubepods%s-pod$uid.slice; dir=/sys/fs/cgroup/%s%s/$unit; ", kubectl, pod, class,
			pods, map[bool]string{true: "knarr-kubepods" + class + ".slice"}[class != ""])
	}
	property := func(name string) string { return systemctl + "show -P " + name + " $unit" }
	scope := "scope=cri-containerd-$(" + kubectl + "get pod guaranteed -o jsonpath='{.status.containerStatuses[0].containerID}' | sed s,.*/,,).scope; "
	for _, step := range []struct{ name, command, want string }{
		{"init", "cat /proc/1/comm; " + systemctl + "--version | head -n 1; " + systemctl + "is-active dbus.service", "systemd\n"},
		{"start", server, ""},
		{"driver", kubectl + "get --raw /api/v1/nodes/guest/proxy/configz", `"cgroupDriver":"systemd"`},
		{"image", "/given/knarr images load /given/hello.tar", "loaded knarr.test/hello:1"},
		{"pods", kubectl + "apply -f /given/classes.yaml && " + kubectl + "wait --for=condition=Ready pod --all --timeout=900s", "pod/guaranteed condition met"},
		{"classes", units, "knarr-kubepods-besteffort.slice"},
		{"besteffort", slice("besteffort", "-besteffort") + property("CPUWeight") + "; cat $dir/cpu.weight; ls -d $dir/cri-containerd-*.scope | wc -l", "1\n1\n2\n"},
		{"burstable", slice("burstable", "-burstable") + property("CPUWeight") + "; " + property("MemoryMax") + "; cat $dir/memory.max", "4\n33554432\n33554432\n"},
		{"guaranteed", slice("guaranteed", "") + property("MemoryMax") + "; " + property("CPUQuotaPerSecUSec") + "; cat $dir/cpu.max", "33554432\n200ms\n20000 100000\n"},
		{"scope", slice("guaranteed", "") + scope + systemctl + "show -P MemoryMax $scope; " + systemctl + "show -P Slice $scope | grep -q $unit && cat $dir/$scope/memory.max && test -n \"$(cat $dir/$scope/cgroup.procs)\"", "33554432\n33554432\n"},
		{"statistics", "until " + kubectl + "get --raw /api/v1/nodes/guest/proxy/metrics/cadvisor | grep 'container_memory_working_set_bytes.*scope.*pod=\"guaranteed\"' | grep -v ' 0 '; do sleep 1; done", "guaranteed"},
		{"usage of pods", "until " + kubectl + "top pods --no-headers | tee /tmp/top | grep -q '^guaranteed  *[1-9]' && test $(wc -l </tmp/top) = 3; do sleep 1; done; cat /tmp/top", "guaranteed"},
		{"usage of the node", "until " + kubectl + "top nodes --no-headers | grep '^guest  *[1-9]'; do sleep 1; done", "guest"},
		{"summary", kubectl + "get --raw /api/v1/nodes/guest/proxy/stats/summary", `"podRef"`},
		{"resize", kubectl + `patch pod guaranteed --subresource resize -p '{"spec":{"containers":[{"name":"app","resources":{"requests":{"cpu":"300m","memory":"48Mi"},"limits":{"cpu":"300m","memory":"48Mi"}}}]}}' && ` +
			slice("guaranteed", "") + scope + "until test $(" + property("MemoryMax") + ") = 50331648 && test $(" + systemctl + "show -P MemoryMax $scope) = 50331648; do sleep 1; done; cat $dir/cpu.max $dir/$scope/memory.max", "30000 100000\n50331648\n"},
		{"out of memory", kubectl + "apply -f /given/oom.yaml && for i in 0 1; do " + kubectl + "wait pod oom --timeout=600s --for=jsonpath='{.status.containerStatuses['$i'].state.terminated}' || exit 1; done; " +
			kubectl + "get pod oom -o jsonpath='{.status.containerStatuses[*].state.terminated.reason}'; " + kubectl + "delete -f /given/oom.yaml", "OOMKilled OOMKilled"},
		{"reload", "before=$(" + units + "; find /sys/fs/cgroup/knarr.slice -type d | sort; cd /sys/fs/cgroup/" + pods + "; find . -name memory.max -o -name cpu.max -o -name cpu.weight -o -name pids.max -o -name cgroup.procs | sort | xargs grep -H ''); " +
			systemctl + "daemon-reload && " +
			"after=$(" + units + "; find /sys/fs/cgroup/knarr.slice -type d | sort; cd /sys/fs/cgroup/" + pods + "; find . -name memory.max -o -name cpu.max -o -name cpu.weight -o -name pids.max -o -name cgroup.procs | sort | xargs grep -H ''); " +
			`test -n "$before" && test "$before" = "$after" || { echo "$before"; echo; echo "$after"; exit 1; }`, ""},
		{"another start", systemctl + "restart knarr && /given/knarr wait --timeout 1100s", ""},
		{"still there", kubectl + "exec guaranteed -- cat /proc/1/comm && " + kubectl + "get pods --no-headers | awk '{print $1, $3, $4}'", "besteffort Running 0\nburstable Running 0\nguaranteed Running 0\n"},
		{"delete", kubectl + "delete -f /given/classes.yaml && until test -z \"$(" + units + " | grep -e '-pod' -e scope)\"; do sleep 1; done; find /sys/fs/cgroup/knarr.slice -type d | grep -e pod.*pod -e scope; " + units, "knarr-kubepods-burstable.slice"},
		{"pods again", kubectl + "apply -f /given/classes.yaml && " + kubectl + "wait --for=condition=Ready pod --all --timeout=900s", "pod/guaranteed condition met"},
		{"down", systemctl + "stop knarr; /given/knarr down --purge", "removed all containers"},
		{"nothing left", units + "; ls -d /sys/fs/cgroup/knarr* 2>/dev/null; echo end", "end\n"},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			out := must(t, g, 20*time.Minute, step.command)
			t.Logf("%s", out)
			switch {
			case step.name == "nothing left" && out != step.want, !strings.Contains(out, step.want):
				t.Errorf("%s\nsays %q, want %q", step.command, out, step.want)
			case step.name == "summary":
				for _, missing := range notUsed(t, out) {
					t.Errorf("no usage of %s", missing)
				}
			case step.name == "delete" && (strings.Contains(out, "scope") || strings.Contains(out, "-pod")):
				t.Errorf("left: %s", out)
			}
		}) {
			out, _, err := g.run(3*time.Minute, "tail -n 60 /tmp/knarr.log; "+units+"; "+kubectl+"get pods,events -A -o wide")
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

// notUsed are those of which a summary does not say that they use processors and memory: the
// node, its slices, and what of pods and containers is there.
func notUsed(t *testing.T, summary string) (missing []string) {
	t.Helper()
	var s stats.Summary
	if err := json.Unmarshal([]byte(summary), &s); err != nil {
		t.Fatalf("%v\n%s", err, summary)
	}
	seen := map[string]bool{}
	look := func(name string, cpu *stats.CPUStats, memory *stats.MemoryStats) {
		seen[name] = true
		switch {
		case cpu == nil || cpu.UsageCoreNanoSeconds == nil || *cpu.UsageCoreNanoSeconds == 0:
			missing = append(missing, "CPU by "+name)
		case memory == nil || memory.WorkingSetBytes == nil || *memory.WorkingSetBytes == 0:
			missing = append(missing, "memory by "+name)
		case cpu.PSI == nil || memory.PSI == nil:
			missing = append(missing, "pressure in "+name)
		}
	}
	look("the node", s.Node.CPU, s.Node.Memory)
	for _, c := range s.Node.SystemContainers {
		look(c.Name, c.CPU, c.Memory)
	}
	for _, p := range s.Pods {
		look("pod "+p.PodRef.Name, p.CPU, p.Memory)
		for _, c := range p.Containers {
			look(p.PodRef.Name+"/"+c.Name, c.CPU, c.Memory)
			// It holds 8 MiB and computes all the time.
			if p.PodRef.Name == "guaranteed" && (c.CPU.UsageNanoCores == nil || *c.CPU.UsageNanoCores < 1e6 || c.Memory.WorkingSetBytes == nil || *c.Memory.WorkingSetBytes < 8<<20) {
				missing = append(missing, "what it has by "+p.PodRef.Name)
			}
		}
	}
	for _, name := range []string{"kubelet", "pods", "besteffort/app", "burstable/app", "guaranteed/app"} {
		if !seen[name] {
			missing = append(missing, "anything by "+name)
		}
	}
	return missing
}
