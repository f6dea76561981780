package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A Wait is how long tasks have waited for a resource: nanoseconds in all, and
// which share of the last 10, 60 and 300 seconds, percent.
type Wait struct {
	Total                uint64
	Avg10, Avg60, Avg300 float64
}

// A Pressure is how long some tasks of a group have waited, and how long all.
type Pressure struct{ Full, Some Wait }

// Pressure reads that of a group: cpu, memory or io. Only version 2 counts it,
// and not every kernel.
func (t *Tree) Pressure(path, resource string) (Pressure, bool) {
	if !t.v2 {
		return Pressure{}, false
	}
	return readPressure(filepath.Join(t.root, path, resource+".pressure"))
}

// NodePressure reads that of the whole machine.
func NodePressure(resource string) (Pressure, bool) {
	return readPressure(filepath.Join("/proc/pressure", resource))
}

func readPressure(file string) (Pressure, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return Pressure{}, false // also where counting is switched off
	}
	return parsePressure(string(b))
}

// parsePressure reads the kernel's two lines. Pure.
func parsePressure(text string) (p Pressure, ok bool) {
	for line := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(line, " ")
		var w Wait
		if _, err := fmt.Sscanf(rest, "avg10=%g avg60=%g avg300=%g total=%d", &w.Avg10, &w.Avg60, &w.Avg300, &w.Total); err != nil {
			return Pressure{}, false
		}
		w.Total *= 1000 // the kernel counts microseconds
		switch kind {
		case "some":
			p.Some, ok = w, true
		case "full":
			p.Full, ok = w, true
		}
	}
	return p, ok
}
