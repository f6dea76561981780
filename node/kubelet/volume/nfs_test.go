package volume

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/node/kubelet/podtest"
)

// A pod's own NFS volume is mounted by the host's helper; where there is none the
// pod is told what is missing.
func TestNFS(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin)
	program := func(name, script string) {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m := New(Config{PodsDir: dir})
	mount := func(s corev1.NFSVolumeSource) (Mounted, error) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}}
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{NFS: &s}}}
		out, _, err := m.Mount(t.Context(), podtest.Use(p), nil)
		return out["v"], err
	}
	_, missing := helper("mount.nfs", "")
	if _, err := mount(corev1.NFSVolumeSource{Server: "s", Path: "/p"}); missing != nil && (err == nil || !strings.Contains(err.Error(), `MountVolume.SetUp failed for volume "v" : this node has no mount.nfs: install nfs-common`)) {
		t.Error(err)
	}
	program("mount.nfs", "")
	program("mount", `echo "$@" >> `+filepath.Join(bin, "log"))
	target := filepath.Join(dir, "uid", "volumes", "kubernetes.io~nfs", "v")
	for _, c := range []struct {
		s    corev1.NFSVolumeSource
		want string
	}{
		{corev1.NFSVolumeSource{Server: "s", Path: "/p"}, "-t nfs -- s:/p " + target},
		{corev1.NFSVolumeSource{Server: "fd00::1", Path: "/p", ReadOnly: true}, "-t nfs -o ro -- [fd00::1]:/p " + target},
		{corev1.NFSVolumeSource{Server: "-osuid", Path: "/p"}, "-t nfs -- -osuid:/p " + target},
	} {
		got, err := mount(c.s)
		if err != nil || got.Path != target || got.ReadOnly != c.s.ReadOnly {
			t.Errorf("%+v: %+v %v", c.s, got, err)
		}
		log, err := os.ReadFile(filepath.Join(bin, "log"))
		if err != nil || !strings.HasSuffix(string(log), "\n"+c.want+"\n") && string(log) != c.want+"\n" {
			t.Errorf("%+v: mount %s, want %s", c.s, log, c.want)
		}
	}
	program("mount", "echo refused; exit 32")
	if _, err := mount(corev1.NFSVolumeSource{Server: "s", Path: "/p"}); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
}
