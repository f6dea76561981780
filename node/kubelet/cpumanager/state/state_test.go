package state

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What upstream's kubelet of v1.36 writes.
const upstreams = `{"policyName":"static","defaultCpuSet":"0-1,4-5","entries":{"pod1":{"c":"2-3"}},"checksum":553840751}`

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
	if err := os.WriteFile(path, []byte(strings.Replace(upstreams, "2-3", "2-4", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Read(path); err == nil || err.Error() != "checkpoint is corrupted" {
		t.Errorf("changed: %v", err)
	}
}
