package kubelet

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/need"
	"knarr/node/kubelet/podfile"
	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/volume"
)

// TestCountedVolumes: what the file system has counted of an emptyDir takes the place of its
// files, and of nothing else.
func TestCountedVolumes(t *testing.T) {
	dir := t.TempDir()
	pod := podtest.Pod("p", "a")
	for name, s := range map[string]corev1.VolumeSource{
		"counted": {EmptyDir: &corev1.EmptyDirVolumeSource{}}, "walked": {EmptyDir: &corev1.EmptyDirVolumeSource{}},
		"map": {ConfigMap: &corev1.ConfigMapVolumeSource{}}, "memory": {EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}},
	} {
		v := corev1.Volume{Name: name, VolumeSource: s}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v)
		path := filepath.Join(dir, "volumes", localKind(&v), name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "file"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := podfile.Usage{Bytes: 5 << 20, Inodes: 1}
	s, err := measureFiles(t.Context(), pod, dir, dir, func(_ *corev1.Pod, path string) (podfile.Usage, bool) {
		return want, filepath.Base(path) != "walked"
	}, func(podStorage) {})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.volumes["counted"]; got != want {
		t.Errorf("%+v", got)
	}
	for _, name := range []string{"walked", "map"} {
		if got := s.volumes[name]; got.Inodes != 2 || got.Bytes >= want.Bytes {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if _, ok := s.volumes["memory"]; ok {
		t.Error("memory counts as the node's disk")
	}
}

// TestProjectQuotas: where the feature is on and the file system counts by project, a pod with
// users of its own is evicted for what it has in a file without a name; where it is off, and
// for other pods, files are counted that have one.
func TestProjectQuotas(t *testing.T) {
	need.Root(t)
	for _, on := range []bool{true, false} {
		n := newNode(t)
		if _, err := volume.NewProjects(n.dir); err != nil {
			if os.Getenv("KNARR_GUEST") != "" {
				t.Fatal(err)
			}
			t.Skip("needs a file system with project quotas, make vm has one: ", err)
		}
		n.rt.StopCode = 137
		n.rt.Handlers = []*cri.RuntimeHandler{{Features: &cri.RuntimeHandlerFeatures{UserNamespaces: true}}}
		n.config = func(c *Config) {
			c.Settings.FeatureGates = map[string]bool{"LocalStorageCapacityIsolationFSQuotaMonitoring": on}
		}
		stop := n.start()
		n.until("what the runtime can on the Node", func() bool {
			have := n.k.node.Load()
			return have != nil && have.Status.Features != nil && *have.Status.Features.SupplementalGroupsPolicy
		})
		for _, p := range []*corev1.Pod{ownUsers("confined"), podtest.Pod("other", "other")} {
			limit := resource.MustParse("1Mi")
			p.Spec.Volumes = []corev1.Volume{{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
			n.api.addPod(podtest.Use(p))
			n.until("ready", n.ready(p.Name))
			f, err := os.Create(filepath.Join(n.k.volumes.PodDir(string(p.UID)), "volumes", "kubernetes.io~empty-dir", "empty", "hidden"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := os.Remove(f.Name()); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Write(make([]byte, 2<<20)); err != nil {
				t.Fatal(err)
			}
		}
		n.k.enforceLimits(t.Context())
		for name, want := range map[string]string{
			"confined": map[bool]string{true: `Usage of EmptyDir volume "empty" exceeds the limit "1Mi". `}[on],
			"other":    "",
		} {
			if got := n.endMessage(name); got != want {
				t.Errorf("the feature %v: %s: %q, want %q", on, name, got, want)
			}
		}
		stop()
	}
}
