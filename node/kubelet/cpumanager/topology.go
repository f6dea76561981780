package cpumanager

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"knarr/node/kubelet/topologymanager"
)

// A CPU is where one of them is.
type CPU struct{ ID, Core, Socket, Node, Cache int }

// A Topology is where all of them are.
type Topology struct {
	CPUs []CPU
	// Distances are between NUMA nodes, as the firmware has them.
	Distances map[int]map[int]int
}

// level is a kind of group of CPUs.
type level func(CPU) int

func byCore(c CPU) int   { return c.Core }
func bySocket(c CPU) int { return c.Socket }
func byNode(c CPU) int   { return c.Node }
func byCache(c CPU) int  { return c.Cache }

// Online are the CPUs.
func (t Topology) Online() cpuset.CPUSet { return t.all() }

// all are the CPUs.
func (t Topology) all() cpuset.CPUSet { return t.in(func(CPU) bool { return true }) }

func (t Topology) in(f func(CPU) bool) cpuset.CPUSet {
	var ids []int
	for _, c := range t.CPUs {
		if f(c) {
			ids = append(ids, c.ID)
		}
	}
	return cpuset.New(ids...)
}

// of are the CPUs of one group.
func (t Topology) of(l level, id int) cpuset.CPUSet {
	return t.in(func(c CPU) bool { return l(c) == id })
}

// groups are the ids of the groups that some CPUs are in.
func (t Topology) groups(l level, of cpuset.CPUSet) []int {
	var ids []int
	for _, c := range t.CPUs {
		if of.Contains(c.ID) && !slices.Contains(ids, l(c)) {
			ids = append(ids, l(c))
		}
	}
	slices.Sort(ids)
	return ids
}

// perCore is how many CPUs a core has.
func (t Topology) perCore() int {
	cores := len(t.groups(byCore, t.all()))
	if cores == 0 {
		return 1
	}
	return len(t.CPUs) / cores
}

// Nodes are the NUMA nodes that have CPUs.
func (t Topology) Nodes() []int { return t.groups(byNode, t.all()) }

// onNodes are the CPUs of some NUMA nodes.
func (t Topology) onNodes(n topologymanager.Nodes) cpuset.CPUSet {
	return t.in(func(c CPU) bool { return n.Has(c.Node) })
}

// ReadTopology reads it from /sys/devices/system, or a directory like it.
func ReadTopology(root string) (Topology, error) {
	text := func(path string) string {
		b, _ := os.ReadFile(filepath.Join(root, path))
		return strings.TrimSpace(string(b))
	}
	number := func(path string) int {
		n, err := strconv.Atoi(text(path))
		if err != nil {
			return 0 // as of a machine that has only one
		}
		return n
	}
	online, err := cpuset.Parse(text("cpu/online"))
	if err != nil || online.IsEmpty() {
		return Topology{}, fmt.Errorf("read which CPUs are online: %q", text("cpu/online"))
	}
	t := Topology{Distances: map[int]map[int]int{}}
	node := map[int]int{}
	if nodes, err := cpuset.Parse(text("node/online")); err == nil {
		for _, n := range nodes.List() {
			if cpus, err := cpuset.Parse(text(fmt.Sprintf("node/node%d/cpulist", n))); err == nil {
				for _, c := range cpus.List() {
					node[c] = n
				}
			}
			t.Distances[n] = map[int]int{}
			for i, d := range strings.Fields(text(fmt.Sprintf("node/node%d/distance", n))) {
				if all := nodes.List(); i < len(all) {
					t.Distances[n][all[i]], _ = strconv.Atoi(d)
				}
			}
		}
	}
	first := map[[2]int]int{} // a core is known by its first CPU: numbers of cores come again in each socket
	for _, id := range online.List() {
		dir := fmt.Sprintf("cpu/cpu%d/", id)
		c := CPU{ID: id, Socket: number(dir + "topology/physical_package_id"), Node: node[id], Cache: number(dir + "cache/index3/id")}
		key := [2]int{c.Socket, number(dir + "topology/core_id")}
		if _, err := os.Stat(filepath.Join(root, dir, "topology/core_id")); err != nil {
			key = [2]int{c.Socket, -1 - id}
		}
		if _, known := first[key]; !known {
			first[key] = id
		}
		c.Core = first[key]
		t.CPUs = append(t.CPUs, c)
	}
	slices.SortFunc(t.CPUs, func(a, b CPU) int { return cmp.Compare(a.ID, b.ID) })
	return t, nil
}
