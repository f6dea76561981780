package kubelet

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"knarr/node/kubelet/cgroup"
)

// pressures adds how long tasks have waited, where the kernel counts it.
func pressures(cpu *stats.CPUStats, memory *stats.MemoryStats, read func(resource string) (cgroup.Pressure, bool)) *stats.IOStats {
	if p, ok := read("cpu"); ok && cpu != nil {
		cpu.PSI = psi(p)
	}
	if p, ok := read("memory"); ok && memory != nil {
		memory.PSI = psi(p)
	}
	if p, ok := read("io"); ok {
		return &stats.IOStats{Time: metav1.Now(), PSI: psi(p)}
	}
	return nil
}

// criPressure adds what the runtime says of it.
func criPressure(s *stats.ContainerStats, c *cri.ContainerStats) {
	if p := c.GetCpu().GetPsi(); p != nil {
		s.CPU.PSI = criPSI(p)
	}
	if p := c.GetMemory().GetPsi(); p != nil {
		s.Memory.PSI = criPSI(p)
	}
	if p := c.GetIo().GetPsi(); p != nil {
		s.IO = &stats.IOStats{Time: metav1.Unix(0, c.Io.Timestamp), PSI: criPSI(p)}
	}
}

func criPSI(p *cri.PsiStats) *stats.PSIStats {
	one := func(d *cri.PsiData) stats.PSIData {
		return stats.PSIData{Total: d.GetTotal(), Avg10: d.GetAvg10(), Avg60: d.GetAvg60(), Avg300: d.GetAvg300()}
	}
	return &stats.PSIStats{Full: one(p.Full), Some: one(p.Some)}
}

func psi(p cgroup.Pressure) *stats.PSIStats {
	return &stats.PSIStats{Full: stats.PSIData(p.Full), Some: stats.PSIData(p.Some)}
}

// podSwap is the sum of what the containers have swapped out.
func podSwap(containers []stats.ContainerStats) *stats.SwapStats {
	var sum stats.SwapStats
	add := func(to **uint64, v *uint64) {
		if v != nil {
			if *to == nil {
				*to = new(uint64)
			}
			**to += *v
		}
	}
	for _, c := range containers {
		if c.Swap != nil {
			sum.Time = c.Swap.Time
			add(&sum.SwapAvailableBytes, c.Swap.SwapAvailableBytes)
			add(&sum.SwapUsageBytes, c.Swap.SwapUsageBytes)
		}
	}
	if sum.Time.IsZero() {
		return nil
	}
	return &sum
}

func nodeSwap(now metav1.Time) *stats.SwapStats {
	info, err := meminfo()
	if err != nil {
		return nil
	}
	free := uint64(max(info["SwapFree"], 0))
	used := uint64(max(info["SwapTotal"]-info["SwapFree"], 0))
	return &stats.SwapStats{Time: now, SwapAvailableBytes: &free, SwapUsageBytes: &used}
}
