package containerruntime

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/programs"
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

// TestPauseReplaced: a sandbox of another program under the sandbox image's name has
// the default profile, whose calls that program may need.
func TestPauseReplaced(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	rules := func(name string) int {
		t.Helper()
		sandbox, _, err := n.pod(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(n.config.State, bundlesName, imageNamespace, sandbox, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		var spec specs.Spec
		if err := json.Unmarshal(b, &spec); err != nil || spec.Linux.Seccomp == nil {
			t.Fatal("no profile", err)
		}
		if err := n.remove(t.Context(), sandbox); err != nil {
			t.Error(err)
		}
		return len(spec.Linux.Seccomp.Syscalls)
	}
	if got := rules("ours"); got != 1 {
		t.Errorf("the profile of the embedded program has %d rules, want one", got)
	}
	program, err := programs.Read(programs.Pause)
	if err != nil {
		t.Fatal(err)
	}
	archive, _, err := pauseArchive(DefaultSandboxImage, append(program, 0)) // another, that does the same
	if err != nil {
		t.Fatal(err)
	}
	images, err := OpenImages(n.config.withDefaultsForTest(t).Socket(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer images.Close()
	if _, err := images.LoadArchive(t.Context(), bytes.NewReader(archive), nil); err != nil {
		t.Fatal(err)
	}
	if got := rules("theirs"); got < 2 {
		t.Errorf("another program has a profile with %d rules, want the default one", got)
	}
}

// oneImage is what the store of images answers to every name.
type oneImage struct {
	images.Store
	digest digest.Digest
}

func (o oneImage) Get(_ context.Context, name string) (images.Image, error) {
	return images.Image{Name: name, Target: ocispec.Descriptor{Digest: o.digest}}, nil
}

func TestNarrow(t *testing.T) {
	e := &executor{images: oneImage{digest: "sha256:1"}}
	request := func(kind cri.SecurityProfile_ProfileType) *cri.RunPodSandboxRequest {
		return &cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{Linux: &cri.LinuxPodSandboxConfig{
			SecurityContext: &cri.LinuxSandboxSecurityContext{Seccomp: &cri.SecurityProfile{ProfileType: kind, LocalhostRef: "theirs"}},
		}}}
	}
	given := func(r *cri.RunPodSandboxRequest) string {
		e.narrow(t.Context(), r)
		s := r.Config.Linux.SecurityContext.Seccomp
		return fmt.Sprint(s.ProfileType, " ", s.LocalhostRef)
	}
	if got := given(request(cri.SecurityProfile_RuntimeDefault)); got != "RuntimeDefault theirs" {
		t.Errorf("before there is a profile: %s", got)
	}
	e.pause.Store(&pauseProfile{path: "ours", name: "pause", image: "sha256:2"})
	if got := given(request(cri.SecurityProfile_RuntimeDefault)); got != "RuntimeDefault theirs" {
		t.Errorf("with another sandbox image: %s", got)
	}
	e.pause.Store(&pauseProfile{path: "ours", name: "pause", image: "sha256:1"})
	for kind, want := range map[cri.SecurityProfile_ProfileType]string{
		cri.SecurityProfile_RuntimeDefault: "Localhost ours",
		cri.SecurityProfile_Localhost:      "Localhost theirs",
		cri.SecurityProfile_Unconfined:     "Unconfined theirs",
	} {
		if got := given(request(kind)); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
	e.narrow(t.Context(), &cri.RunPodSandboxRequest{})
	none := request(0)
	none.Config.Linux.SecurityContext.Seccomp = nil
	if e.narrow(t.Context(), none); none.Config.Linux.SecurityContext.Seccomp != nil {
		t.Error("a sandbox without a profile got one")
	}
}
