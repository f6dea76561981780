package smoke

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/need"
)

// burners are pods that burn as much CPU as they may while they have a file, which is two
// and a half times what they ask for.
const burners = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: burn, namespace: smoke}
spec:
  selector: {matchLabels: {app: burn}}
  template:
    metadata: {labels: {app: burn}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: c
        image: knarr.test/app:1
        command: ["/bin/sh", "-c", "while true; do while [ -e /tmp/burn ]; do :; done; sleep 1; done"]
        resources: {requests: {cpu: 40m, memory: 8Mi}, limits: {cpu: 100m, memory: 32Mi}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: burn, namespace: smoke}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: burn}
  maxReplicas: 6
  behavior: {scaleDown: {stabilizationWindowSeconds: 5}}
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 100}}}]
`

// recycler empties volumes whose policy is Recycle.
const recycler = `{apiVersion: v1, kind: Pod, metadata: {name: any, namespace: smoke}, spec: {restartPolicy: Never, terminationGracePeriodSeconds: 0,
	containers: [{name: c, image: "knarr.test/app:1", command: [/bin/sh, -c, "cd /scrub && /bin/busybox rm -rf * .[!.]*"], volumeMounts: [{name: v, mountPath: /scrub}]}],
	volumes: [{name: v, emptyDir: {}}]}}`

// recycledOf is a volume of a directory that is emptied once its claim is gone, and the claim.
func recycledOf(path string) string {
	return `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"emptied"},
		"spec":{"accessModes":["ReadWriteOnce"],"capacity":{"storage":"1Gi"},"persistentVolumeReclaimPolicy":"Recycle","storageClassName":"","hostPath":{"path":"` + path + `"}}},
		{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"emptied","namespace":"smoke"},
		"spec":{"accessModes":["ReadWriteOnce"],"storageClassName":"","resources":{"requests":{"storage":"1Gi"}}}}]}`
}

// claimOf is a claim of the default class, and keeperOf a pod that has it.
func claimOf(name string) string {
	return `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"` + name + `","namespace":"smoke"},
		"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"32Mi"}}}}`
}

func keeperOf(claim string) string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + claim + `","namespace":"smoke"},"spec":{"terminationGracePeriodSeconds":0,
		"containers":[{"name":"c","image":"knarr.test/app:1","command":["/bin/sleep","1000"],"volumeMounts":[{"name":"data","mountPath":"/data"}]}],
		"volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"` + claim + `"}}]}}`
}

// workloads are what a test of theirs knows of the cluster.
type workloads struct {
	*cluster
	burning string // the first pod of the Deployment
	limit   string // what keeps a volume's size
}

// TestWorkloads: a Deployment grows and shrinks with the CPU that its pods use, and a
// claim that is full harms nobody else. While the node measures, the claim is filled.
func TestWorkloads(t *testing.T) {
	need.Root(t)
	emptier := filepath.Join(t.TempDir(), "recycler.yaml")
	if err := os.WriteFile(emptier, []byte(recycler), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newSoakCluster(t, "--kube-controller-manager-arg", "pv-recycler-pod-template-filepath-hostpath="+emptier, "--kube-controller-manager-arg", "horizontal-pod-autoscaler-sync-period=1s",
		"--kube-controller-manager-arg", "horizontal-pod-autoscaler-cpu-initialization-period=1s")
	w := &workloads{cluster: c}
	for _, step := range []struct {
		name string
		run  func(*workloads)
	}{
		{"load", beginLoad}, {"claim full", claimFull}, {"claim expanded", claimExpanded}, {"scaled up", scaledUp}, {"top", top},
		{"scaled down", scaledDown}, {"unharmed", unharmed}, {"claims gone", claimsGone}, {"volume emptied", volumeEmptied}, {"set patched", setPatched},
	} {
		if !t.Run(step.name, func(t *testing.T) { outer := c.t; c.t = t; defer func() { c.t = outer }(); step.run(w) }) {
			t.FailNow()
		}
	}
}

// beginLoad has the one pod that there is burn.
func beginLoad(w *workloads) {
	w.apply(burners)
	w.kubectl("-n", "smoke", "rollout", "status", "deployment/burn", "--timeout=60s")
	w.burning = w.kubectl("-n", "smoke", "get", "pods", "-l", "app=burn", "-o", "jsonpath={.items[*].metadata.name}")
	w.kubectl("-n", "smoke", "exec", w.burning, "--", "touch", "/tmp/burn")
}

// write has a pod write so many MiB, anew or at the end of a file.
func (w *workloads) write(pod, file string, mib int) (string, error) {
	return w.try("-n", "smoke", "exec", pod, "--", "/bin/busybox", "dd", "if=/dev/zero", "of="+file, "bs=1M", "count="+strconv.Itoa(mib), "conv=fsync")
}

// noRoom is what a program is told of a volume that is full, by what keeps its size.
var noRoom = map[string]string{"ext4-image": "No space left on device", "project-quota": "No space left on device|Disk quota exceeded"}

// limited skips a step where nothing keeps a volume's size.
func (w *workloads) limited() {
	w.t.Helper()
	if noRoom[w.limit] == "" {
		need.Skip(w.t, "needs project quotas, or loop devices: a volume here takes as much as the disk has; its limit is ", w.limit)
	}
}

// claimFull fills a claim: only its own pod is told that there is no room, and only there.
func claimFull(w *workloads) {
	for _, name := range []string{"full", "beside"} {
		w.apply(claimOf(name))
		w.apply(keeperOf(name))
	}
	w.kubectl("-n", "smoke", "wait", "--for=condition=Ready", "pod/full", "pod/beside", "--timeout=60s")
	volume := w.kubectl("-n", "smoke", "get", "pvc", "full", "-o", "jsonpath={.spec.volumeName}")
	w.limit = w.kubectl("get", "pv", volume, "-o", "jsonpath={.spec.csi.volumeAttributes.limit}")
	w.t.Logf("what keeps a volume's size here: %s", w.limit)
	w.limited()
	out, err := w.write("full", "/data/fill", 64)
	if err == nil || !regexp.MustCompile(noRoom[w.limit]).MatchString(out) {
		w.t.Fatalf("64Mi into a claim of 32Mi: %v\n%s", err, out)
	}
	if size := w.fileSize("full", "/data/fill"); size < 16<<20 || size > 32<<20 {
		w.t.Errorf("a claim of 32Mi is full with %d bytes", size)
	}
	for pod, file := range map[string]string{"full": "/tmp/some", "beside": "/data/some"} {
		if out, err := w.write(pod, file, 8); err != nil {
			w.t.Errorf("write %s in pod %s: %v\n%s", file, pod, err, out)
		}
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(w.dir), "some"), make([]byte, 8<<20), 0o600); err != nil {
		w.t.Errorf("write on the node: %v", err)
	}
}

func (w *workloads) fileSize(pod, file string) int {
	w.t.Helper()
	out := w.kubectl("-n", "smoke", "exec", pod, "--", "wc", "-c", file)
	n, err := strconv.Atoi(strings.Fields(out)[0])
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// claimExpanded asks for twice as much, while the pod runs. A process that may not make a
// mounted file system larger says on the claim that its pod is to start anew.
func claimExpanded(w *workloads) {
	w.limited()
	before := w.fileSize("full", "/data/fill")
	w.kubectl("-n", "smoke", "patch", "pvc", "full", "-p", `{"spec":{"resources":{"requests":{"storage":"64Mi"}}}}`)
	var claim *corev1.PersistentVolumeClaim
	grown := func(c *corev1.PersistentVolumeClaim) bool {
		return c.Status.Capacity.Storage().Cmp(resource.MustParse("64Mi")) == 0
	}
	pending := func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending
	}
	w.wait("the claim has grown, or says what for it waits", 30*time.Second, func(ctx context.Context) (ok bool, err error) {
		claim, err = w.client.CoreV1().PersistentVolumeClaims("smoke").Get(ctx, "full", metav1.GetOptions{})
		return err == nil && (grown(claim) || slices.ContainsFunc(claim.Status.Conditions, pending)), err
	})
	if !grown(claim) {
		w.t.Log("this machine's processes may not make a mounted file system larger (CAP_SYS_RESOURCE): the pod starts anew")
		w.kubectl("-n", "smoke", "delete", "pod", "full", "--timeout=30s")
	}
	// A pod that comes at once finds the volume still mounted, so the next one waits for it.
	w.wait("the claim has grown", 2*time.Minute, func(ctx context.Context) (ok bool, err error) {
		claim, err = w.client.CoreV1().PersistentVolumeClaims("smoke").Get(ctx, "full", metav1.GetOptions{})
		return err == nil && grown(claim), fmt.Errorf("%v %+v", err, claim.Status)
	})
	w.apply(keeperOf("full"))
	w.kubectl("-n", "smoke", "wait", "--for=condition=Ready", "pod/full", "--timeout=60s")
	if out, err := w.write("full", "/data/more", 16); err != nil {
		w.t.Errorf("16Mi more into the claim that has grown to 64Mi: %v\n%s", err, out)
	}
	if after := w.fileSize("full", "/data/fill"); after != before {
		w.t.Errorf("the file that filled the claim had %d bytes, and has %d", before, after)
	}
}

// scaledUp: one pod that uses 250% of what it asks for, where 100% is wanted, gets two
// others beside it that use nothing: with 83% for each, there it stays.
func scaledUp(w *workloads) {
	w.wait("three replicas for a load of 250%", 2*time.Minute, func(ctx context.Context) (bool, error) {
		h, err := w.client.AutoscalingV2().HorizontalPodAutoscalers("smoke").Get(ctx, "burn", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		s := h.Status
		if len(s.CurrentMetrics) != 1 || s.CurrentMetrics[0].Resource == nil || s.CurrentMetrics[0].Resource.Current.AverageUtilization == nil {
			return false, fmt.Errorf("no utilization yet: %v", s.Conditions)
		}
		used := *s.CurrentMetrics[0].Resource.Current.AverageUtilization
		return s.CurrentReplicas == 3 && s.DesiredReplicas == 3 && used > 66 && used < 100,
			fmt.Errorf("%d replicas, %d wanted, %d%% used", s.CurrentReplicas, s.DesiredReplicas, used)
	})
	w.kubectl("-n", "smoke", "rollout", "status", "deployment/burn", "--timeout=30s")
	events := w.rescales()
	if n := len(events); n == 0 || events[n-1] != "New size: 3; reason: cpu resource utilization (percentage of request) above target" {
		w.t.Errorf("events of growth: %q", events)
	}
	if out := w.kubectl("-n", "smoke", "get", "hpa", "burn", "--no-headers"); !regexp.MustCompile(`^burn\s+Deployment/burn\s+cpu: \d+%/100%\s+1\s+6\s+3\s`).MatchString(out) {
		w.t.Errorf("kubectl get hpa: %s", out)
	}
}

// rescales are the events of growth and shrinking, the last at the end.
func (w *workloads) rescales() (messages []string) {
	w.t.Helper()
	events, err := w.client.CoreV1().Events("smoke").List(w.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=HorizontalPodAutoscaler,reason=SuccessfulRescale"})
	if err != nil {
		w.t.Fatal(err)
	}
	slices.SortStableFunc(events.Items, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	for i := range events.Items {
		messages = append(messages, events.Items[i].Message)
	}
	return messages
}

// top shows what the pod that burns uses.
func top(w *workloads) {
	out := w.kubectl("-n", "smoke", "top", "pods", "-l", "app=burn", "--no-headers")
	used := regexp.MustCompile(`(?m)^` + w.burning + `\s+(\d+)m\s+(\d+)Mi\s*$`).FindStringSubmatch(out)
	if used == nil {
		w.t.Fatalf("kubectl top pods does not have %s:\n%s", w.burning, out)
	}
	if cpu, _ := strconv.Atoi(used[1]); cpu < 75 || cpu > 125 {
		w.t.Errorf("a pod that burns its limit of 100m uses %dm:\n%s", cpu, out)
	}
	if out := w.kubectl("top", "nodes", "--no-headers"); !regexp.MustCompile(`^smoke\s+\d+m\s+\d+%\s+\d+Mi\s+\d+%\s*$`).MatchString(out) {
		w.t.Errorf("kubectl top nodes: %s", out)
	}
}

// scaledDown ends the load.
func scaledDown(w *workloads) {
	w.kubectl("-n", "smoke", "exec", w.burning, "--", "/bin/busybox", "rm", "/tmp/burn")
	w.kubectl("-n", "smoke", "wait", "--for=jsonpath={.status.replicas}=1", "deployment/burn", "--timeout=60s")
	var events []string
	w.wait("an event of the last step down", 10*time.Second, func(context.Context) (bool, error) {
		events = w.rescales()
		return slices.Contains(events, "New size: 1; reason: All metrics below target"), fmt.Errorf("events %q", events)
	})
	w.t.Logf("events of growth and shrinking: %q", events)
}

// unharmed: whoever filled a claim has not put the node under pressure, and nobody was
// evicted or has started anew.
func unharmed(w *workloads) {
	node, err := w.client.CoreV1().Nodes().Get(w.t.Context(), "smoke", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range node.Status.Conditions {
		if strings.HasSuffix(string(c.Type), "Pressure") && c.Status != corev1.ConditionFalse {
			w.t.Errorf("%s: %s", c.Type, c.Message)
		}
	}
	for _, name := range []string{"full", "beside"} {
		p, err := w.client.CoreV1().Pods("smoke").Get(w.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		if !ready(p) || p.Status.ContainerStatuses[0].RestartCount != 0 {
			w.t.Errorf("pod %s: %+v", name, p.Status)
		}
	}
}

// claimsGone deletes the claims, whose volumes go with them.
func claimsGone(w *workloads) {
	w.kubectl("-n", "smoke", "delete", "pod,pvc", "full", "beside", "--timeout=30s")
	w.wait("no volumes", 30*time.Second, func(context.Context) (bool, error) {
		left, _ := filepath.Glob(filepath.Join(w.dir, "storage", "pvc-*"))
		objects := w.kubectl("get", "pv", "-o", "name")
		return len(left) == 0 && objects == "", fmt.Errorf("on disk %v, objects %s", left, objects)
	})
}

// volumeEmptied has a volume emptied, and free again, once its claim is gone.
func volumeEmptied(w *workloads) {
	dir := w.t.TempDir()
	for _, file := range []string{"a", ".b", "c/d"} {
		path := filepath.Join(dir, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("data"), 0o600)); err != nil {
			w.t.Fatal(err)
		}
	}
	w.apply(recycledOf(dir))
	w.kubectl("-n", "smoke", "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/emptied", "--timeout=30s")
	w.kubectl("-n", "smoke", "delete", "pvc", "emptied", "--timeout=30s")
	w.kubectl("wait", "--for=jsonpath={.status.phase}=Available", "pv/emptied", "--timeout=50s")
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		w.t.Errorf("%v is left, %v", left, err)
	}
	if out := w.kubectl("describe", "pv", "emptied"); !strings.Contains(out, "VolumeRecycled") {
		w.t.Errorf("kubectl describe pv says\n%s", out)
	}
	w.kubectl("delete", "pv", "emptied", "--timeout=30s")
}

// setPatched changes a StatefulSet with claims by patches, also after the server has read it
// anew.
func setPatched(w *workloads) {
	w.apply(`{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"set","namespace":"smoke"},"spec":{"replicas":0,"serviceName":"set",
		"selector":{"matchLabels":{"app":"set"}},"template":{"metadata":{"labels":{"app":"set"}},"spec":{"containers":[{"name":"c","image":"knarr.test/app:1"}]}},
		"volumeClaimTemplates":[{"metadata":{"name":"data"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Mi"}}}}]}}`)
	for i, kind := range []string{"merge", "json", "strategic"} {
		w.killServer()
		patch := fmt.Sprintf(`{"spec":{"minReadySeconds":%d}}`, i+1)
		if kind == "json" {
			patch = `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"knarr.test/app:2"}]`
		}
		w.kubectl("-n", "smoke", "patch", "statefulset", "set", "--type", kind, "-p", patch)
		if got := w.kubectl("-n", "smoke", "get", "statefulset", "set", "-o", "jsonpath={.spec.volumeClaimTemplates[0].kind}"); got != "PersistentVolumeClaim" {
			w.t.Errorf("the template is a %q", got)
		}
	}
	w.kubectl("-n", "smoke", "delete", "statefulset", "set", "--timeout=30s")
}
