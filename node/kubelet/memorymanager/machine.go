package memorymanager

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
)

// A Node is what one NUMA node has, in bytes.
type Node struct {
	ID     int
	Memory uint64
	// HugePages are by their resource, all of them whether they are in use or not.
	HugePages map[corev1.ResourceName]uint64
}

// ReadNodes reads them from /sys/devices/system, or a directory like it. A kernel that
// knows no NUMA nodes has all of its memory and huge pages on one; hugepages are by the
// end of their resource's name.
func ReadNodes(root string, memory int64, hugepages map[string]int64) ([]Node, error) {
	online, err := os.ReadFile(filepath.Join(root, "node/online"))
	if os.IsNotExist(err) {
		n := Node{Memory: uint64(max(memory, 0)), HugePages: map[corev1.ResourceName]uint64{}}
		for size, bytes := range hugepages {
			n.HugePages[corev1.ResourceName(corev1.ResourceHugePagesPrefix+size)] = uint64(max(bytes, 0))
		}
		return []Node{n}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read which NUMA nodes are online: %w", err)
	}
	set, err := cpuset.Parse(strings.TrimSpace(string(online)))
	if err != nil {
		return nil, fmt.Errorf("read which NUMA nodes are online: %w", err)
	}
	var nodes []Node
	for _, id := range set.List() {
		n, err := readNode(filepath.Join(root, "node", "node"+strconv.Itoa(id)), id)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func readNode(dir string, id int) (Node, error) {
	n := Node{ID: id, HugePages: map[corev1.ResourceName]uint64{}}
	info, err := os.ReadFile(filepath.Join(dir, "meminfo"))
	if err != nil {
		return n, fmt.Errorf("read the memory of NUMA node %d: %w", id, err)
	}
	found := false
	for line := range strings.Lines(string(info)) {
		// Node 0 MemTotal:       24684100 kB
		if f := strings.Fields(line); len(f) == 5 && f[2] == "MemTotal:" {
			kb, err := strconv.ParseUint(f[3], 10, 53)
			if err != nil {
				return n, fmt.Errorf("read the memory of NUMA node %d: %w", id, err)
			}
			n.Memory, found = kb<<10, true
		}
	}
	if !found {
		return n, fmt.Errorf("read the memory of NUMA node %d: no MemTotal in %s", id, filepath.Join(dir, "meminfo"))
	}
	sizes, err := filepath.Glob(filepath.Join(dir, "hugepages", "hugepages-*kB"))
	if err != nil {
		return n, err
	}
	for _, size := range sizes {
		kb, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(size), "hugepages-"), "kB"), 10, 43)
		if err != nil {
			return n, fmt.Errorf("read the huge pages of NUMA node %d: %w", id, err)
		}
		b, err := os.ReadFile(filepath.Join(size, "nr_hugepages"))
		if err != nil {
			return n, fmt.Errorf("read the huge pages of NUMA node %d: %w", id, err)
		}
		count, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 43)
		if err != nil {
			return n, fmt.Errorf("read the huge pages of NUMA node %d: %w", id, err)
		}
		name := corev1.ResourceHugePagesPrefix + resource.NewQuantity(int64(kb<<10), resource.BinarySI).String()
		n.HugePages[corev1.ResourceName(name)] = count * kb << 10
	}
	return n, nil
}
