package containerruntime

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestPauseProfile: the sandbox's program is confined, and the others are by
// profiles of their own; an asker who wants none gets none.
func TestPauseProfile(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	sandbox, _, err := n.pod(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	confined := map[bool]int{}
	shim := n.shimPid(t)
	// A container has started when its first program is told to become it.
	for until := time.Now().Add(20 * time.Second); confined[true]+confined[false] < 2 && time.Now().Before(until); <-time.After(time.Millisecond) {
		clear(confined)
		all, err := processes()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			if p.parent != shim || p.args[0] != "/pause" {
				continue
			}
			if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid)); err == nil {
				confined[strings.Contains(string(status), "\nSeccomp:\t2\n")]++
			}
		}
	}
	// The container is the same program, without a profile.
	if confined[true] != 1 || confined[false] != 1 {
		t.Errorf("with a filter %d, without %d, want one each", confined[true], confined[false])
	}
	if err := n.remove(t.Context(), sandbox); err != nil {
		t.Error(err)
	}
	n.nothingLeft(t)
}

func TestNarrow(t *testing.T) {
	e := &executor{}
	request := func(kind cri.SecurityProfile_ProfileType) *cri.RunPodSandboxRequest {
		return &cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{Linux: &cri.LinuxPodSandboxConfig{
			SecurityContext: &cri.LinuxSandboxSecurityContext{Seccomp: &cri.SecurityProfile{ProfileType: kind, LocalhostRef: "theirs"}},
		}}}
	}
	given := func(r *cri.RunPodSandboxRequest) string {
		e.narrow(r)
		s := r.Config.Linux.SecurityContext.Seccomp
		return fmt.Sprint(s.ProfileType, " ", s.LocalhostRef)
	}
	if got := given(request(cri.SecurityProfile_RuntimeDefault)); got != "RuntimeDefault theirs" {
		t.Errorf("with another sandbox image: %s", got)
	}
	e.pauseProfile.Store("ours")
	for kind, want := range map[cri.SecurityProfile_ProfileType]string{
		cri.SecurityProfile_RuntimeDefault: "Localhost ours",
		cri.SecurityProfile_Localhost:      "Localhost theirs",
		cri.SecurityProfile_Unconfined:     "Unconfined theirs",
	} {
		if got := given(request(kind)); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
	e.narrow(&cri.RunPodSandboxRequest{})
	none := request(0)
	none.Config.Linux.SecurityContext.Seccomp = nil
	if e.narrow(none); none.Config.Linux.SecurityContext.Seccomp != nil {
		t.Error("a sandbox without a profile got one")
	}
}
