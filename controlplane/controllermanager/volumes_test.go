package controllermanager

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var binder = []string{"persistentvolume-binder-controller", "persistentvolumeclaim-protection-controller",
	"persistentvolume-protection-controller", "serviceaccount-controller"}

func claimOf(name, size string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: meta(name), Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: amounts("storage=" + size)}}}
	for _, f := range change {
		f(c)
	}
	return c
}

func volumeOf(name, size string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: amounts("storage=" + size), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv/" + name}}}}
	for _, f := range change {
		f(v)
	}
	return v
}

func (c *cluster) claim(claim *corev1.PersistentVolumeClaim) {
	c.Helper()
	_, err := c.client.CoreV1().PersistentVolumeClaims("default").Create(c.ctx, claim, metav1.CreateOptions{})
	c.no(err)
}

func (c *cluster) volume(v *corev1.PersistentVolume) {
	c.Helper()
	_, err := c.client.CoreV1().PersistentVolumes().Create(c.ctx, v, metav1.CreateOptions{})
	c.no(err)
}

// storage is every claim with its phase and volume, and every volume with its
// phase and claim.
func (c *cluster) storage() string {
	c.Helper()
	claims, err := c.client.CoreV1().PersistentVolumeClaims("default").List(c.ctx, metav1.ListOptions{})
	c.no(err)
	volumes, err := c.client.CoreV1().PersistentVolumes().List(c.ctx, metav1.ListOptions{})
	c.no(err)
	var all []string
	for _, o := range claims.Items {
		all = append(all, strings.TrimSuffix(fmt.Sprintf("%s %s %s", o.Name, o.Status.Phase, o.Spec.VolumeName), " "))
	}
	for _, o := range volumes.Items {
		s := fmt.Sprintf("%s %s", o.Name, o.Status.Phase)
		if ref := o.Spec.ClaimRef; ref != nil {
			s += " " + ref.Name
		}
		all = append(all, s)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// stored waits until the claims and volumes are as wanted.
func (c *cluster) stored(want string) {
	c.Helper()
	c.until(want, func() (bool, error) {
		got := c.storage()
		return got == want, fmt.Errorf("got %s", got)
	})
}

func TestVolumesAreBound(t *testing.T) {
	inCluster(t, binder, func(c *cluster) {
		core := c.client.CoreV1()
		// Volumes that come after the claims are found by them.
		c.claim(claimOf("a", "2Gi"))
		c.claim(claimOf("b", "1Gi"))
		c.stored("a Pending, b Pending")
		c.volume(volumeOf("small", "1Gi"))
		c.stored("a Pending, b Bound small, small Bound b")
		c.volume(volumeOf("large", "3Gi"))
		c.stored("a Bound large, b Bound small, large Bound a, small Bound b")
		a, err := core.PersistentVolumeClaims("default").Get(c.ctx, "a", metav1.GetOptions{})
		c.no(err)
		if got := a.Status.Capacity.Storage().String(); got != "3Gi" {
			t.Errorf("capacity %s", got)
		}
		// A claim's end releases its volume, which is nobody else's then.
		c.no(core.PersistentVolumeClaims("default").Delete(c.ctx, "a", metav1.DeleteOptions{}))
		c.stored("b Bound small, large Released a, small Bound b")
		c.claim(claimOf("a", "1Gi"))
		c.stored("a Pending, b Bound small, large Released a, small Bound b")
		// Without its claim it is free again.
		_, err = core.PersistentVolumes().Patch(c.ctx, "large", "application/merge-patch+json", []byte(`{"spec":{"claimRef":null}}`), metav1.PatchOptions{})
		c.no(err)
		c.stored("a Bound large, b Bound small, large Bound a, small Bound b")
		// A claim whose volume is gone is lost.
		_, err = core.PersistentVolumes().Patch(c.ctx, "small", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		c.no(err)
		c.no(core.PersistentVolumes().Delete(c.ctx, "small", metav1.DeleteOptions{}))
		c.until("small is gone or protected", func() (bool, error) {
			v, err := core.PersistentVolumes().Get(c.ctx, "small", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return true, nil
			}
			if err == nil && len(v.Finalizers) > 0 {
				_, err = core.PersistentVolumes().Patch(c.ctx, "small", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			}
			return false, err
		})
		c.stored("a Bound large, b Lost small, large Bound a")
	})
}

// A volume that is given to another claim, as volume populators do, is bound to that one,
// and the one that had it is lost, which populators wait for.
func TestVolumeGivenToAnother(t *testing.T) {
	inCluster(t, binder, func(c *cluster) {
		core := c.client.CoreV1()
		c.claim(claimOf("filled", "1Gi"))
		c.volume(volumeOf("v", "1Gi"))
		c.stored("filled Bound v, v Bound filled")
		c.claim(claimOf("wanted", "1Gi"))
		c.stored("filled Bound v, v Bound filled, wanted Pending")
		wanted, err := core.PersistentVolumeClaims("default").Get(c.ctx, "wanted", metav1.GetOptions{})
		c.no(err)
		_, err = core.PersistentVolumes().Patch(c.ctx, "v", "application/merge-patch+json",
			fmt.Appendf(nil, `{"spec":{"claimRef":{"namespace":"default","name":"wanted","uid":%q,"resourceVersion":%q}}}`, wanted.UID, wanted.ResourceVersion), metav1.PatchOptions{})
		c.no(err)
		c.stored("filled Lost v, v Bound wanted, wanted Bound v")
	})
}

// pairs checks that each bound claim and its volume name each other.
func (c *cluster) pairs() {
	c.Helper()
	claims, err := c.client.CoreV1().PersistentVolumeClaims("default").List(c.ctx, metav1.ListOptions{})
	c.no(err)
	for _, o := range claims.Items {
		v, err := c.client.CoreV1().PersistentVolumes().Get(c.ctx, o.Spec.VolumeName, metav1.GetOptions{})
		c.no(err)
		if ref := v.Spec.ClaimRef; ref == nil || ref.UID != o.UID || o.Annotations["pv.kubernetes.io/bind-completed"] != "yes" {
			c.Errorf("%s has %s, which is of %v", o.Name, v.Name, ref)
		}
	}
}

// Whatever order many claims and volumes come in, each claim gets one that fits
// and none is given twice.
func TestManyVolumesAreBound(t *testing.T) {
	inCluster(t, binder, func(c *cluster) {
		const n = 40
		for i := range n {
			c.claim(claimOf(fmt.Sprintf("c%02d", i), fmt.Sprintf("%dMi", n-i)))
			c.volume(volumeOf(fmt.Sprintf("v%02d", i), fmt.Sprintf("%dMi", n)))
		}
		c.until("all are bound", func() (bool, error) {
			got := c.storage()
			return strings.Count(got, "Bound") == 2*n, fmt.Errorf("got %s", got)
		})
		c.pairs()
	})
}

// A class that becomes the default is given to claims without one.
func TestDefaultClassLater(t *testing.T) {
	inCluster(t, binder, func(c *cluster) {
		c.claim(claimOf("a", "1Gi"))
		c.stored("a Pending")
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "gold", Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}}, Provisioner: "d.example.com"}
		_, err := c.client.StorageV1().StorageClasses().Create(c.ctx, class, metav1.CreateOptions{})
		c.no(err)
		c.until("the claim is its provisioner's", func() (bool, error) {
			a, err := c.client.CoreV1().PersistentVolumeClaims("default").Get(c.ctx, "a", metav1.GetOptions{})
			if err != nil || a.Spec.StorageClassName == nil {
				return false, err
			}
			const name = "volume.kubernetes.io/storage-provisioner"
			return *a.Spec.StorageClassName == "gold" && a.Annotations[name] == "d.example.com", fmt.Errorf("annotations %v", a.Annotations)
		})
	})
}

// An ephemeral volume's claim is made, made again when it is deleted, and not
// taken from whoever has its name.
func TestEphemeralVolumes(t *testing.T) {
	inCluster(t, []string{"ephemeral-volume-controller", "serviceaccount-controller"}, func(c *cluster) {
		core := c.client.CoreV1()
		claims := core.PersistentVolumeClaims("default")
		c.claim(claimOf("p-taken", "1Gi"))
		pod := func(name, volume string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: meta(name), Spec: corev1.PodSpec{Containers: template.Spec.Containers, Volumes: []corev1.Volume{
				{Name: volume, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
					VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: claimOf("", "1Gi").Spec}}}}}}}
		}
		for _, p := range []*corev1.Pod{pod("q", "own"), pod("p", "taken")} {
			_, err := core.Pods("default").Create(c.ctx, p, metav1.CreateOptions{})
			c.no(err)
		}
		made := func(not string) func() (bool, error) {
			return func() (bool, error) {
				o, err := claims.Get(c.ctx, "q-own", metav1.GetOptions{})
				return err == nil && string(o.UID) != not && o.OwnerReferences[0].Name == "q", err
			}
		}
		c.until("the claim is there", made(""))
		c.until("the other pod has an event", func() (bool, error) {
			list, err := core.Events("default").List(c.ctx, metav1.ListOptions{})
			return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
				return e.Reason == "FailedBinding" && e.Source.Component == "ephemeral_volume" &&
					e.Message == "ephemeral volume taken: PVC default/p-taken was not created for pod default/p (pod is not owner)"
			}), err
		})
		first, err := claims.Get(c.ctx, "q-own", metav1.GetOptions{})
		c.no(err)
		c.no(claims.Delete(c.ctx, "q-own", metav1.DeleteOptions{}))
		_, err = claims.Patch(c.ctx, "q-own", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		c.no(err)
		c.until("the claim is there again", made(string(first.UID)))
	})
}

// A bound claim that asks for more is its driver's resizer's, which an event says
// once for each size.
func TestExpansionIsHandedOver(t *testing.T) {
	inCluster(t, append(binder, "persistentvolume-expander-controller"), func(c *cluster) {
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, Provisioner: "d.example.com", AllowVolumeExpansion: new(true)}
		_, err := c.client.StorageV1().StorageClasses().Create(c.ctx, class, metav1.CreateOptions{})
		c.no(err)
		c.claim(claimOf("a", "1Gi", func(o *corev1.PersistentVolumeClaim) { o.Spec.StorageClassName = new("gold") }))
		c.volume(volumeOf("v", "1Gi", func(o *corev1.PersistentVolume) {
			o.Spec.StorageClassName = "gold"
			o.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: "h"}}
		}))
		c.stored("a Bound v, v Bound a")
		time.Sleep(time.Second) // events made in one instant share a name
		claims := c.client.CoreV1().PersistentVolumeClaims("default")
		_, err = claims.Patch(c.ctx, "a", "application/merge-patch+json", []byte(`{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`), metav1.PatchOptions{})
		c.no(err)
		events := func() (n int32) {
			list, err := c.client.CoreV1().Events("default").List(c.ctx, metav1.ListOptions{})
			c.no(err)
			for _, e := range list.Items {
				if e.Reason == "ExternalExpanding" && e.Message == "waiting for an external controller to expand this PVC" && e.Source.Component == "volume_expand" {
					n += e.Count
				}
			}
			return n
		}
		c.until("the event is there", func() (bool, error) { n := events(); return n == 1, fmt.Errorf("%d events", n) })
		_, err = claims.Patch(c.ctx, "a", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"l":"1"}}}`), metav1.PatchOptions{})
		c.no(err)
		time.Sleep(time.Minute)
		if n := events(); n != 1 {
			t.Errorf("%d events", n)
		}
	})
}
