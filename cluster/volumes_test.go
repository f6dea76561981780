package cluster_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/controlplane/controllermanager"
	"knarr/controlplane/scheduler"
	"knarr/internal/apitest"
	"knarr/internal/run"
)

// TestPodWithLocalVolume: a claim whose class waits for its first consumer is
// bound, by the scheduler and the controller together, to the one volume that is
// there, and its pod goes to that volume's node.
func TestPodWithLocalVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := apitest.New(t)
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		as := func(name string, groups ...string) *rest.Config {
			return s.Config(&user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)})
		}
		sched, err := scheduler.New(scheduler.Config{Kube: as("system:kube-scheduler")})
		if err != nil {
			t.Fatal(err)
		}
		manager, err := controllermanager.New(controllermanager.Config{
			Kube: as("system:kube-controller-manager"),
			ClientFor: func(account string) *rest.Config {
				return as("system:serviceaccount:kube-system:"+account, "system:serviceaccounts", "system:serviceaccounts:kube-system")
			},
			Controllers: []string{"serviceaccount-controller", "persistentvolume-binder-controller"},
		})
		if err != nil {
			t.Fatal(err)
		}
		var parts run.Group
		for name, part := range map[string]interface{ Run(context.Context) error }{"scheduler": sched, "manager": manager} {
			parts.Go(name, func() {
				if err := part.Run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Second) // until the service account is there
		create(t, ctx, s.Client(t))
		var got *corev1.Pod
		for range 100 {
			synctest.Wait()
			if got, err = s.Client(t).CoreV1().Pods("default").Get(ctx, "p", metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
			if got.Spec.NodeName != "" {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		claim, err := s.Client(t).CoreV1().PersistentVolumeClaims("default").Get(ctx, "c", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Spec.NodeName != "two" || claim.Spec.VolumeName != "local" || claim.Status.Phase != corev1.ClaimBound {
			t.Errorf("pod on %q, conditions %v, claim %s to %q", got.Spec.NodeName, got.Status.Conditions, claim.Status.Phase, claim.Spec.VolumeName)
		}
		cancel()
		parts.Wait()
	})
}

// create stores two nodes, a local volume on the second, a claim of its class and
// a pod with the claim.
func create(t *testing.T, ctx context.Context, client kubernetes.Interface) {
	t.Helper()
	core, size := client.CoreV1(), corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	no := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"one", "two"} {
		n, err := core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}, metav1.CreateOptions{})
		no(n, err)
		n.Spec.Taints = nil
		n, err = core.Nodes().Update(ctx, n, metav1.UpdateOptions{})
		no(n, err)
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourcePods: resource.MustParse("10")}
		n.Status.Capacity = n.Status.Allocatable
		no(core.Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}))
	}
	class, wait := "local", storagev1.VolumeBindingWaitForFirstConsumer
	no(client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &wait}, metav1.CreateOptions{}))
	once := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	no(core.PersistentVolumes().Create(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Spec: corev1.PersistentVolumeSpec{
		StorageClassName: class, AccessModes: once, Capacity: size,
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/x"}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"two"}}},
		}}}},
	}}, metav1.CreateOptions{}))
	no(core.PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &class, AccessModes: once, Resources: corev1.VolumeResourceRequirements{Requests: size},
	}}, metav1.CreateOptions{}))
	no(core.Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: "example.test/i:1"}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
		}}},
	}}, metav1.CreateOptions{}))
}
