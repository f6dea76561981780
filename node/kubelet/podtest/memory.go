package podtest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Memory gives the NUMA nodes of a directory of CPUs as many GiB each, and huge pages of
// 2 MiB.
func Memory(t testing.TB, root string, nodes, gib, hugepages int) {
	t.Helper()
	for node := range nodes {
		dir := filepath.Join(root, fmt.Sprintf("node/node%d", node))
		huge := filepath.Join(dir, "hugepages/hugepages-2048kB")
		if err := os.MkdirAll(huge, 0o755); err != nil {
			t.Fatal(err)
		}
		for path, text := range map[string]string{
			filepath.Join(dir, "meminfo"):       fmt.Sprintf("Node %d MemTotal:       %d kB\nNode %d MemFree:        8437288 kB\n", node, gib<<20, node),
			filepath.Join(huge, "nr_hugepages"): fmt.Sprintf("%d\n", hugepages),
		} {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
