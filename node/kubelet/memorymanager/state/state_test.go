package state

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What upstream's kubelet of v1.36 writes.
const upstreams = `{"policyName":"Static","machineState":{"0":{"numberOfAssignments":2,"memoryMap":{"hugepages-2Mi":{"total":1073741824,"systemReserved":0,"allocatable":1073741824,"reserved":4194304,"free":1069547520},"memory":{"total":4294967296,"systemReserved":1073741824,"allocatable":2147483648,"reserved":1073741824,"free":1073741824}},"cells":[0]},"1":{"numberOfAssignments":0,"memoryMap":{"hugepages-2Mi":{"total":1073741824,"systemReserved":0,"allocatable":1073741824,"reserved":0,"free":1073741824},"memory":{"total":4294967296,"systemReserved":0,"allocatable":3221225472,"reserved":0,"free":3221225472}},"cells":[1]}},"entries":{"pod1":{"c":[{"numaAffinity":[0],"type":"memory","size":1073741824},{"numaAffinity":[0],"type":"hugepages-2Mi","size":4194304}]}},"checksum":987931296}`

// TestUpstreamsForm: upstream's file is read, and written alike.
func TestUpstreamsForm(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	if err := os.WriteFile(path, []byte(upstreams), 0o600); err != nil {
		t.Fatal(err)
	}
	c, ok, err := Read(path)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := Write(path, c); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(b)) != upstreams {
		t.Errorf("%s, %v", b, err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(upstreams, "Static", "None", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Read(path); err == nil || err.Error() != "checkpoint is corrupted" {
		t.Errorf("changed: %v", err)
	}
}
