package containerruntime

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// parserPath is where containerd looks whether the machine has AppArmor, and its program to
// load profiles. The guest of test/vm has it elsewhere: other tests there are without.
const (
	parserPath      = "/sbin/apparmor_parser"
	guestParserPath = "/given/apparmor_parser"
)

// loadProfile has the kernel know a profile of AppArmor until the test ends.
func loadProfile(t *testing.T, text string) {
	t.Helper()
	parser := func(does string) {
		cmd := exec.Command(parserPath, does)
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v: %s", cmd, err, out)
		}
	}
	parser("--replace")
	t.Cleanup(func() { parser("--remove") })
}

// TestConfinedOutput: what a container writes is seen, and so is that of a command in it, though
// an AppArmor profile of the node's keeps it from all files: also where it opens its outputs again.
func TestConfinedOutput(t *testing.T) {
	if on, err := os.ReadFile("/sys/module/apparmor/parameters/enabled"); (err != nil || on[0] != 'Y') && os.Getenv("KNARR_GUEST") == "" {
		t.Skip("needs a kernel with AppArmor: make vm")
	}
	if _, err := os.Stat(parserPath); err != nil && os.Getenv("KNARR_GUEST") == "" {
		t.Skip("needs AppArmor's programs: make vm")
	} else if err != nil {
		if err := os.Symlink(guestParserPath, parserPath); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(parserPath)
	}
	if isolated(t) {
		return
	}
	loadProfile(t, "profile knarr-test-confined flags=(attach_disconnected) { file, capability, network, signal, ptrace, deny /** w, }\n")
	n := newNode(t)
	const script = `echo kept; echo opened >/dev/stdout; echo wrong >/dev/stderr; echo no >/file || echo refused; exec /bin/busybox sleep 1000`
	sandbox, container := n.shell(t, "confined", script, func(c *cri.ContainerConfig) {
		c.Linux.SecurityContext.Apparmor = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: "knarr-test-confined"}
	})
	want := []string{"kept", "opened", "refused", "wrong"}
	path := n.await(t, container, cri.ContainerState_CONTAINER_RUNNING).LogPath
	for until := time.Now().Add(60 * time.Second); ; <-time.After(10 * time.Millisecond) {
		log, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(string(log)) {
			if word := strings.Fields(line); !strings.Contains(line, "can't create /file") {
				got = append(got, word[len(word)-1])
			}
		}
		if slices.Sort(got); slices.Equal(got, want) {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("the log is %q", log)
		}
	}
	if got := n.exec(t, container, "/bin/busybox", "sh", "-c", "echo kept; echo opened >/dev/stdout"); got != "kept\nopened" {
		t.Errorf("a command says %q", got)
	}
	if err := n.remove(t.Context(), sandbox); err != nil {
		t.Error(err)
	}
	n.nothingLeft(t)
}
