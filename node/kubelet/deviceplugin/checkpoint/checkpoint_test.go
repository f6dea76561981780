package checkpoint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What upstream's kubelet of v1.36 writes.
const upstreams = `{"Data":{"PodDeviceEntries":[{"PodUID":"uid-1","ContainerName":"c","ResourceName":"example.com/gpu","DeviceIDs":{"-1":["b"],"0":["a"]},"AllocResp":"CgUKAWsSAXY="}],"RegisteredDevices":{"example.com/gpu":["a","b"]}},"Checksum":593267853}`

// TestUpstreamsForm: upstream's file is read, and written alike.
func TestUpstreamsForm(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, Name)
	if err := os.WriteFile(path, []byte(upstreams), 0o600); err != nil {
		t.Fatal(err)
	}
	entries, registered, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, entries, registered); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(b)) != upstreams {
		t.Errorf("%s, %v", b, err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(upstreams, "uid-1", "uid-2", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "checkpoint is corrupted") {
		t.Errorf("changed: %v", err)
	}
}
