package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestIO1: what is done to devices is read where the kernel counts it.
func TestIO1(t *testing.T) {
	const none = "Total 0\n"
	bytes, count := "254:0 Read 4096\n254:0 Write 8192\nTotal 12288\n", "254:0 Read 1\n254:0 Write 2\nTotal 3\n"
	counted := []IOCount{{254, 0, "Read", 4096, 1}, {254, 0, "Write", 8192, 2}}
	for name, c := range map[string]struct {
		files map[string]string
		want  []IOCount
	}{
		"scheduler":               {map[string]string{"bfq.io_service_bytes_recursive": bytes, "bfq.io_serviced_recursive": count, "throttle.io_service_bytes_recursive": "254:0 Read 1\n"}, counted},
		"throttle layer":          {map[string]string{"bfq.io_service_bytes_recursive": none, "bfq.io_serviced_recursive": none, "throttle.io_service_bytes_recursive": bytes, "throttle.io_serviced_recursive": count}, counted},
		"kernels before 5.0":      {map[string]string{"throttle.io_service_bytes": bytes, "throttle.io_serviced": count}, counted},
		"nothing counted":         {map[string]string{"throttle.io_service_bytes_recursive": none, "throttle.io_serviced_recursive": none}, nil},
		"no such controller":      {nil, nil},
		"lines that say nothing":  {map[string]string{"throttle.io_service_bytes_recursive": "254 Read 1\n:0 Read 1\n254:0 Read x\n254:0\n\n" + bytes, "throttle.io_serviced_recursive": count}, counted},
		"counts of other devices": {map[string]string{"throttle.io_service_bytes_recursive": bytes, "throttle.io_serviced_recursive": "8:0 Read 1\n"}, []IOCount{{254, 0, "Read", 4096, 0}, {254, 0, "Write", 8192, 0}, {8, 0, "Read", 0, 1}}},
	} {
		dir := t.TempDir()
		for file, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, "blkio."+file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := (&Tree{}).NewReader().io1(dir); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
