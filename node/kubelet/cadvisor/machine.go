package cadvisor

import (
	"os"
	"path/filepath"
	"strings"
)

// topology is how the node's processors are put together.
type topology struct{ cores, sockets, books, drawers int }

// readTopology counts what the kernel says of each processor.
func readTopology(dir string) topology {
	distinct := func(files ...string) int {
		all := map[string]bool{}
		cpus, _ := filepath.Glob(filepath.Join(dir, "cpu[0-9]*"))
		for _, cpu := range cpus {
			var key []string
			for _, f := range files {
				if b, err := os.ReadFile(filepath.Join(cpu, "topology", f)); err == nil {
					key = append(key, strings.TrimSpace(string(b)))
				}
			}
			if len(key) == len(files) {
				all[strings.Join(key, " ")] = true
			}
		}
		return len(all)
	}
	return topology{
		cores: distinct("physical_package_id", "core_id"), sockets: distinct("physical_package_id"),
		books: distinct("book_id"), drawers: distinct("drawer_id"),
	}
}

// machineFamilies are the node's own figures, without a time.
var machineFamilies = []struct {
	name, help string
	value      func(c *Collector) float64
}{
	{"machine_cpu_books", "CPU books of the machine", func(c *Collector) float64 { return float64(c.topology.books) }},
	{"machine_cpu_cores", "Logical CPU cores", func(c *Collector) float64 { return float64(c.cfg.Machine.Cores) }},
	{"machine_cpu_drawers", "CPU drawers of the machine", func(c *Collector) float64 { return float64(c.topology.drawers) }},
	{"machine_cpu_physical_cores", "Physical CPU cores", func(c *Collector) float64 { return float64(c.topology.cores) }},
	{"machine_cpu_sockets", "CPU sockets", func(c *Collector) float64 { return float64(c.topology.sockets) }},
	{"machine_memory_bytes", "Memory of the machine, bytes", func(c *Collector) float64 { return float64(c.cfg.Machine.Memory) }},
	{"machine_swap_bytes", "Swap of the machine, bytes", func(c *Collector) float64 { return float64(c.cfg.Machine.Swap) }},
}
