package podtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// CPUs is a directory like /sys/devices/system of a machine whose CPUs are siblings half
// of all apart and alternate between its sockets, each of which is a NUMA node.
func CPUs(t testing.TB, cpus, sockets int) string {
	t.Helper()
	root := t.TempDir()
	put := func(path, text string) {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("cpu/online", fmt.Sprintf("0-%d", cpus-1))
	put("node/online", fmt.Sprintf("0-%d", sockets-1))
	lists := make([][]string, sockets)
	for id := range cpus {
		core := id % (cpus / 2)
		socket := core % sockets
		put(fmt.Sprintf("cpu/cpu%d/topology/core_id", id), fmt.Sprint(core/sockets))
		put(fmt.Sprintf("cpu/cpu%d/topology/physical_package_id", id), fmt.Sprint(socket))
		put(fmt.Sprintf("cpu/cpu%d/cache/index3/id", id), fmt.Sprint(socket))
		lists[socket] = append(lists[socket], fmt.Sprint(id))
	}
	for node, list := range lists {
		put(fmt.Sprintf("node/node%d/cpulist", node), strings.Join(list, ","))
		var distances []string
		for other := range sockets {
			distances = append(distances, fmt.Sprint(10+11*min(1, max(node-other, other-node))))
		}
		put(fmt.Sprintf("node/node%d/distance", node), strings.Join(distances, " "))
	}
	return root
}
