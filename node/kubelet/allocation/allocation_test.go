package allocation

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func asking(uid types.UID, cpu string) *corev1.Pod {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}
	p.Spec.Resources = &corev1.ResourceRequirements{Limits: list}
	p.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: corev1.ResourceRequirements{Requests: list}}}
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}}
	return p
}

// cpus are all that a pod asks for, pod, init container and container.
func cpus(p *corev1.Pod) string {
	return p.Spec.Resources.Limits.Cpu().String() + p.Spec.InitContainers[0].Resources.Requests.Cpu().String() +
		p.Spec.Containers[0].Resources.Requests.Cpu().String() + p.Spec.Containers[0].Resources.Limits.Cpu().String()
}

func TestStore(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Allocated(asking("new", "1")); cpus(got) != "1111" {
		t.Errorf("a new pod has %s", cpus(got))
	}
	for _, uid := range []types.UID{"a", "damaged", "../../evil"} {
		if err := s.Set(asking(uid, "1")); err != nil {
			t.Fatal(err)
		}
	}
	if outside, _ := filepath.Glob(filepath.Join(dir, "*")); len(outside) != 1 {
		t.Errorf("files outside the directory: %v", outside)
	}
	if err := os.WriteFile(s.path("damaged"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.path("../../evil"), s.path("another")); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(dir); err != nil {
		t.Fatal(err)
	}
	want := asking("a", "2")
	if got := s.Allocated(want); cpus(got) != "1111" || cpus(want) != "2222" {
		t.Errorf("the pod has %s and asks for %s", cpus(got), cpus(want))
	}
	same := asking("a", "1000m")
	if s.Allocated(same) != same {
		t.Error("a pod that has what it asks for is another")
	}
	if got := s.Pods(); len(got) != 1 {
		t.Errorf("known after damage: %v", got)
	}
	// The status tells of a pod that began and has no record.
	lost := asking("damaged", "2")
	lost.Status.StartTime = &metav1.Time{}
	had := asking("", "1").Spec.Containers[0].Resources
	lost.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: had.Requests, Resources: &had}}
	if got := s.Allocated(lost); cpus(got) != "2211" {
		t.Errorf("without a record the pod has %s", cpus(got))
	}
	if err := s.Remove("a"); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "allocated")); len(left) != 0 {
		t.Errorf("left on disk: %v", left)
	}
}
