package shim

import (
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// update sets what a running container may use.
func (t *task) update(resources []byte) error {
	r := &specs.LinuxResources{}
	if err := json.Unmarshal(resources, r); err != nil {
		return fmt.Errorf("read the resources: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	config := t.container.Config()
	group := *config.Cgroups // not the container's own, if the kernel refuses
	of := *group.Resources
	apply(&of, r)
	group.Resources, config.Cgroups = &of, &group
	// Devices stay as they are: somebody may have added to them.
	of.SkipDevices = true
	return t.container.Set(config)
}

// apply changes to what it was what is named.
func apply(of *cgroups.Resources, r *specs.LinuxResources) {
	if b := r.BlockIO; b != nil {
		set(&of.BlkioWeight, b.Weight)
		set(&of.BlkioLeafWeight, b.LeafWeight)
	}
	if c := r.CPU; c != nil {
		applyCPU(of, c)
	} else {
		applyCPU(of, &specs.LinuxCPU{})
	}
	of.MemoryCheckBeforeUpdate = false
	if m := r.Memory; m != nil {
		set(&of.Memory, m.Limit)
		set(&of.MemoryReservation, m.Reservation)
		set(&of.MemorySwap, m.Swap)
		set(&of.MemoryCheckBeforeUpdate, m.CheckBeforeUpdate)
		if m.Limit != nil && *m.Limit == -1 && m.Swap == nil {
			of.MemorySwap = 0 // else swap is limited without memory being limited
		}
	}
	of.PidsLimit = nil
	if r.Pids != nil {
		of.PidsLimit = r.Pids.Limit
	}
	of.Unified = r.Unified
}

func applyCPU(of *cgroups.Resources, c *specs.LinuxCPU) {
	var period uint64
	var quota int64
	set(&period, c.Period)
	set(&quota, c.Quota)
	// Where only one of them is named the other one stays.
	if period != 0 || quota == 0 {
		of.CpuPeriod = period
	}
	if quota != 0 || period == 0 {
		of.CpuQuota = quota
	}
	of.CpuBurst, of.CPUIdle = c.Burst, c.Idle
	shares := c.Shares
	if shares == nil && c.Idle != nil {
		shares = new(uint64) // an idle group has no weight
	}
	if shares != nil {
		of.CpuShares, of.CpuWeight = *shares, cgroups.ConvertCPUSharesToCgroupV2Value(*shares)
	}
	set(&of.CpuRtPeriod, c.RealtimePeriod)
	set(&of.CpuRtRuntime, c.RealtimeRuntime)
	of.CpusetCpus, of.CpusetMems = c.Cpus, c.Mems
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}
