package vm

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestDensity fills a node with 500 pods, a hundred at a time, where control groups are of
// version 2, and logs what one of each hundred cost in instructions, of which a microsecond has
// a thousand: how these compare says whether a pod costs more the more there are.
func TestDensity(t *testing.T) {
	if os.Getenv("KNARR_VM_DENSITY") == "" {
		t.Skip("takes half an hour: make vm-density")
	}
	const (
		hundred  = 100
		hundreds = 5
		rest     = 60 // seconds, for what the node uses anyway
		used     = "awk '/usage_usec/ {print $2}' /sys/fs/cgroup/cpu.stat"
		clock    = `awk '{printf "%.0f\n", $1*1000000}' /proc/uptime` // the guest's, which is not ours
	)
	g := start(t, machine{size: []string{"-smp", "1", "-m", "6144"}, disk: plain.disk, counted: true}, nil, func(a *initramfs) error {
		a.copy("given/density.yaml", "testdata/density.yaml")
		return nil
	})
	must(t, g, 20*time.Minute, "setsid /given/knarr server --disable servicelb,ingress,local-storage,network-policy --kubelet-arg max-pods=510 --node-cidr-mask-size-ipv4 22 "+
		">/tmp/knarr.log 2>&1 </dev/null & /given/knarr wait --timeout 600s && /given/knarr images load /given/hello.tar && "+kubectl+"apply -f /given/density.yaml")
	resting := func() time.Duration {
		return number(t, g, fmt.Sprintf("sleep 30; before=$(%s); sleep %d; echo $(($(%s)-before))", used, rest, used)) / rest
	}
	for i := range hundreds {
		idle, before, began := resting(), number(t, g, used), number(t, g, clock)
		must(t, g, 30*time.Minute, fmt.Sprintf("%sscale deployment sleep --replicas=%d && %srollout status deployment/sleep --timeout=1700s", kubectl, (i+1)*hundred, kubectl))
		took, cost := number(t, g, clock)-began, number(t, g, used)-before
		cost -= time.Duration(float64(idle) * took.Seconds())
		t.Logf("pods %d to %d: %s in %s; before them, at rest, %s a second",
			i*hundred+1, (i+1)*hundred, (cost / hundred).Round(time.Millisecond/10), took.Round(time.Second), idle.Round(time.Millisecond))
	}
	t.Logf("with all of them, at rest, %s a second", resting().Round(time.Millisecond))
	if out := must(t, g, 5*time.Minute, kubectl+"get pods --no-headers | grep -c ' 1/1  *Running  *0 '"); strings.TrimSpace(out) != fmt.Sprint(hundred*hundreds) {
		t.Errorf("%s pods run that never ended, want %d", strings.TrimSpace(out), hundred*hundreds)
	}
}

// number is what a command prints: a time in microseconds.
func number(t *testing.T, g *guest, command string) time.Duration {
	t.Helper()
	out := strings.TrimSpace(must(t, g, 5*time.Minute, command))
	d, err := time.ParseDuration(out + "us")
	if err != nil {
		t.Fatalf("%s\nprints %q: %v", command, out, err)
	}
	return d
}
