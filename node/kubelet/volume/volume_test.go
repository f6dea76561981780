package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/internal/need"
	"knarr/node/kubelet/podtest"
)

func files(kv ...string) map[string]File {
	out := map[string]File{}
	for i := 0; i < len(kv); i += 2 {
		out[kv[i]] = File{Data: []byte(kv[i+1]), Mode: 0o640}
	}
	return out
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "..") {
			out = append(out, e.Name())
		}
	}
	return out
}

func TestWriteAtomic(t *testing.T) {
	dir := t.TempDir()
	write := func(f map[string]File) bool {
		t.Helper()
		changed, err := WriteAtomic(dir, f, nil)
		if err != nil {
			t.Fatal(err)
		}
		return changed
	}
	if !write(files("a", "1", "d/b", "2")) {
		t.Error("nothing written")
	}
	link, _ := os.Readlink(filepath.Join(dir, "..data"))
	if write(files("a", "1", "d/b", "2")) {
		t.Error("written again although nothing changed")
	}
	if !write(files("a", "3", "c", "4")) {
		t.Error("a change was not written")
	}
	if now, _ := os.Readlink(filepath.Join(dir, "..data")); now == link || !strings.HasPrefix(now, "..2") {
		t.Errorf("..data leads to %s", now)
	}
	if _, err := os.Stat(filepath.Join(dir, link)); !os.IsNotExist(err) {
		t.Error("the old directory is still there")
	}
	if got := names(t, dir); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("%v", got)
	}
	b, err := os.ReadFile(filepath.Join(dir, "a"))
	if string(b) != "3" || err != nil {
		t.Errorf("%q %v", b, err)
	}
	if to, _ := os.Readlink(filepath.Join(dir, "a")); to != "..data/a" {
		t.Errorf("a leads to %s", to)
	}
	if st, _ := os.Stat(filepath.Join(dir, "a")); st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v", st.Mode())
	}
	for _, bad := range []string{"/x", "../x", "a/../../x", ""} {
		if _, err := WriteAtomic(dir, files(bad, ""), nil); err == nil {
			t.Errorf("%q was written", bad)
		}
	}
}

func manager(t *testing.T) *Manager {
	cm := &corev1.ConfigMap{Data: map[string]string{"k": "v", "j": "w"}, BinaryData: map[string][]byte{"b": {0, 1}}}
	return New(Config{
		PodsDir: t.TempDir(),
		ConfigMap: func(_, name string) (*corev1.ConfigMap, error) {
			if name != "cm" {
				return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmap"}, name)
			}
			return cm, nil
		},
	})
}

func podWith(v corev1.VolumeSource) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Name: "p", Namespace: "ns"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: v}}}}
}

func configMap(name string, optional bool, items ...corev1.KeyToPath) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: &optional, Items: items}}
}

func TestMountConfigMap(t *testing.T) {
	m := manager(t)
	for _, c := range []struct {
		name string
		v    corev1.VolumeSource
		want []string
		err  string
	}{
		{"all", configMap("cm", false), []string{"b", "j", "k"}, ""},
		{"items", configMap("cm", false, corev1.KeyToPath{Key: "k", Path: "x/y"}), []string{"x"}, ""},
		{"optional", configMap("gone", true), nil, ""},
		{"missing", configMap("gone", false), nil, `MountVolume.SetUp failed for volume "v" : configmap "gone" not found`},
		{"missing key", configMap("cm", false, corev1.KeyToPath{Key: "no", Path: "x"}), nil, `MountVolume.SetUp failed for volume "v" : references non-existent config key: no`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := m.Mount(context.Background(), podtest.Use(podWith(c.v)), nil)
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if n := names(t, got["v"].Path); !slices.Equal(n, c.want) || !got["v"].ReadOnly {
				t.Errorf("%v %+v", n, got["v"])
			}
		})
	}
	if err := m.Unmount(context.Background(), "u"); err != nil {
		t.Fatal(err)
	}
	if left, _ := m.Pods(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestHostPathTypes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		kind corev1.HostPathType
		ok   bool
	}{
		{dir, corev1.HostPathDirectory, true}, {file, corev1.HostPathDirectory, false}, {file, corev1.HostPathFile, true},
		{dir, corev1.HostPathFile, false}, {filepath.Join(dir, "no"), corev1.HostPathUnset, true}, {filepath.Join(dir, "no"), corev1.HostPathDirectory, false},
		{filepath.Join(dir, "new"), corev1.HostPathDirectoryOrCreate, true}, {filepath.Join(dir, "newf"), corev1.HostPathFileOrCreate, true},
		{file, corev1.HostPathSocket, false}, {"/dev/null", corev1.HostPathCharDev, true}, {"/dev/null", corev1.HostPathBlockDev, false},
	} {
		if err := checkHostPath(&corev1.HostPathVolumeSource{Path: c.path, Type: &c.kind}); (err == nil) != c.ok {
			t.Errorf("%s as %s: %v", c.path, c.kind, err)
		}
	}
}

func TestTokenIsRenewedInTime(t *testing.T) {
	m := manager(t)
	asked := 0
	refresh := time.Now().Add(time.Hour)
	m.Token = func(context.Context, *corev1.Pod, *corev1.ServiceAccountTokenProjection) (string, time.Time, error) {
		asked++
		return "t", refresh, nil
	}
	p := podWith(corev1.VolumeSource{})
	for range 2 {
		if _, next, err := m.token(context.Background(), p, &corev1.ServiceAccountTokenProjection{}); err != nil || !next.Equal(refresh) {
			t.Fatal(next, err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	refresh = time.Now().Add(-time.Second)
	m.forgetTokens("u")
	for range 2 {
		_, _, _ = m.token(context.Background(), p, &corev1.ServiceAccountTokenProjection{})
	}
	if asked != 3 {
		t.Errorf("asked %d times for tokens that have expired", asked)
	}
}

func needRoot(t *testing.T) {
	need.Root(t)
}

func TestMemoryEmptyDir(t *testing.T) {
	needRoot(t)
	m := manager(t)
	got, _, err := m.Mount(context.Background(), podtest.Use(podWith(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}})), nil)
	if err != nil {
		t.Fatal(err)
	}
	path := got["v"].Path
	if !mounted(path) {
		t.Error("not mounted")
	}
	if err := m.Unmount(context.Background(), "u"); err != nil {
		t.Fatal(err)
	}
	if mounted(path) {
		t.Error("still mounted")
	}
}

func TestSubPath(t *testing.T) {
	needRoot(t)
	m := manager(t)
	defer func() {
		if err := m.Unmount(context.Background(), "u"); err != nil {
			t.Error(err)
		}
	}()
	root, outside := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "f"), []byte("in"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"out": outside, "up": "../..", "in": "f", "abs": "/etc"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for sub, ok := range map[string]bool{"f": true, "in": true, "new/dir": true, "out": false, "up": false, "abs": false, "../x": false, "/etc": false, "out/x": false, "up/x": false} {
		got, err := m.SubPath(t.Context(), "u", "v", "c", 0, root, sub)
		if (err == nil) != ok {
			t.Errorf("%s: %q %v", sub, got, err)
		}
	}
	for range 2 { // again after a restart of the container
		got, err := m.SubPath(t.Context(), "u", "v", "c", 1, root, "in")
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(got); string(b) != "in" || err != nil {
			t.Errorf("%q %v", b, err)
		}
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 0 {
		t.Error("something was made outside")
	}
}

// A path of a volume in memory that is made for a container has the mode of the volume,
// whose files are its group's, and each only its owner's to remove.
func TestSubPathMode(t *testing.T) {
	needRoot(t)
	m := manager(t)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(123))}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}}
	defer func() {
		if err := m.Unmount(context.Background(), "u"); err != nil {
			t.Error(err)
		}
	}()
	mounts, _, err := m.Mount(t.Context(), podtest.Use(p), nil)
	if err != nil {
		t.Fatal(err)
	}
	sub, err := m.SubPath(t.Context(), "u", "v", "c", 0, mounts["v"].Path, "a/b")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{mounts["v"].Path, filepath.Join(mounts["v"].Path, "a"), sub} {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := st.Mode().String(); got != "dgtrwxrwxrwx" {
			t.Errorf("%s is %s, want dgtrwxrwxrwx", path, got)
		}
	}
}

// TestSubPathRace: a container that puts a link where a directory is being made changes no
// file outside its volume.
func TestSubPathRace(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	for path, mode := range map[string]os.FileMode{root: 0o777, outside: 0o700} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	link, sub := filepath.Join(root, "link"), filepath.Join(root, "sub")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			_ = unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, sub, unix.RENAME_EXCHANGE)
		}
	}()
	for range 1000 {
		if made, err := mkdirBeneath(fd, "sub"); err == nil {
			unix.Close(made)
		}
		_ = os.Remove(sub) // whichever of both is the directory
		_ = os.Remove(link)
		_ = unix.Symlink(outside, link)
	}
	stop()
	<-stopped
	st, err := os.Stat(outside)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o700 {
		t.Errorf("a directory outside has mode %v", st.Mode())
	}
}

// What a volume leads to is never removed with the pod.
func TestUnmountKeepsTheSource(t *testing.T) {
	needRoot(t)
	m := manager(t)
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.SubPath(t.Context(), "u", "v", "c", 0, root, ""); err != nil {
		t.Fatal(err)
	}
	if err := m.Unmount(context.Background(), "u"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "precious")); err != nil {
		t.Error(err)
	}
}

// TestContentIsBounded: a list of items that copies one secret many times does
// not fill the node's memory.
func TestContentIsBounded(t *testing.T) {
	needRoot(t)
	m := manager(t)
	m.Secret = func(string, string) (*corev1.Secret, error) {
		return &corev1.Secret{Data: map[string][]byte{"k": make([]byte, 1<<20)}}, nil
	}
	s := &corev1.SecretVolumeSource{SecretName: "s"}
	for i := range 65 {
		s.Items = append(s.Items, corev1.KeyToPath{Key: "k", Path: fmt.Sprint("p", i)})
	}
	defer func() {
		if err := m.Unmount(context.Background(), "u"); err != nil {
			t.Error(err)
		}
	}()
	for name, source := range map[string]corev1.VolumeSource{
		"secret":    {Secret: s},
		"projected": {Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Items: s.Items}}}}},
	} {
		if _, _, err := m.Mount(context.Background(), podtest.Use(podWith(source)), nil); !errors.Is(err, errContent) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.Items = s.Items[:8]
	if _, _, err := m.Mount(context.Background(), podtest.Use(podWith(corev1.VolumeSource{Secret: s})), nil); err != nil {
		t.Error(err)
	}
}

// TestUnusedVolume: nothing is done about a volume that no container has, also if it
// could not be had, until an ephemeral container has it.
func TestUnusedVolume(t *testing.T) {
	m := New(Config{PodsDir: t.TempDir(), ConfigMap: func(namespace, name string) (*corev1.ConfigMap, error) {
		return nil, errors.New("there is none")
	}})
	p := podWith(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	podtest.Use(p)
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "none", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}})
	got, _, err := m.Mount(t.Context(), p, nil)
	if _, ok := got["none"]; err != nil || ok || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	late := corev1.EphemeralContainerCommon{Name: "late", VolumeMounts: []corev1.VolumeMount{{Name: "none", MountPath: "/none"}}}
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: late}}
	if _, _, err := m.Mount(t.Context(), p, nil); err == nil || !strings.Contains(err.Error(), "there is none") {
		t.Errorf("a volume that a container has now: %v", err)
	}
}

// TestVolumeGroup: the annotation of a volume is a group, or nothing.
func TestVolumeGroup(t *testing.T) {
	for value, want := range map[string]int64{"1234": 1234, "0": 0, "": -1, "staff": -1, "-5": -1, "99999999999": -1} {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"pv.beta.kubernetes.io/gid": value}}}
		if got := volumeGroup(pv); got == nil && want >= 0 || got != nil && *got != want {
			t.Errorf("%q: %v, want %d", value, got, want)
		}
	}
}
