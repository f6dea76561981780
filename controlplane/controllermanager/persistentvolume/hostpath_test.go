package persistentvolume

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

// TestDirectories: a directory is made once and removed with what is in it; links in it
// lead nowhere.
func TestDirectories(t *testing.T) {
	base := t.TempDir()
	directory, outside := filepath.Join(base, "hostpath_pv"), filepath.Join(base, "outside")
	no := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	no(removeDirectory(t.Context(), directory, "a")) // nothing is there
	no(os.Mkdir(outside, 0o755))
	no(os.WriteFile(filepath.Join(outside, "kept"), nil, 0o644))
	no(makeDirectory(directory, "a"))
	no(makeDirectory(directory, "a"))
	no(makeDirectory(directory, "b"))
	no(os.MkdirAll(filepath.Join(directory, "a/b/c"), 0o755))
	no(os.Symlink(outside, filepath.Join(directory, "a/link")))
	no(os.Symlink(outside, filepath.Join(directory, "c")))
	if err := makeDirectory(directory, "c"); err == nil {
		t.Error("a link counts as the directory")
	}
	no(removeDirectory(t.Context(), directory, "a"))
	no(removeDirectory(t.Context(), directory, "c"))
	left, err := os.ReadDir(directory)
	if no(err); len(left) != 1 || left[0].Name() != "b" {
		t.Errorf("left: %v", left)
	}
	if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
		t.Error(err)
	}
}

// TestDirectoryOfOthers: what somebody else has put in the directory's place is not used.
func TestDirectoryOfOthers(t *testing.T) {
	base := t.TempDir()
	directory, outside := filepath.Join(base, "hostpath_pv"), filepath.Join(base, "outside")
	for name, put := range map[string]func() error{
		"a link":                 func() error { return os.Symlink(outside, directory) },
		"a file":                 func() error { return os.WriteFile(directory, nil, 0o600) },
		"writable for everybody": func() error { return os.Mkdir(directory, 0o777) },
		"of somebody else":       func() error { return os.Mkdir(directory, 0o750) },
	} {
		if err := os.MkdirAll(filepath.Join(outside, "a"), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := put(); err != nil {
			t.Fatal(err)
		}
		switch name {
		case "writable for everybody":
			if err := os.Chmod(directory, 0o777); err != nil {
				t.Fatal(err)
			}
		case "of somebody else":
			if os.Geteuid() != 0 {
				os.Remove(directory)
				continue
			}
			if err := os.Chown(directory, 4711, 4711); err != nil {
				t.Fatal(err)
			}
		}
		if err := makeDirectory(directory, "a"); err == nil {
			t.Errorf("%s: a directory is made", name)
		}
		if err := removeDirectory(t.Context(), directory, "a"); err == nil {
			t.Errorf("%s: a directory is removed", name)
		}
		if _, err := os.Stat(filepath.Join(outside, "a")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		os.Remove(directory)
	}
}

// TestOurs: only a volume whose name, path and maker fit together leads to a removal.
func TestOurs(t *testing.T) {
	const uid = "11111111-2222-3333-4444-555555555555"
	for name, c := range map[string]struct {
		change func(v *corev1.PersistentVolume)
		want   string
	}{
		"ours":             {func(*corev1.PersistentVolume) {}, uid},
		"another's maker":  {func(v *corev1.PersistentVolume) { v.Annotations = nil }, ""},
		"another's name":   {func(v *corev1.PersistentVolume) { v.Name = "pvc-1" }, ""},
		"another's path":   {func(v *corev1.PersistentVolume) { v.Spec.HostPath.Path = HostPathDirectory + "/other" }, ""},
		"below it":         {func(v *corev1.PersistentVolume) { v.Spec.HostPath.Path += "/etc" }, ""},
		"out of it":        {func(v *corev1.PersistentVolume) { v.Spec.HostPath.Path = HostPathDirectory + "/x/../" + uid }, ""},
		"all of them":      {func(v *corev1.PersistentVolume) { v.Name, v.Spec.HostPath.Path = "pvc-hostpath_pv", HostPathDirectory }, ""},
		"the one above":    {func(v *corev1.PersistentVolume) { v.Name, v.Spec.HostPath.Path = "pvc-..", HostPathDirectory+"/.." }, ""},
		"itself":           {func(v *corev1.PersistentVolume) { v.Name, v.Spec.HostPath.Path = "pvc-.", HostPathDirectory+"/." }, ""},
		"elsewhere":        {func(v *corev1.PersistentVolume) { v.Spec.HostPath.Path = "/etc/" + uid }, ""},
		"of no host path":  {func(v *corev1.PersistentVolume) { v.Spec.HostPath = nil }, ""},
		"a slash too many": {func(v *corev1.PersistentVolume) { v.Spec.HostPath.Path += "/" }, ""},
	} {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + uid, Annotations: map[string]string{volume.AnnDynamicallyProvisioned: hostPath}}}
		v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: HostPathDirectory + "/" + uid}
		c.change(v)
		if got := ours(v, HostPathDirectory); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if got := ours(v, ""); got != "" {
			t.Errorf("%s: %q where no volumes are made", name, got)
		}
	}
	if strings.HasSuffix(HostPathDirectory, "/") {
		t.Error("the directory's name ends with a slash")
	}
}
