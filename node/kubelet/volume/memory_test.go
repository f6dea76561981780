package volume

import (
	"context"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"knarr/node/kubelet/podtest"
)

func TestMemorySize(t *testing.T) {
	for name, c := range map[string]struct {
		pod         int64
		limit, want string
	}{
		"the pod's":             {1 << 30, "", "1Gi"},
		"less":                  {1 << 30, "1Mi", "1Mi"},
		"more than the pod has": {1 << 30, "2Gi", "1Gi"},
		"none":                  {1 << 30, "0", "1Gi"},
		"nobody knows":          {0, "", "0"},
		"only the volume's":     {0, "1Mi", "1Mi"},
	} {
		m := &Manager{Config: Config{PodMemory: func(*corev1.Pod) int64 { return c.pod }}}
		var limit *resource.Quantity
		if c.limit != "" {
			limit = new(resource.MustParse(c.limit))
		}
		if got, want := m.memorySize(nil, limit), resource.MustParse(c.want); got != want.Value() {
			t.Errorf("%s: %d, want %s", name, got, c.want)
		}
	}
}

func TestPageSize(t *testing.T) {
	request := func(sizes ...string) corev1.ResourceRequirements {
		r := corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}
		for _, s := range sizes {
			r.Requests[corev1.ResourceName("hugepages-"+s)] = resource.MustParse("1Gi")
		}
		return r
	}
	pod := func(whole corev1.ResourceRequirements, containers ...corev1.ResourceRequirements) *corev1.Pod {
		p := podtest.Pod("p", "a", "b")
		p.Spec.Resources = &whole
		for i, r := range containers {
			p.Spec.Containers[i].Resources = r
		}
		return p
	}
	for name, c := range map[string]struct {
		pod          *corev1.Pod
		medium, want string
	}{
		"the only one":      {pod(request(), request("2Mi"), request("2Mi")), "HugePages", "2M"},
		"of the pod":        {pod(request("1Gi")), "HugePages", "1G"},
		"named":             {pod(request(), request("2Mi"), request("1Gi")), "HugePages-1Gi", "1G"},
		"two":               {pod(request("1Gi"), request("2Mi")), "HugePages", "medium: HugePages can't be used if container requests multiple huge page sizes"},
		"not requested":     {pod(request(), request("2Mi")), "HugePages-1Gi", "medium HugePages-1Gi: hugePages storage requested, but there is no resource request for huge pages"},
		"nothing requested": {pod(request()), "HugePages", "medium HugePages: hugePages storage requested, but there is no resource request for huge pages"},
	} {
		got, err := pageSize(c.pod, corev1.StorageMedium(c.medium))
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestNoSwap: what is in memory because it is secret is not written to a disk, where the
// kernel knows how, and no more of it than the pod can have.
func TestNoSwap(t *testing.T) {
	needRoot(t)
	m := manager(t)
	m.PodMemory = func(*corev1.Pod) int64 { return 1 << 20 }
	m.Secret = func(string, string) (*corev1.Secret, error) {
		return &corev1.Secret{Data: map[string][]byte{"key": []byte("value")}}, nil
	}
	got, _, err := m.Mount(t.Context(), podtest.Use(podWith(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}})), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Unmount(context.Background(), "u"); err != nil {
			t.Error(err)
		}
	}()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, " "+got["v"].Path+" ") {
			continue
		}
		if !strings.Contains(line, "size=1024k") || strings.Contains(line, "noswap") != m.NoSwap() {
			t.Errorf("noswap is %v, mounted is %s", m.NoSwap(), line)
		}
		return
	}
	t.Error("not mounted")
}
