package smoke

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/need"
)

// podsAtOnce are as many as a node takes by default.
const podsAtOnce = 110

// TestPodSoak makes and removes as many pods as KNARR_SOAK_PODS says, after which the
// node has no more of anything than after the first ones.
func TestPodSoak(t *testing.T) {
	total := soakPods(t)
	c := newSoakCluster(t)
	group := c.podBatch("warm", podsAtOnce)
	before := c.settled(group)
	t.Logf("after the first %d pods: %v", podsAtOnce, before)
	began, made := time.Now(), 0
	for made < total {
		n := min(podsAtOnce, total-made)
		round := time.Now()
		c.podBatch(fmt.Sprint("soak-", made), n)
		made += n
		t.Logf("%d pods made and removed, the last %d in %v: %v", made, n, time.Since(round).Round(time.Millisecond), c.used(group))
	}
	t.Logf("%d pods in %v", made, time.Since(began).Round(time.Second))
	t.Logf("after %d more: %v", made, c.asBefore(group, before))
}

// soakPods is how many pods a soak makes.
func soakPods(t *testing.T) int {
	t.Helper()
	total, _ := strconv.Atoi(os.Getenv("KNARR_SOAK_PODS"))
	if total == 0 {
		t.Skip("it takes minutes: make soak")
	}
	need.Root(t)
	return total
}

// newSoakCluster is one that has the image and the namespace of the pods. Its server has
// these flags besides.
func newSoakCluster(t *testing.T, flags ...string) *cluster {
	t.Helper()
	archive := buildImage(t)
	c := newCluster(t)
	c.args = append(c.args, flags...)
	c.start()
	c.connect()
	c.wait("node Ready", time.Minute, c.nodeReady)
	if out, err := exec.Command(binary, "images", "--data-dir", c.dir, "load", archive).CombinedOutput(); err != nil {
		t.Fatalf("knarr images load: %v\n%s", err, out)
	}
	c.kubectl("create", "namespace", "smoke")
	c.wait("the namespace's service account", time.Minute, func(ctx context.Context) (bool, error) {
		_, err := c.client.CoreV1().ServiceAccounts("smoke").Get(ctx, "default", metav1.GetOptions{})
		return err == nil, err
	})
	return c
}

// podBatch makes pods, waits until they are Ready, removes them, and gives the control
// group that all of them were below.
func (c *cluster) podBatch(name string, n int) (group string) {
	c.t.Helper()
	c.makePods(name, n)
	group = c.podGroup()
	c.deletePods()
	c.noPods()
	return group
}

func (c *cluster) deletePods() {
	c.t.Helper()
	if err := c.client.CoreV1().Pods("smoke").DeleteCollection(c.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// noPods waits until the last one is gone.
func (c *cluster) noPods() {
	c.t.Helper()
	c.await("the pods gone", func(all []corev1.Pod) bool { return len(all) == 0 })
}

// await looks at the pods five times a second: a list of so many is work for a node that
// is measured.
func (c *cluster) await(what string, ok func([]corev1.Pod) bool) []corev1.Pod {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Minute)
	defer cancel()
	for {
		list, err := c.client.CoreV1().Pods("smoke").List(ctx, metav1.ListOptions{})
		if err == nil && ok(list.Items) {
			return list.Items
		}
		select {
		case <-ctx.Done():
			out, _ := c.try("get", "pods", "-A", "-o", "wide")
			c.t.Fatalf("%s: not within five minutes; last error: %v\n%s", what, err, out)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// readyPods waits until so many are there, all of them Ready.
func (c *cluster) readyPods(n int) []corev1.Pod {
	c.t.Helper()
	return c.await(fmt.Sprintf("%d pods Ready", n), func(all []corev1.Pod) bool {
		return len(all) == n && !slices.ContainsFunc(all, func(p corev1.Pod) bool { return !ready(&p) })
	})
}

// sleep is what the pods run, told apart from those of others by its seconds.
var sleep = []string{"/bin/sleep", "86317"}

// makePods makes so many and waits until they are Ready.
func (c *cluster) makePods(name string, n int) []corev1.Pod {
	c.t.Helper()
	c.createPods(name, n)
	return c.readyPods(n)
}

func (c *cluster) createPods(name string, n int) {
	c.t.Helper()
	pods := c.client.CoreV1().Pods("smoke")
	for i := range n {
		_, err := pods.Create(c.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i)}, Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(1)), // with none they are gone from the API at once
			Volumes:                       []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			Containers: []corev1.Container{{Name: "c", Image: image, Command: sleep,
				VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
		}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			c.t.Fatal(err)
		}
	}
}

// containers gives the id of each pod's container, and how often it was restarted.
func containers(pods []corev1.Pod) map[string]string {
	all := map[string]string{}
	for _, p := range pods {
		for _, s := range p.Status.ContainerStatuses {
			all[p.Name] = fmt.Sprintf("%s, restarted %d times", s.ContainerID, s.RestartCount)
		}
	}
	return all
}

// podGroup is the topmost control group that the pods are below. What else a cluster has
// on its machine goes by the same name.
func (c *cluster) podGroup() string {
	c.t.Helper()
	for _, pid := range processes(strings.Join(sleep, "\x00")) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if _, path, ok := strings.Cut(line, ":/"); ok {
				if top, _, deeper := strings.Cut(path, "/"); deeper {
					return top
				}
			}
		}
	}
	c.t.Fatal("no container's process is found")
	return ""
}
