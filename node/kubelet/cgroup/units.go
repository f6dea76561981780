package cgroup

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// periodSince is systemd's version that can be given the period of a limit of CPU.
const periodSince = 242

// sliceProperties are those of a new slice, without limits: those of libcontainer's, which
// upstream's kubelet makes slices with.
func sliceProperties(dir string) []dbus.Property {
	all := []dbus.Property{
		dbus.PropDescription("libcontainer container " + path.Base(dir)),
		property("MemoryAccounting", true), property("CPUAccounting", true), property("IOAccounting", true), property("TasksAccounting", true),
		property("DefaultDependencies", false),
	}
	if above := path.Dir(dir); above != "/" {
		all = append(all, dbus.PropWants(path.Base(above)))
	}
	return all
}

// limitProperties are limits as systemd knows them, version being its own. What Limits leaves
// alone has none.
func limitProperties(l Limits, v2 bool, version int) (all []dbus.Property) {
	memory := "MemoryLimit"
	if v2 {
		memory = "MemoryMax"
	}
	switch {
	case l.CPUShares <= 0:
	case v2:
		all = append(all, property("CPUWeight", uint64(Weight(l.CPUShares))))
	default:
		all = append(all, property("CPUShares", uint64(l.CPUShares)))
	}
	if l.CPUQuota > 0 && l.CPUPeriod > 0 {
		if version >= periodSince {
			all = append(all, property("CPUQuotaPeriodUSec", uint64(l.CPUPeriod)))
		}
		all = append(all, property("CPUQuotaPerSecUSec", uint64(l.CPUQuota)*1e6/uint64(l.CPUPeriod)))
	}
	if l.Memory > 0 {
		all = append(all, property(memory, uint64(l.Memory)))
	}
	if v2 && l.MemoryMin != 0 {
		all = append(all, property("MemoryMin", uint64(max(l.MemoryMin, 0))))
	}
	if v2 && l.MemoryLow != 0 {
		all = append(all, property("MemoryLow", uint64(max(l.MemoryLow, 0))))
	}
	if l.Pids > 0 {
		all = append(all, property("TasksMax", uint64(l.Pids)))
	}
	return all
}

func property(name string, value any) dbus.Property {
	return dbus.Property{Name: name, Value: godbus.MakeVariant(value)}
}

// wholePercent raises the limit of CPU to whole percents of one, which is what systemd
// counts in: else it would write another number than this process, and each undo the other's.
func (l Limits) wholePercent() Limits {
	const percent = 10_000 // microseconds in a second
	if l.CPUQuota <= 0 || l.CPUPeriod <= 0 || l.CPUQuota > 1<<40 {
		return l
	}
	perSecond := l.CPUQuota * 1e6 / l.CPUPeriod
	if rest := perSecond % percent; rest != 0 {
		l.CPUQuota = (perSecond - rest + percent) * l.CPUPeriod / 1e6
	}
	return l
}

// versionOf reads the number that begins what systemd says of its version: "v252.38-1" is
// 252; 0 if there is none.
func versionOf(text string) (n int) {
	text = strings.TrimLeft(text, `"v`)
	if end := strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		text = text[:end]
	}
	n, _ = strconv.Atoi(text)
	return n
}

// isError says whether systemd answered with an error of that name.
func isError(err error, name string) bool {
	var e godbus.Error
	return errors.As(err, &e) && e.Name == "org.freedesktop.systemd1."+name
}

// jobError is what the end of a job means. Of systemd's words only "done" is none.
func jobError(verb, unit, result string) error {
	if result == "done" {
		return nil
	}
	return fmt.Errorf("%s systemd unit %s: got `%s`", verb, unit, result)
}
