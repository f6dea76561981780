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

// A pod with an iSCSI disk is told what the node lacks, and what iscsiadm says; either way
// it can go again.
func TestISCSI(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin)
	m := New(Config{PodsDir: dir})
	mount := func() error {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}}
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "192.0.2.1", IQN: "iqn.2026-01.example:x", ISCSIInterface: "default"}}}}
		_, _, err := m.Mount(t.Context(), podtest.Use(p), nil)
		return err
	}
	if _, missing := helper("iscsiadm", ""); missing != nil {
		if err := mount(); err == nil || !strings.Contains(err.Error(), `MountVolume.WaitForAttach failed for volume "v" : this node has no iscsiadm: install open-iscsi`) {
			t.Error(err)
		}
	}
	script := "#!/bin/sh\necho \"$@\" >> " + filepath.Join(bin, "log") + "\ncase \"$*\" in *--discover*) echo refused; exit 4;; esac\n"
	if err := os.WriteFile(filepath.Join(bin, "iscsiadm"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := mount(); err == nil || !strings.Contains(err.Error(), "failed to sendtargets to portal 192.0.2.1:3260") || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
	if d, err := readDisk(m.diskNotes("uid", "v")); err != nil || d.IQN != "iqn.2026-01.example:x" || d.Portals[0] != "192.0.2.1:3260" {
		t.Errorf("noted: %+v %v", d, err)
	}
	if err := m.Unmount(t.Context(), "uid"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "uid")); !os.IsNotExist(err) {
		t.Errorf("the pod's directory is left: %v", err)
	}
}
