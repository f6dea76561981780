package cgroup

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/dbus"
)

func say(all []dbus.Property) string {
	var words []string
	for _, p := range all {
		words = append(words, fmt.Sprint(p.Name, "=", p.Value.Value()))
	}
	return strings.Join(words, " ")
}

func TestLimitProperties(t *testing.T) {
	all := Limits{CPUShares: 1024, CPUQuota: 50000, CPUPeriod: 100000, Memory: 1 << 20, Pids: 9}
	for name, c := range map[string]struct {
		limits  Limits
		v2      bool
		version int
		want    string
	}{
		"version 2":      {all, true, 252, "CPUWeight=39 CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=500000 MemoryMax=1048576 TasksMax=9"},
		"version 1":      {all, false, 252, "CPUShares=1024 CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=500000 MemoryLimit=1048576 TasksMax=9"},
		"before 242":     {all, true, 241, "CPUWeight=39 CPUQuotaPerSecUSec=500000 MemoryMax=1048576 TasksMax=9"},
		"left alone":     {Limits{}, true, 252, ""},
		"without a time": {Limits{CPUQuota: 5}, true, 252, ""},
		"least":          {Limits{CPUShares: 2}, true, 252, "CPUWeight=1"},
		"protected":      {Limits{MemoryMin: 1 << 20, MemoryLow: -1}, true, 252, "MemoryMin=1048576 MemoryLow=0"},
		"no protection":  {Limits{MemoryMin: 1 << 20, MemoryLow: -1}, false, 252, ""},
		"unlimited":      {Limits{CPUQuota: -1, CPUPeriod: 100000, Pids: -1}, true, 252, ""},
	} {
		if got := say(limitProperties(c.limits, c.v2, c.version)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestSliceProperties(t *testing.T) {
	got := say(sliceProperties("/kubepods.slice/kubepods-burstable.slice"))
	if want := "Description=libcontainer container kubepods-burstable.slice MemoryAccounting=true CPUAccounting=true IOAccounting=true TasksAccounting=true DefaultDependencies=false Wants=[kubepods.slice]"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := say(sliceProperties("/kubepods.slice")); strings.Contains(got, "Wants") {
		t.Errorf("the slice of all is below none: %q", got)
	}
}

// TestWholePercent: what is written beside systemd is what systemd writes, libcontainer's
// rounding.
func TestWholePercent(t *testing.T) {
	for _, c := range [][3]int64{{50000, 100000, 50000}, {50001, 100000, 51000}, {1, 100000, 1000}, {12345, 50000, 12500}, {0, 100000, 0}, {-1, 100000, -1}, {7, 0, 7}} {
		if got := (Limits{CPUQuota: c[0], CPUPeriod: c[1]}).wholePercent().CPUQuota; got != c[2] {
			t.Errorf("%d of %d is %d, want %d", c[0], c[1], got, c[2])
		}
	}
}

func TestVersionOf(t *testing.T) {
	for text, want := range map[string]int{`"v245.4-1.fc32"`: 245, "245": 245, "v245-1.fc32": 245, `"252 (252.38-1~deb12u1)"`: 252, "": 0, "x": 0} {
		if got := versionOf(text); got != want {
			t.Errorf("%s is %d, want %d", text, got, want)
		}
	}
}
