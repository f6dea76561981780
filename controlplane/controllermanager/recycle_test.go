package controllermanager

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/apitest"
)

func recycled(v *corev1.PersistentVolume) {
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRecycle
}

// recycler waits for the pod that empties the volume v, another one than before.
func (c *cluster) recycler(before *corev1.Pod) (pod *corev1.Pod) {
	c.Helper()
	c.until("a pod empties the volume", func() (bool, error) {
		p, err := c.client.CoreV1().Pods("default").Get(c.ctx, "recycler-for-v", metav1.GetOptions{})
		pod = p
		return err == nil && (before == nil || p.UID != before.UID), err
	})
	return pod
}

func (c *cluster) end(pod *corev1.Pod, phase corev1.PodPhase, message string) {
	c.Helper()
	pod = pod.DeepCopy()
	pod.Status.Phase, pod.Status.Message = phase, message
	_, err := c.client.CoreV1().Pods("default").UpdateStatus(c.ctx, pod, metav1.UpdateOptions{})
	c.no(err)
}

// TestRecycle: a volume of the policy Recycle is free again once a pod has emptied it, and
// only once the one that was made for that has.
func TestRecycle(t *testing.T) {
	inCluster(t, binder, func(c *cluster) {
		core := c.client.CoreV1()
		c.volume(volumeOf("v", "3Gi", recycled))
		c.claim(claimOf("a", "1Gi"))
		c.stored("a Bound v, v Bound a")
		// Somebody else's pod of that name counts for nothing.
		forged, err := core.Pods("default").Create(c.ctx, &corev1.Pod{ObjectMeta: meta("recycler-for-v"), Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "a"}}}}, metav1.CreateOptions{})
		c.no(err)
		c.end(forged, corev1.PodSucceeded, "")
		time.Sleep(time.Second)
		c.no(core.PersistentVolumeClaims("default").Delete(c.ctx, "a", metav1.DeleteOptions{}))
		pod := c.recycler(forged)
		if got := pod.Spec.Volumes[0].HostPath; got == nil || got.Path != "/srv/v" || *pod.Spec.ActiveDeadlineSeconds != 90 || pod.Spec.RestartPolicy != corev1.RestartPolicyNever {
			t.Errorf("%+v", pod.Spec)
		}
		c.stored("v Released a")
		// What the pod says is the volume's to tell.
		_, err = core.Events("default").Create(c.ctx, &corev1.Event{ObjectMeta: meta("e"), Type: corev1.EventTypeWarning, Reason: "Failed", Message: "no such image",
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: pod.Name, UID: pod.UID}}, metav1.CreateOptions{})
		c.no(err)
		c.end(pod, corev1.PodFailed, "it took too long")
		c.stored("v Failed a")
		v, err := core.PersistentVolumes().Get(c.ctx, "v", metav1.GetOptions{})
		c.no(err)
		if want := "Recycle failed: failed to recycle volume: it took too long"; v.Status.Message != want {
			t.Errorf("message %q, want %q", v.Status.Message, want)
		}
		if got := c.eventOf("v", "RecyclerPod"); got != "Recycler pod: no such image" {
			t.Errorf("event %q", got)
		}
		// It is tried again, and again when somebody deletes the pod.
		other := c.recycler(pod)
		c.no(core.Pods("default").Delete(c.ctx, other.Name, *metav1.NewDeleteOptions(0)))
		last := c.recycler(other)
		c.end(last, corev1.PodSucceeded, "")
		c.stored("v Available")
		if got := c.eventOf("v", "VolumeRecycled"); got != "Volume recycled" {
			t.Errorf("event %q", got)
		}
		if left := c.pods(); len(left) > 0 {
			t.Errorf("%d pods are left", len(left))
		}
		c.claim(claimOf("b", "1Gi"))
		c.stored("b Bound v, v Bound b")
	})
}

// TestRecyclerNeverEnds: what happens to a pod that finds no node, or whose node is gone, is
// told while it happens, and the volume is given up once the pod should have ended.
func TestRecyclerNeverEnds(t *testing.T) {
	inCluster(t, binder, func(c *cluster) {
		core := c.client.CoreV1()
		c.volume(volumeOf("v", "1Gi", recycled))
		c.claim(claimOf("a", "1Gi"))
		c.stored("a Bound v, v Bound a")
		c.no(core.PersistentVolumeClaims("default").Delete(c.ctx, "a", metav1.DeleteOptions{}))
		pod := c.recycler(nil)
		say := func(name, message string) {
			_, err := core.Events("default").Create(c.ctx, &corev1.Event{ObjectMeta: meta(name), Type: corev1.EventTypeWarning, Reason: "FailedScheduling", Message: message,
				InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: pod.Name, UID: pod.UID}}, metav1.CreateOptions{})
			c.no(err)
		}
		forwarded := func() (all []string) {
			events, err := core.Events("default").List(c.ctx, metav1.ListOptions{})
			c.no(err)
			for _, e := range events.Items {
				if e.InvolvedObject.Name == "v" && e.Reason == "RecyclerPod" {
					all = append(all, fmt.Sprint(e.Message, " ", e.Count))
				}
			}
			slices.Sort(all)
			return all
		}
		say("e1", "0/1 nodes are available")
		time.Sleep(20 * time.Second)
		if got := fmt.Sprint(forwarded()); got != "[Recycler pod: 0/1 nodes are available 1]" {
			t.Errorf("after twenty seconds: %s", got)
		}
		say("e2", "still none")
		time.Sleep(time.Minute)
		if got := fmt.Sprint(forwarded()); got != "[Recycler pod: 0/1 nodes are available 1 Recycler pod: still none 1]" {
			t.Errorf("a minute later: %s", got)
		}
		c.stored("v Released a")
		time.Sleep(time.Minute)
		c.stored("v Failed a")
		v, err := core.PersistentVolumes().Get(c.ctx, "v", metav1.GetOptions{})
		c.no(err)
		if want := "Recycle failed: failed to recycle volume: pod has not ended: Pending"; v.Status.Message != want {
			t.Errorf("message %q, want %q", v.Status.Message, want)
		}
		c.end(c.recycler(pod), corev1.PodSucceeded, "")
		c.stored("v Available")
	})
}

// TestRecycleLater: nothing is removed while pods use it, nor where nobody knows how.
func TestRecycleLater(t *testing.T) {
	inCluster(t, append(binder[:1:1], "serviceaccount-controller"), func(c *cluster) {
		core := c.client.CoreV1()
		c.volume(volumeOf("v", "3Gi", recycled))
		c.volume(volumeOf("disk", "1Gi", recycled, func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/srv/disk"}}
			v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "k", Operator: corev1.NodeSelectorOpExists}}}}}}
		}))
		c.claim(claimOf("a", "2Gi"))
		c.claim(claimOf("b", "1Gi"))
		c.stored("a Bound v, b Bound disk, disk Bound b, v Bound a")
		user, err := core.Pods("default").Create(c.ctx, &corev1.Pod{ObjectMeta: meta("user"), Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "a"}},
			Volumes:    []corev1.Volume{{Name: "d", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "a"}}}}}}, metav1.CreateOptions{})
		c.no(err)
		time.Sleep(time.Second) // until the controller has seen the pod
		c.no(core.PersistentVolumeClaims("default").DeleteCollection(c.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		for _, name := range []string{"a", "b"} { // the API server adds the finalizer
			c.merge("/api/v1/namespaces/default/persistentvolumeclaims/"+name, `{"metadata":{"finalizers":null}}`)
		}
		c.stored("disk Failed b, v Released a")
		if got := c.eventOf("disk", "VolumeFailedRecycle"); got != "No recycler plugin found for the volume!" {
			t.Errorf("event %q", got)
		}
		if got := c.eventOf("v", "VolumeFailedRecycle"); got != "Volume is used by pods: default/user" {
			t.Errorf("event %q", got)
		}
		time.Sleep(time.Hour)
		if n := len(c.pods()); n != 1 {
			t.Errorf("%d pods, want the one that uses the volume", n)
		}
		c.end(user, corev1.PodSucceeded, "")
		c.recycler(nil)
		// Who takes the volume back meanwhile keeps what is in it.
		c.merge("/api/v1/persistentvolumes/v", `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
		time.Sleep(time.Minute)
		c.stored("disk Failed b, v Released a")
		if left := c.pods(); len(left) != 1 || left[0].Name != "user" {
			t.Errorf("%d pods, want the one that has ended", len(left))
		}
	})
}

// TestRecycleRefused: what keeps the pod from being made is said.
func TestRecycleRefused(t *testing.T) {
	nowhere := func(s *apitest.Server) Config {
		cfg := config(s, binder...)
		cfg.PersistentVolume.HostPath.Template = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "nowhere"}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "a"}}, Volumes: []corev1.Volume{{Name: "v"}}}}
		return cfg
	}
	inClusterOf(t, nowhere, func(c *cluster) {
		c.volume(volumeOf("v", "3Gi", recycled))
		c.claim(claimOf("a", "1Gi"))
		c.stored("a Bound v, v Bound a")
		c.no(c.client.CoreV1().PersistentVolumeClaims("default").Delete(c.ctx, "a", metav1.DeleteOptions{}))
		c.stored("v Failed a")
		if got := c.eventOf("v", "VolumeFailedRecycle"); !strings.Contains(got, `"nowhere" not found`) {
			t.Errorf("event %q", got)
		}
	})
	inCluster(t, binder, func(c *cluster) {
		long := strings.Repeat("v", 250)
		c.volume(volumeOf(long, "3Gi", recycled))
		c.claim(claimOf("a", "1Gi"))
		c.stored(fmt.Sprintf("a Bound %s, %[1]s Bound a", long))
		c.no(c.client.CoreV1().PersistentVolumeClaims("default").Delete(c.ctx, "a", metav1.DeleteOptions{}))
		c.stored(long + " Failed a")
		if got := c.eventOf(long, "VolumeFailedRecycle"); !strings.HasPrefix(got, "Recycle failed: unexpected error creating recycler pod: ") {
			t.Errorf("event %q", got)
		}
	})
}
