package rig

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// pidsWithSandboxes are the cluster's processes and the first ones of its pods'
// sandboxes, which are nobody's containers.
func (c *Cluster) pidsWithSandboxes() []int {
	own := pidsOf(c.Dir)
	all := slices.Clone(own)
	for _, pid := range own {
		var b []byte
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // a child is its thread's
		for _, list := range lists {
			some, _ := os.ReadFile(list)
			b = append(b, some...)
		}
		for _, f := range strings.Fields(string(b)) {
			child, err := strconv.Atoi(f)
			if err != nil {
				continue
			}
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", child))
			if string(bytes.TrimSpace(name)) == "pause" {
				all = append(all, child)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Share is what all processes of the cluster hold, those of sandboxes too, bytes: of a
// page that several of them have, each holds its share.
func (c *Cluster) Share() (sum int64, err error) {
	for _, pid := range c.pidsWithSandboxes() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
				n, err := strconv.ParseInt(f[1], 10, 64)
				if err != nil {
					return 0, fmt.Errorf("/proc/%d/smaps_rollup: %w", pid, err)
				}
				sum += n << 10
			}
		}
	}
	return sum, nil
}

// CPUOfNode is what all processes of the cluster have used so far, those of sandboxes
// and the programs that ended too.
func (c *Cluster) CPUOfNode() (sum time.Duration) {
	for _, pid := range c.pidsWithSandboxes() {
		if d, err := CPUOfAll(pid); err == nil {
			sum += d
		}
	}
	return sum
}
