package containerruntime

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"knarr/internal/programs"
)

func TestConfigDefaults(t *testing.T) {
	c, err := Config{Root: "/data/containerd"}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if c.State != "/data/containerd-state" || c.Programs != "/data/containerd/bin" || c.SandboxImage != DefaultSandboxImage {
		t.Errorf("defaults %+v", c)
	}
	for name, bad := range map[string]Config{
		"no root":        {},
		"same directory": {Root: "/a", State: "/a"},
		"long state":     {Root: "/a", State: "/" + strings.Repeat("x", 100)},
	} {
		if _, err := bad.withDefaults(); err == nil {
			t.Errorf("%s: is accepted", name)
		}
	}
}

func TestShimSockets(t *testing.T) {
	for state, want := range map[string]string{"/run/knarr": "/run/knarr/s"} {
		if got := shimSockets(state); got != want {
			t.Errorf("%s: %s, want %s", state, got, want)
		}
	}
	long := "/var/lib/" + strings.Repeat("x", 60)
	got, other := shimSockets(long), shimSockets(long+"y")
	if len(got) > 42 || !strings.HasPrefix(got, "/run/knarr-") || got == other {
		t.Errorf("%s and %s", got, other)
	}
}

func TestFullName(t *testing.T) {
	for name, want := range map[string]string{
		"latest":              "",
		"busybox:1":           "docker.io/library/busybox:1",
		"user/app":            "docker.io/user/app:latest",
		"example.com:5/a/b:1": "example.com:5/a/b:1",
		"a/UPPER:1":           "",
	} {
		if got := fullName(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestMatching(t *testing.T) {
	image := func(name string, content string) images.Image {
		return images.Image{Name: name, Target: ocispec.Descriptor{Digest: digest.FromString(content)}}
	}
	id := digest.FromString("config").String()
	all := []images.Image{
		image("docker.io/library/app:1", "a"), image("docker.io/library/app:2", "a"),
		image("example.com/other:latest", "b"), image(id, "b"), image("example.com/other@"+digest.FromString("b").String(), "b"),
	}
	for name, want := range map[string][]string{
		"app:1":                             {"docker.io/library/app:1"},
		"example.com/other":                 {"example.com/other:latest", id, all[4].Name},
		id:                                  {id, "example.com/other:latest", all[4].Name},
		digest.FromString("a").String():     {all[0].Name, all[1].Name},
		"missing":                           nil,
		"docker.io/library/app:3":           nil,
		"sha256:" + strings.Repeat("0", 64): nil,
	} {
		if got := matching(all, name); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestNext(t *testing.T) {
	shim := func(pid int, socket string) process {
		return process{pid, 1, []string{"/x/" + programs.Shim, "-namespace", "k8s.io", "-id", "a", "-address", socket}}
	}
	pids := func(list []process) (pids []int) {
		for _, p := range list {
			pids = append(pids, p.pid)
		}
		return pids
	}
	all := []process{
		{1, 0, []string{"init"}}, shim(10, "/ours"), shim(20, "/theirs"),
		{11, 10, []string{"app"}}, {12, 11, []string{"child"}}, {21, 20, []string{"app"}},
		{30, 1, []string{"grep", programs.Shim, "-address", "/ours"}},
	}
	if got := pids(next(all, "/ours")); !slices.Equal(got, []int{11, 12}) {
		t.Errorf("first %v, want the containers' 11 and 12", got)
	}
	if got := pids(next(all[:3], "/ours")); !slices.Equal(got, []int{10}) {
		t.Errorf("then %v, want the shim 10", got)
	}
	other := process{40, 1, []string{"/usr/bin/containerd-shim-kata-v2", "-namespace", "k8s.io", "-address", "/ours", "-id", "a"}}
	if got := pids(next(append(all[:1:1], other, process{41, 40, []string{"qemu"}}), "/ours")); !slices.Equal(got, []int{41}) {
		t.Errorf("of another runtime's shim %v, want its 41", got)
	}
	if got := pids(next([]process{other}, "/ours")); !slices.Equal(got, []int{40}) {
		t.Errorf("another runtime's shim: %v, want it", got)
	}
	if got := next(all, "/nobody"); len(got) != 0 {
		t.Errorf("of nobody's: %v", got)
	}
}

func TestRemoveCgroup(t *testing.T) {
	for name, files := range map[string][]string{
		"version 2": {"kube/pod1/c1", "kube/pod2", "other"},
		"version 1": {"cpu/kube/pod1", "memory/kube/pod1/c1", "memory/other"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for _, dir := range files {
				if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if name == "version 2" {
				if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := removeCgroup(context.Background(), root, "/kube"); err != nil {
				t.Fatal(err)
			}
			left, _ := filepath.Glob(filepath.Join(root, "*", "kube"))
			if _, err := os.Stat(filepath.Join(root, "kube")); err == nil || len(left) > 0 {
				t.Errorf("left: %v %v", err, left)
			}
			for _, top := range []string{"other", "memory/other"} {
				if slices.Contains(files, top) {
					if _, err := os.Stat(filepath.Join(root, top)); err != nil {
						t.Error(err)
					}
				}
			}
			if err := removeCgroup(context.Background(), root, "/"); err != nil {
				t.Errorf("the root group: %v", err)
			}
			if _, err := os.Stat(root); err != nil {
				t.Error("the root group is removed")
			}
		})
	}
}

func TestPauseArchiveIsTheSameEveryTime(t *testing.T) {
	a, _, err := pauseArchive("example.com/a:1", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := pauseArchive("example.com/a:1", []byte("x"))
	if err != nil || string(a) != string(b) {
		t.Errorf("archives differ: %v", err)
	}
}
