package controllermanager

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

var attacher = []string{"persistentvolume-attach-detach-controller", "persistentvolume-binder-controller", "serviceaccount-controller"}

// disk is a claim bound to a volume of a CSI driver, both of that name.
func (c *cluster) disk(name string) {
	c.Helper()
	c.volume(volumeOf(name, "1Gi", func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: "disk " + name}}
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: name}
	}))
	c.claim(claimOf(name, "1Gi", func(o *corev1.PersistentVolumeClaim) { o.Spec.VolumeName = name }))
	c.until(name+" is bound", func() (bool, error) {
		o, err := c.client.CoreV1().PersistentVolumeClaims("default").Get(c.ctx, name, metav1.GetOptions{})
		return err == nil && o.Status.Phase == corev1.ClaimBound, err
	})
}

// join is a node whose kubelet leaves attaching to the controller.
func (c *cluster) join(name string) {
	c.Helper()
	_, err := c.client.CoreV1().Nodes().Create(c.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}}}, metav1.CreateOptions{})
	c.no(err)
	c.status(name, func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	})
}

// status changes the status of a node as its kubelet does.
func (c *cluster) status(name string, change func(*corev1.Node)) {
	c.Helper()
	c.no(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		n, err := c.client.CoreV1().Nodes().Get(c.ctx, name, metav1.GetOptions{})
		if err == nil {
			change(n)
			_, err = c.client.CoreV1().Nodes().UpdateStatus(c.ctx, n, metav1.UpdateOptions{})
		}
		return err
	}))
}

// uses says which disks a node has in use.
func (c *cluster) uses(name string, disks ...string) {
	c.Helper()
	c.status(name, func(n *corev1.Node) {
		n.Status.VolumesInUse = nil
		for _, disk := range disks {
			n.Status.VolumesInUse = append(n.Status.VolumesInUse, corev1.UniqueVolumeName("kubernetes.io/csi/d.example.com^disk "+disk))
		}
	})
}

// place makes a pod with a disk on a node.
func (c *cluster) place(pod, node, disk string) {
	c.Helper()
	_, err := c.client.CoreV1().Pods("default").Create(c.ctx, &corev1.Pod{ObjectMeta: meta(pod), Spec: corev1.PodSpec{NodeName: node, Containers: template.Spec.Containers,
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: disk}}}}}}, metav1.CreateOptions{})
	c.no(err)
}

func (c *cluster) kill(pod string) {
	c.Helper()
	c.no(c.client.CoreV1().Pods("default").Delete(c.ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
}

// attachAll does what an external attacher does.
func (c *cluster) attachAll() {
	c.Helper()
	list, err := c.client.StorageV1().VolumeAttachments().List(c.ctx, metav1.ListOptions{})
	c.no(err)
	for _, a := range list.Items {
		if a.Status.Attached || a.DeletionTimestamp != nil {
			continue
		}
		a.Status.Attached = true
		if _, err := c.client.StorageV1().VolumeAttachments().UpdateStatus(c.ctx, &a, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			c.Fatal(err)
		}
	}
}

// disks is every attachment, and what each Node says is attached.
func (c *cluster) disks() string {
	c.Helper()
	list, err := c.client.StorageV1().VolumeAttachments().List(c.ctx, metav1.ListOptions{})
	c.no(err)
	nodes, err := c.client.CoreV1().Nodes().List(c.ctx, metav1.ListOptions{})
	c.no(err)
	var all []string
	for _, a := range list.Items {
		pv := *a.Spec.Source.PersistentVolumeName
		if want := fmt.Sprintf("csi-%x", sha256.Sum256([]byte("disk "+pv+"d.example.com"+a.Spec.NodeName))); a.Name != want {
			c.Errorf("attachment %s, want %s", a.Name, want)
		}
		state := "attaching"
		if a.Status.Attached {
			state = "attached"
		}
		all = append(all, fmt.Sprintf("%s %s to %s", pv, state, a.Spec.NodeName))
	}
	for _, n := range nodes.Items {
		for _, o := range n.Status.VolumesAttached {
			all = append(all, n.Name+" has "+strings.TrimPrefix(string(o.Name), "kubernetes.io/csi/d.example.com^disk "))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func (c *cluster) attachments(want string) {
	c.Helper()
	c.until(want, func() (bool, error) {
		got := c.disks()
		return got == want, fmt.Errorf("got %s", got)
	})
}

// event waits for an event of a pod.
func (c *cluster) event(pod, reason, message string) {
	c.Helper()
	c.until(message, func() (bool, error) {
		list, err := c.client.CoreV1().Events("default").List(c.ctx, metav1.ListOptions{})
		var got []string
		for _, e := range list.Items {
			got = append(got, e.InvolvedObject.Name+" "+e.Reason+" "+e.Message+" "+e.Source.Component)
		}
		return err == nil && slices.Contains(got, pod+" "+reason+" "+message+" attachdetach-controller"), fmt.Errorf("%v %q", err, got)
	})
}

// A volume is attached for a pod, and detached when its node has unmounted it.
func TestVolumesAreAttached(t *testing.T) {
	inCluster(t, attacher, func(c *cluster) {
		c.join("a")
		c.disk("x")
		c.attachments("")
		c.place("p", "a", "x")
		c.attachments("x attaching to a")
		c.attachAll()
		c.attachments("a has x, x attached to a")
		c.event("p", "SuccessfulAttachVolume", `AttachVolume.Attach succeeded for volume "x" `)
		c.uses("a", "x")
		c.kill("p")
		time.Sleep(time.Hour) // a node that is well is waited for
		c.attachments("a has x, x attached to a")
		c.uses("a")
		c.attachments("")
	})
}

// A volume that one node may have goes to another once the first has let it go.
func TestVolumeMovesToAnotherNode(t *testing.T) {
	inCluster(t, attacher, func(c *cluster) {
		c.join("a")
		c.join("b")
		c.disk("x")
		c.place("p", "a", "x")
		c.attachments("x attaching to a")
		c.attachAll()
		c.uses("a", "x")
		c.place("q", "b", "x")
		c.event("q", "FailedAttachVolume", `Multi-Attach error for volume "x" Volume is already used by pod(s) p`)
		c.attachments("a has x, x attached to a")
		c.kill("p")
		c.uses("a")
		c.attachments("x attaching to b")
		c.attachAll()
		c.attachments("b has x, x attached to b")
	})
}

// A pod hears of an attachment that is to go and does not, whose attacher has died or fails.
func TestVolumeThatIsNeverDetached(t *testing.T) {
	inCluster(t, attacher, func(c *cluster) {
		attachments := c.client.StorageV1().VolumeAttachments()
		c.join("a")
		c.join("b")
		c.disk("x")
		c.place("p", "a", "x")
		c.attachments("x attaching to a")
		c.attachAll()
		c.attachments("a has x, x attached to a")
		list, err := attachments.List(c.ctx, metav1.ListOptions{})
		c.no(err)
		a := &list.Items[0]
		c.merge("/apis/storage.k8s.io/v1/volumeattachments/"+a.Name, `{"metadata":{"finalizers":["external-attacher/d-example-com"]}}`)
		failed := func() float64 {
			return counted(t, "storage_operation_duration_seconds", "kubernetes.io/csi:d.example.com", "volume_detach", "fail-unknown", "false")
		}
		before := failed()
		c.kill("p")
		c.place("q", "b", "x")
		time.Sleep(2 * time.Minute)
		const held = `Multi-Attach error for volume "x" Volume is already exclusively attached to one node and can't be attached to another: detaching it from node "a" fails: `
		c.event("q", "FailedAttachVolume", held+"timed out waiting for external-attacher of d.example.com CSI driver to detach volume disk x")
		time.Sleep(time.Second) // events of one moment share a name
		a, err = attachments.Get(c.ctx, a.Name, metav1.GetOptions{})
		c.no(err)
		a.Status.DetachError = &storagev1.VolumeError{Time: metav1.Now(), Message: "disk is busy"}
		_, err = attachments.UpdateStatus(c.ctx, a, metav1.UpdateOptions{})
		c.no(err)
		c.event("q", "FailedAttachVolume", held+"disk is busy")
		if n := failed() - before; n != 2 {
			t.Errorf("%v failures were counted, want one for each reason", n)
		}
		c.place("r", "a", "x")
		c.event("r", "FailedAttachVolume", `AttachVolume.Attach failed for volume "x" : volume attachment is being deleted: disk is busy`)
		c.kill("r")
		c.merge("/apis/storage.k8s.io/v1/volumeattachments/"+a.Name, `{"metadata":{"finalizers":null}}`)
		c.attachments("x attaching to b")
	})
}

// What is mounted on a node that is not well is detached after six minutes, or at
// once if its administrator says that it is out of service.
func TestNodesThatAreNotWell(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(c *cluster)
		within time.Duration
		reason string // that is counted
	}{
		"not ready": {func(c *cluster) {
			c.status("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
		}, 7 * time.Minute, "timeout"},
		"gone": {func(c *cluster) {
			c.no(c.client.CoreV1().Nodes().Delete(c.ctx, "a", metav1.DeleteOptions{}))
		}, 7 * time.Minute, "timeout"},
		"out of service": {func(c *cluster) {
			_, err := c.client.CoreV1().Nodes().Patch(c.ctx, "a", "application/merge-patch+json", []byte(`{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}]}}`), metav1.PatchOptions{})
			c.no(err)
		}, time.Second, "out-of-service"},
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, attacher, func(c *cluster) {
				c.join("a")
				c.join("b")
				c.disk("x")
				c.place("p", "a", "x")
				c.attachments("x attaching to a")
				c.attachAll()
				c.uses("a", "x")
				c.attachments("a has x, x attached to a")
				const detaches = "attach_detach_controller_attachdetach_controller_forced_detaches"
				before := counted(t, detaches, tt.reason)
				tt.change(c)
				c.kill("p")
				c.place("q", "b", "x")
				if tt.within > time.Minute {
					time.Sleep(5 * time.Minute)
					if got := c.disks(); !strings.HasSuffix(got, "x attached to a") {
						t.Errorf("after five minutes: %s", got)
					}
				}
				time.Sleep(tt.within)
				if n := counted(t, detaches, tt.reason) - before; n != 1 {
					t.Errorf("%v were counted as forced for %s", n, tt.reason)
				}
				c.attachments("x attaching to b")
			})
		})
	}
}

// A driver that wants no attaching gets none, also if it says so late.
func TestDriverWithoutAttaching(t *testing.T) {
	inCluster(t, attacher, func(c *cluster) {
		c.join("a")
		c.disk("x")
		c.place("p", "a", "x")
		c.attachments("x attaching to a")
		no := false
		_, err := c.client.StorageV1().CSIDrivers().Create(c.ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "d.example.com"}, Spec: storagev1.CSIDriverSpec{AttachRequired: &no}}, metav1.CreateOptions{})
		c.no(err)
		time.Sleep(30 * time.Second) // the node's kubelet may be mounting it
		c.attachments("x attaching to a")
		time.Sleep(30 * time.Second)
		c.attachments("")
		c.no(c.client.StorageV1().CSIDrivers().Delete(c.ctx, "d.example.com", metav1.DeleteOptions{}))
		c.attachments("x attaching to a")
	})
}

// An attachment that this controller did not make is none of its business, and
// a node that comes after its pod gets what the pod needs.
func TestOthersAttachments(t *testing.T) {
	inCluster(t, attacher, func(c *cluster) {
		c.disk("x")
		pv := "x"
		for name, pv := range map[string]*string{"mine": &pv, "lost": new("lost")} {
			_, err := c.client.StorageV1().VolumeAttachments().Create(c.ctx, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: storagev1.VolumeAttachmentSpec{Attacher: "d.example.com", NodeName: "a", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: pv}}}, metav1.CreateOptions{})
			c.no(err)
		}
		c.place("p", "a", "x")
		time.Sleep(time.Hour)
		c.join("a")
		c.until("three attachments", func() (bool, error) {
			list, err := c.client.StorageV1().VolumeAttachments().List(c.ctx, metav1.ListOptions{})
			return err == nil && len(list.Items) == 3, err
		})
		c.kill("p")
		c.until("the others' are left", func() (bool, error) {
			list, err := c.client.StorageV1().VolumeAttachments().List(c.ctx, metav1.ListOptions{})
			return err == nil && len(list.Items) == 2 && list.Items[0].Name == "lost" && list.Items[1].Name == "mine", err
		})
	})
}

// A volume of a plugin that a CSI driver has taken over from is attached by this driver,
// be it a PersistentVolume or one that a pod names itself.
func TestTakenOver(t *testing.T) {
	inCluster(t, attacher, func(c *cluster) {
		source := func(id string) *corev1.AWSElasticBlockStoreVolumeSource {
			return &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id}
		}
		c.volume(volumeOf("x", "1Gi", func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{AWSElasticBlockStore: source("aws://a/vol-11111111")}
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "x"}
		}))
		c.claim(claimOf("x", "1Gi", func(o *corev1.PersistentVolumeClaim) { o.Spec.VolumeName = "x" }))
		c.join("a")
		c.place("claims", "a", "x")
		_, err := c.client.CoreV1().Pods("default").Create(c.ctx, &corev1.Pod{ObjectMeta: meta("names"), Spec: corev1.PodSpec{NodeName: "a", Containers: template.Spec.Containers,
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{AWSElasticBlockStore: source("vol-22222222")}}}}}, metav1.CreateOptions{})
		c.no(err)
		is := func(want string) {
			c.Helper()
			c.until(want, func() (bool, error) {
				list, err := c.client.StorageV1().VolumeAttachments().List(c.ctx, metav1.ListOptions{})
				var all []string
				for _, a := range list.Items {
					switch s := a.Spec.Source; {
					case a.Name != fmt.Sprintf("csi-%x", sha256.Sum256([]byte("vol-11111111ebs.csi.aws.coma"))) && a.Name != fmt.Sprintf("csi-%x", sha256.Sum256([]byte("vol-22222222ebs.csi.aws.coma"))):
						all = append(all, a.Name)
					case s.PersistentVolumeName != nil:
						all = append(all, a.Spec.Attacher+" "+*s.PersistentVolumeName)
					case s.InlineVolumeSpec != nil:
						all = append(all, a.Spec.Attacher+" "+s.InlineVolumeSpec.CSI.VolumeHandle)
					}
				}
				slices.Sort(all)
				got := strings.Join(all, ", ")
				return err == nil && got == want, fmt.Errorf("got %s: %w", got, err)
			})
		}
		is("ebs.csi.aws.com vol-22222222, ebs.csi.aws.com x")
		c.attachAll()
		c.until("the node has both", func() (bool, error) {
			n, err := c.client.CoreV1().Nodes().Get(c.ctx, "a", metav1.GetOptions{})
			return err == nil && len(n.Status.VolumesAttached) == 2, err
		})
		c.kill("names")
		is("ebs.csi.aws.com x")
		c.kill("claims")
		is("")
	})
}
