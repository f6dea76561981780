package smoke

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/need"
)

// podsAtOnce are as many as a node takes by default.
const podsAtOnce = 110

// kills is how often the server is killed under them.
const kills = 20

// TestPodSoak makes and removes as many pods as KNARR_SOAK_PODS says, after which the
// node has no more of anything than after the first ones, and kills the server again and
// again under pods none of whose containers may notice.
func TestPodSoak(t *testing.T) {
	total, _ := strconv.Atoi(os.Getenv("KNARR_SOAK_PODS"))
	if total == 0 {
		t.Skip("it takes minutes: make soak")
	}
	need.Root(t)
	archive := buildImage(t)
	c := newCluster(t)
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
	var after usage
	c.wait("as it was", 3*time.Minute, func(context.Context) (bool, error) {
		if after = c.used(group); len(before.grown(after)) > 0 {
			return false, fmt.Errorf("grown: %s", strings.Join(before.grown(after), ", "))
		}
		return true, nil
	})
	t.Logf("after %d more: %v", made, after)

	kept := containers(c.makePods("kept", podsAtOnce))
	for range kills {
		c.stop(syscall.SIGKILL)
		c.start()
		c.wait("/readyz after kill -9", time.Minute, func(ctx context.Context) (bool, error) { return c.readyz(ctx), nil })
		c.wait("node Ready after kill -9", time.Minute, c.nodeReady)
	}
	now := containers(c.readyPods(podsAtOnce))
	for name, was := range kept {
		if now[name] != was {
			t.Errorf("pod %s: container %s before, %s after", name, was, now[name])
		}
	}
	t.Logf("%d pods outlived %d kills of the server", len(now), kills)
}

// podBatch makes pods, waits until they are Ready, removes them, and gives the control
// group that all of them were below.
func (c *cluster) podBatch(name string, n int) (group string) {
	c.t.Helper()
	c.makePods(name, n)
	group = c.podGroup()
	pods := c.client.CoreV1().Pods("smoke")
	if err := pods.DeleteCollection(c.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.await("the pods gone", func(all []corev1.Pod) bool { return len(all) == 0 })
	return group
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

func (c *cluster) makePods(name string, n int) []corev1.Pod {
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
	return c.readyPods(n)
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

// usage is what of the machine a cluster has, by its kind.
type usage map[string]float64

// margins are how much more than before is none to speak of, as a share. What is not
// named must not grow at all. The server goes on with its own work, in goroutines and
// with descriptors that come and go; its memory is as the collector left it.
var margins = map[string]float64{"descriptors": 0.05, "goroutines": 0.05, "MB of memory": 0.3, "files": 0.01}

// grown says of what there is more.
func (before usage) grown(after usage) (all []string) {
	for kind, n := range after {
		if n > before[kind]*(1+margins[kind]) {
			all = append(all, fmt.Sprintf("%s %.0f, %.0f before", kind, n, before[kind]))
		}
	}
	return all
}

// settled counts once no pod has a link any more.
func (c *cluster) settled(group string) (u usage) {
	c.t.Helper()
	c.wait("the pods' links gone", 3*time.Minute, func(context.Context) (bool, error) {
		u = c.used(group)
		return u["links"] == 0, nil
	})
	return u
}

// used counts.
func (c *cluster) used(group string) usage {
	u, run := usage{"links": 0}, "/run/"+group+"/"
	for _, pid := range processes(c.dir) {
		fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		anon, _ := resident(pid)
		u["processes"]++
		u["descriptors"] += float64(len(fds))
		u["MB of memory"] += anon
	}
	for line := range strings.Lines(read(c.t, fmt.Sprintf("/proc/%d/mountinfo", c.cmd.Process.Pid))) {
		if strings.Contains(line, c.dir) || strings.Contains(line, run) {
			u["mounts"]++
		}
	}
	links, err := netlink.LinkList()
	if err != nil {
		c.t.Fatal(err)
	}
	bridge, err := netlink.LinkByName("knarr0" + strings.TrimPrefix(group, "knarr"))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge.Attrs().Index {
			u["links"]++
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path+"/", "/"+group+"/") {
			u["control groups"]++
		}
		return nil
	})
	for _, dir := range []string{c.dir, run} {
		_ = filepath.WalkDir(dir, func(_ string, _ fs.DirEntry, err error) error {
			if err == nil {
				u["files"]++
			}
			return nil
		})
	}
	b, err := c.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			u["goroutines"], _ = strconv.ParseFloat(strings.TrimSpace(n), 64)
		}
	}
	return u
}
