package main

import (
	"os/exec"
	"strings"
	"testing"
)

// TestUnit does with a node what the suite does with a kubelet of systemd's.
func TestUnit(t *testing.T) {
	starts := 0
	u := &unit{command: func() *exec.Cmd { starts++; return exec.Command("sleep", "1000") }}
	defer u.stop()
	if err := u.start(); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ args, want string }{
		{"list-units *kubelet* --state=running", "running"},
		{"reset-failed kubelet-node", ""},
		{"stop kubelet-node", ""},
		{"list-units *kubelet* --state=running", ""},
		{"list-units *kubelet*", "dead"},
		{"restart kubelet-node", ""},
		{"list-units *kubelet* --state=running", "running"},
		{"restart kubelet-node", ""},
	} {
		out, err := u.do(strings.Fields(step.args))
		if err != nil || !strings.Contains(out, step.want) || step.want == "" && out != "" {
			t.Errorf("systemctl %s: %q, %v, want %q", step.args, out, err, step.want)
		}
	}
	if starts != 3 {
		t.Errorf("it was started %d times, not 3", starts)
	}
	for _, args := range []string{"stop containerd.service", "mask kubelet-node"} {
		if _, err := u.do(strings.Fields(args)); err == nil {
			t.Errorf("systemctl %s says nothing", args)
		}
	}
}
