package volume

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/internal/need"
	"knarr/node/kubelet/podtest"
)

// disk is a device of 32 MiB with nothing on it.
func disk(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 32<<20); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", file).Output()
	if err != nil {
		t.Skip("no loop device can be had: ", err)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", device).Run() })
	return device
}

// TestLocalDisk: a disk gets a file system once, pods share it, one of them
// read-only, and what was written stays.
func TestLocalDisk(t *testing.T) {
	need.Root(t)
	if _, err := helper("mkfs.ext4", ""); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.Local = &corev1.LocalVolumeSource{Path: disk(t), FSType: new("")} // as if it were not there
	m := New(Config{PodsDir: dir, Claim: func(context.Context, *corev1.Pod, string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim, error) {
		return pv, &corev1.PersistentVolumeClaim{}, nil
	}})
	mount := func(uid types.UID, readOnly bool) (string, error) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: uid}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: readOnly}}}}
		t.Cleanup(func() { _ = m.Unmount(context.Background(), string(uid)) })
		got, _, err := m.Mount(t.Context(), podtest.Use(pod), nil)
		return got["v"].Path, err
	}
	if _, err := mount("early", true); err == nil || !strings.Contains(err.Error(), "cannot mount unformatted disk") {
		t.Errorf("an empty disk, read-only: %v", err)
	}
	one, err := mount("one", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(one, "file"), []byte("data"), 0o644); err != nil {
		t.Fatal(err)
	}
	two, err := mount("two", true)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(two, "file")); string(b) != "data" {
		t.Errorf("the second pod reads %q, %v", b, err)
	}
	if err := os.WriteFile(filepath.Join(two, "file"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("the second pod writes: %v", err)
	}
	for _, uid := range []string{"one", "two"} {
		if err := m.Unmount(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	three, err := mount("three", false)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(three, "file")); string(b) != "data" {
		t.Errorf("a later pod reads %q, %v", b, err)
	}
	if err := m.Unmount(t.Context(), "three"); err != nil {
		t.Fatal(err)
	}
	pv.Spec.Local.FSType = new("ext2000")
	if _, err := mount("four", false); err == nil || !strings.Contains(err.Error(), `failed to mount the volume as "ext2000"; already contains ext4`) {
		t.Errorf("another file system: %v", err)
	}
	for _, own := range []string{"proc", "sysfs", "devtmpfs"} {
		pv.Spec.Local.FSType = &own
		if path, err := mount("own", false); err == nil || !strings.Contains(err.Error(), "set spec.local.fsType to what is on the disk") || mounted(path) {
			t.Errorf("%s of the node: %v", own, err)
		}
	}
	pv.Spec.Local.FSType = new("ext2") // mounted by the same driver
	if _, err := mount("kin", false); err != nil && !strings.Contains(err.Error(), "Mount error") {
		t.Errorf("another name of it: %v", err)
	}
	pv.Spec.Local.FSType = new("/../ext4")
	if _, err := mount("path", false); err == nil || !strings.Contains(err.Error(), `"/../ext4" is no name of a file system`) {
		t.Errorf("a path for a file system: %v", err)
	}
	pv.Spec.Local = &corev1.LocalVolumeSource{Path: "/dev/null"}
	if _, err := mount("five", false); err == nil || !strings.Contains(err.Error(), "only directory and block device are supported") {
		t.Errorf("no disk: %v", err)
	}
}

func TestFormat(t *testing.T) {
	for out, want := range map[string]string{
		"DEVNAME=/dev/x\nTYPE=ext4\n": "ext4",
		"PTTYPE=dos\n":                "unknown data, probably partitions",
		"TYPE=xfs\nPTTYPE=gpt\n":      "unknown data, probably partitions",
	} {
		if got, err := format(out); got != want || err != nil {
			t.Errorf("%q: %q, %v", out, got, err)
		}
	}
	if _, err := format("what"); err == nil {
		t.Error("nothing known is no error")
	}
}
