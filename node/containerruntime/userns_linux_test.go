package containerruntime

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestUserNamespace: a container has ids of its own, and what is mounted into it belongs
// to the same users there as on the node.
func TestUserNamespace(t *testing.T) {
	if isolated(t) {
		return
	}
	ctx := t.Context()
	n := newNode(t)
	// As a cluster's own directory: users of no other name pass through.
	if err := os.Chmod(filepath.Dir(n.config.State), 0o711); err != nil {
		t.Fatal(err)
	}
	status, err := n.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range status.RuntimeHandlers {
		if (h.Name == "" || h.Name == "runc") && !h.Features.GetUserNamespaces() {
			t.Errorf("handler %q offers no user namespaces", h.Name)
		}
	}
	ids := []*cri.IDMapping{{HostId: 3 << 16, Length: 1 << 16}}
	n.users = &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}
	volume := t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(filepath.Join(volume, "file"), 7, 9); err != nil {
		t.Fatal(err)
	}
	n.podConfig = func(c *cri.ContainerConfig) {
		c.Mounts = []*cri.Mount{{HostPath: volume, ContainerPath: "/volume", UidMappings: ids, GidMappings: ids}}
	}
	sandbox, container, err := n.pod(ctx, "users")
	if err != nil {
		t.Fatal(err)
	}
	s, err := n.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: container, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(s.Info["info"]), &info); err != nil || info.Pid == 0 {
		t.Fatalf("no process: %v", err)
	}
	proc := fmt.Sprintf("/proc/%d", info.Pid)
	for _, name := range []string{"uid_map", "gid_map"} {
		b, err := os.ReadFile(filepath.Join(proc, name))
		if err != nil || strings.Join(strings.Fields(string(b)), " ") != "0 196608 65536" {
			t.Errorf("%s is %q, %v", name, b, err)
		}
	}
	for path, want := range map[string][2]uint32{"/volume/file": {3<<16 + 7, 3<<16 + 9}, "/pause": {3 << 16, 3 << 16}} {
		info, err := os.Stat(proc + "/root" + path)
		if err != nil {
			t.Error(err)
			continue
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != want[0] || st.Gid != want[1] {
			t.Errorf("%s belongs to %d:%d, want %v", path, st.Uid, st.Gid, want)
		}
	}
	if err := n.remove(ctx, sandbox); err != nil {
		t.Fatal(err)
	}
}
