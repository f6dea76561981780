package cluster

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"knarr/cluster/kubeletflags"
)

// TestPodsAgain: a kubelet that could not be made is tried again on its port, and says
// each time what it lacks, not that its own port is taken.
func TestPodsAgain(t *testing.T) {
	listener, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // nothing can be unpacked below a file
		t.Fatal(err)
	}
	flags, err := kubeletflags.Parse(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	o := &NodeOptions{NodeName: "node", KubeletPort: listener.Addr().(*net.TCPAddr).Port, kubelet: flags}
	n := &node{opts: o, layout: layout{dir}, sockets: newSockets(layout{dir}), kubelet: listener}
	for run := 1; run <= 3; run++ {
		if err := n.pods(t.Context()); err == nil || strings.Contains(err.Error(), "in use") {
			t.Errorf("run %d: %v", run, err)
		}
	}
}
