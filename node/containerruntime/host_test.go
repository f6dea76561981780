package containerruntime

import (
	"testing"

	"github.com/opencontainers/selinux/go-selinux"
)

func TestLabelled(t *testing.T) {
	for _, c := range []struct {
		enabled bool
		mode    int
		want    bool
	}{{false, selinux.Disabled, false}, {false, selinux.Enforcing, false}, {true, selinux.Permissive, false}, {true, selinux.Enforcing, true}} {
		if got := labelled(c.enabled, c.mode); got != c.want {
			t.Errorf("enabled %v, mode %d: %v", c.enabled, c.mode, got)
		}
		runtime := settings(Config{}, host{selinux: c.want})["io.containerd.cri.v1.runtime"]
		if runtime["enable_selinux"] != c.want {
			t.Errorf("containerd is told %v, want %v", runtime["enable_selinux"], c.want)
		}
	}
}
