package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/need"
	"knarr/node/kubelet/eviction"
	"knarr/node/kubelet/podfile"
	"knarr/node/kubelet/podstatus"
	"knarr/node/kubelet/podtest"
)

// TestStorageLimits: what containers write to their own file systems counts,
// each against its own limit; what is mounted below a pod's directory does not.
func TestStorageLimits(t *testing.T) {
	need.Root(t)
	n := newNode(t)
	n.rt.StopCode = 137
	n.start()
	disk := t.TempDir()
	if err := os.WriteFile(filepath.Join(disk, "data"), make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	limited := func(name string) *corev1.Pod {
		p := podtest.Pod(name, name+"-a", name+"-b")
		for i, limit := range []string{"10Mi", "1Mi"} {
			p.Spec.Containers[i].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(limit)}
		}
		small := resource.MustParse("1Mi")
		p.Spec.Volumes = []corev1.Volume{{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &small}}}}
		n.api.addPod(podtest.Use(p))
		n.until("ready", n.ready(name))
		return p
	}
	write := func(p *corev1.Pod, name string, size int) string {
		path := filepath.Join(n.k.volumes.PodDir(string(p.UID)), "volumes", "kubernetes.io~empty-dir", "empty", name)
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	limited("layer")
	n.rt.SetLayer("layer-b", 2<<20)
	write(limited("whole"), "file", 512<<10)
	n.rt.SetLayer("whole-a", 10<<20-128<<10)
	n.rt.SetLayer("whole-b", 1<<20-128<<10)
	links := limited("links")
	file := write(links, "file", 600<<10)
	if err := os.Link(file, file+"2"); err != nil {
		t.Fatal(err)
	}
	write(limited("volume"), "file", 2<<20)
	bound := limited("bound")
	for _, below := range []string{"volumes/kubernetes.io~local-volume/pv", "volume-subpaths/pv/bound-a/0", "volumes/kubernetes.io~empty-dir/empty/sub"} {
		path := filepath.Join(n.k.volumes.PodDir(string(bound.UID)), below)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(disk, path, "", unix.MS_BIND, ""); err != nil {
			need.Skip(t, "needs to mount: run as root with CAP_SYS_ADMIN: ", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	}

	// A walk that a slow machine made long, and that began before the files were there, is not
	// waited for again.
	n.until("all are measured", func() bool {
		n.k.enforceLimits(t.Context())
		return n.k.storageOf("uid-links").volumes["empty"].Bytes >= 600<<10 &&
			n.endMessage("layer") != "" && n.endMessage("whole") != "" && n.endMessage("volume") != ""
	})
	for name, want := range map[string]string{
		"layer":  `Container layer-b exceeded its local ephemeral storage limit "1Mi". `,
		"whole":  "Pod ephemeral local storage usage exceeds the total limit of containers 11Mi. ",
		"volume": `Usage of EmptyDir volume "empty" exceeds the limit "1Mi". `,
		"links":  "",
		"bound":  "",
	} {
		if got := n.endMessage(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	n.until("the status says so", func() bool {
		s := n.api.pod("layer").Status
		return s.Phase == corev1.PodFailed && s.Reason == "Evicted"
	})
	if c := podstatus.FindCondition(n.api.pod("layer").Status.Conditions, corev1.DisruptionTarget); c != nil {
		t.Errorf("a pod that was over its own limit counts as disrupted: %+v", c)
	}
}

// TestEvictionMessage: upstream's words, each container with its own usage.
func TestEvictionMessage(t *testing.T) {
	p := podtest.Pod("p", "a", "b")
	p.Spec.Containers[1].Resources.Requests = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")}
	used := podStorage{
		layers: map[string]podfile.Usage{"a": {Bytes: 3 << 20}, "b": {Bytes: 5 << 20}},
		logs:   map[string]podfile.Usage{"a": {Bytes: 1 << 20}},
	}
	want := "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 512Mi. " +
		"Container a was using 4Mi, request is 0, has larger consumption of ephemeral-storage. "
	got, annotations := evictionMessage(candidate{pod: p}, corev1.ResourceEphemeralStorage, used, "512Mi", "1Gi")
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if a := annotations; len(a) != 3 || a["offending_containers"] != "a" || a["offending_containers_usage"] != "4Mi" || a["starved_resource"] != "ephemeral-storage" {
		t.Errorf("annotations %v", a)
	}
	p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"memory": resource.MustParse("1Gi")}}
	got, annotations = evictionMessage(candidate{pod: p, usage: 2 << 30}, corev1.ResourceMemory, podStorage{}, "1Mi", "2Mi")
	if want := "Pod " + p.Name + " was using 2Gi, request is 1Gi, has larger consumption of memory. "; !strings.HasSuffix(got, want) || annotations["offending_pod"] != p.Name || annotations["offending_pod_usage"] != "2Gi" {
		t.Errorf("%q, annotations %v", got, annotations)
	}
}

// TestMemoryDoesNotWaitForFiles: who is evicted for memory is decided without
// counting files, which may take each pod seconds.
func TestMemoryDoesNotWaitForFiles(t *testing.T) {
	n := newNode(t)
	defer n.start()()
	n.api.addPod(podtest.Pod("p", "c"))
	n.until("ready", n.ready("p"))
	n.k.evictOne(t.Context(), signals[0], eviction.Threshold{}, eviction.Observation{Available: 1, All: 2})
	n.k.storage.mu.Lock()
	defer n.k.storage.mu.Unlock()
	if _, counted := n.k.storage.files["uid-p"]; counted || n.k.storage.stats == nil {
		t.Errorf("files counted: %v, memory asked for: %v", counted, n.k.storage.stats != nil)
	}
}

// count begins to count a pod's files, which takes until the test ends.
func (n *node) count(uid types.UID) {
	counting, end := make(chan struct{}), make(chan struct{})
	n.t.Cleanup(func() { close(end) })
	go func() {
		_ = n.k.calls.Do(context.Background(), n.k.volumes.PodDir(string(uid)), 0, func() error {
			n.k.storage.begin(uid)
			close(counting)
			<-end
			return nil
		})
	}()
	<-counting
}

// TestPressureDoesNotWaitForFiles: whether the node is under pressure is looked at while the
// files of a pod that has a limit are being counted.
func TestPressureDoesNotWaitForFiles(t *testing.T) {
	n := newNode(t)
	n.measuring.each, n.measuring.all = time.Hour, time.Hour
	n.start()
	p := podtest.Pod("p", "c")
	small := resource.MustParse("1Mi")
	p.Spec.Volumes = []corev1.Volume{{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &small}}}}
	n.api.addPod(podtest.Use(p))
	n.until("ready", n.ready("p"))
	n.count(p.UID)
	before := n.k.pressure.Load()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); n.k.watchPressure(ctx) }()
	n.until("the node was looked at", func() bool { return n.k.pressure.Load() != before })
	cancel()
	<-ended
}

// TestMeasureBudget: pods whose files take long to count hold up others, and the node's
// statistics, for so long at most.
func TestMeasureBudget(t *testing.T) {
	n := newNode(t)
	n.measuring.each, n.measuring.all = time.Hour, 10*time.Millisecond
	n.start()
	add := func(name string) types.UID {
		p := podtest.Pod(name, name)
		p.Spec.Volumes = []corev1.Volume{{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		n.api.addPod(podtest.Use(p))
		n.until("ready", n.ready(name))
		return p.UID
	}
	for i := range 2 * measureWorkers {
		n.count(add(fmt.Sprint("slow", i)))
	}
	other := add("other")
	file := filepath.Join(n.k.volumes.PodDir(string(other)), "volumes", "kubernetes.io~empty-dir", "empty", "file")
	if err := os.WriteFile(file, make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	podtest.Within(t, "the node's statistics", func() error {
		_, err := n.k.summary(t.Context(), false)
		return err
	})
	n.until("the other is measured", func() bool {
		podtest.Within(t, "a measurement", func() error { n.k.measurePods(t.Context(), n.k.all(), false); return nil })
		return n.k.storageOf(other).volumes["empty"].Bytes >= 64<<10
	})
}

// TestSlowWalks: the pods that were not measured for the longest time are first; those that
// took long are few at once, and not soon again, but where all are waited for.
func TestSlowWalks(t *testing.T) {
	now := time.Now()
	m := storageMeter{walks: map[types.UID]walk{
		"quick":   {began: now.Add(-2 * time.Second), next: now.Add(time.Second)},
		"gone":    {began: now},
		"resting": {began: now.Add(-4 * time.Second), took: 3 * time.Second, next: now.Add(time.Second)},
		"goes on": {began: now.Add(-5 * time.Second), took: 3 * time.Second, underway: true},
	}}
	var workers []*worker
	live := map[types.UID]bool{}
	for _, uid := range []types.UID{"quick", "new", "resting", "goes on"} {
		workers, live[uid] = append(workers, &worker{uid: uid}), true
	}
	for i := range maxSlowWalks {
		uid := types.UID(fmt.Sprint("slow", i))
		m.walks[uid] = walk{began: now.Add(time.Duration(i-20) * time.Second), took: 2 * slowWalk}
		workers, live[uid] = append(workers, &worker{uid: uid}), true
	}
	names := func(all bool) (names []string) {
		for _, w := range m.due(workers, live, all, now) {
			names = append(names, string(w.uid))
		}
		return names
	}
	if got, want := strings.Join(names(false), ", "), "new, slow0, slow1, slow2, quick"; got != want {
		t.Errorf("due are %s, want %s", got, want)
	}
	if got, want := strings.Join(names(true), ", "), "new, slow0, slow1, slow2, slow3, goes on, resting, quick"; got != want {
		t.Errorf("due are %s of all, want %s", got, want)
	}
	if _, still := m.walks["gone"]; still {
		t.Error("a pod that is gone is remembered")
	}
}

// TestEvictionStatsAge: how old what was measured is when a pod goes for it is counted for
// each threshold that is met.
func TestEvictionStatsAge(t *testing.T) {
	n := newNode(t)
	n.rt.StopCode = 137
	n.start()
	n.api.addPod(podtest.Pod("p", "c"))
	n.until("ready", n.ready("p"))
	all, errs := eviction.Parse(map[string]string{"nodefs.available": "1000Ti", "nodefs.inodesFree": "1"}, nil, nil, nil, false)
	if errs != nil {
		t.Fatal(errs)
	}
	n.k.relieve(t.Context(), all, &eviction.State{}, &evicting{})
	age := asked(t, n.k, "/metrics")["kubelet_eviction_stats_age_seconds"]
	if got, others := total(age, "nodefs.available"), total(age, ""); got != 1 || others != 1 {
		t.Errorf("%v, %v with others", got, others)
	}
	n.until("evicted", func() bool { return n.api.pod("p").Status.Reason == "Evicted" })
}

// failingStats is a runtime that does not say what containers use.
type failingStats struct{ cri.RuntimeServiceClient }

func (failingStats) ListContainerStats(context.Context, *cri.ListContainerStatsRequest, ...grpc.CallOption) (*cri.ListContainerStatsResponse, error) {
	return nil, errors.New("no answer")
}

// TestUnmeasuredLog: that the runtime does not answer is told once, not at each measurement.
func TestUnmeasuredLog(t *testing.T) {
	log := takeLog(t)
	k := &Kubelet{runtime: failingStats{}}
	for range 10 {
		k.measureLayers(t.Context())
	}
	if n := log.count("ask the runtime what containers use", "no answer"); n != 1 {
		t.Errorf("%d lines", n)
	}
}

// TestStorageRecord: a measurement that did not count all raises what is known of a pod's
// files and lowers nothing; so does one that goes on. Several in a row that directories were
// moved from under say that the pod hides them.
func TestStorageRecord(t *testing.T) {
	files := func(bytes uint64) podStorage {
		return podStorage{
			volumes: map[string]podfile.Usage{"v": {Bytes: bytes, Inodes: bytes / 10}},
			logs:    map[string]podfile.Usage{"c": {Bytes: bytes}},
			files:   podfile.Usage{Bytes: bytes},
		}
	}
	moved, failed := fmt.Errorf("walk: %w", podfile.ErrMoved), errors.New("failed")
	var r storageRecord
	for i, c := range []struct {
		bytes uint64
		err   error
		goes  bool // on
		known uint64
		hides bool
	}{
		{bytes: 10, goes: true, known: 10},
		{bytes: 50, goes: true, known: 50},
		{bytes: 40, known: 40},
		{bytes: 20, goes: true, known: 40},
		{bytes: 70, goes: true, known: 70},
		{bytes: 70, err: failed, known: 70},
		{bytes: 20, err: moved, known: 40},
		{bytes: 0, err: moved, known: 40},
		{bytes: 60, err: moved, known: 60, hides: true},
		{bytes: 0, err: failed, known: 40, hides: true},
		{bytes: 30, known: 30},
		{bytes: 10, err: moved, known: 30},
	} {
		if c.goes {
			r = r.shown(files(c.bytes))
		} else {
			r = r.ended(files(c.bytes), c.err)
		}
		got := r.known()
		if got.volumes["v"] != (podfile.Usage{Bytes: c.known, Inodes: c.known / 10}) || got.logs["c"].Bytes != c.known || got.files.Bytes != c.known || r.hides() != c.hides {
			t.Errorf("%d: %+v, hides %v, want %d, %v", i, got, r.hides(), c.known, c.hides)
		}
	}
	r = storageRecord{}.ended(podStorage{volumes: map[string]podfile.Usage{"a": {Bytes: 1}}}, nil).ended(podStorage{volumes: map[string]podfile.Usage{"b": {Bytes: 2}}}, failed)
	if got := r.known().volumes; got["a"].Bytes != 1 || got["b"].Bytes != 2 {
		t.Errorf("volumes %v", got)
	}
}

// TestHidesFiles: a pod whose files cannot be counted, for it moves directories, goes before
// one that has much, and the log says why.
func TestHidesFiles(t *testing.T) {
	n := newNode(t)
	n.rt.StopCode = 137
	n.measuring.all = time.Nanosecond // what is known stays
	n.start()
	for _, name := range []string{"much", "hides"} {
		n.api.addPod(podtest.Pod(name, name))
		n.until("ready", n.ready(name))
	}
	files := func(bytes uint64) podStorage {
		return podStorage{volumes: map[string]podfile.Usage{"v": {Bytes: bytes}}}
	}
	n.k.storage.end("uid-much", files(1<<30), nil, n.k.storage.begin("uid-much"))
	log := takeLog(t)
	pod := n.api.pod("hides")
	for range 2 * hidesAfter {
		n.k.warnHidden(pod, n.k.storage.end(pod.UID, files(1<<20), podfile.ErrMoved, n.k.storage.begin(pod.UID)))
	}
	if lines := log.count("a pod moves its directories", pod.Name); lines != 1 {
		t.Errorf("%d lines in the log", lines)
	}
	what, _ := signalNamed(eviction.NodeFsAvailable)
	if w := n.k.evictOne(t.Context(), what, eviction.Threshold{Signal: eviction.NodeFsAvailable}, eviction.Observation{Available: 1, All: 2}); w == nil || w.uid != pod.UID {
		t.Error("the one that has much is evicted, or none")
	}
}

// endMessage is why a pod ends, "" for one that does not; its UID is uid- and its name.
func (n *node) endMessage(name string) string {
	w := n.k.worker(types.UID("uid-" + name))
	w.inbox.Lock()
	defer w.inbox.Unlock()
	if w.inbox.end == nil {
		return ""
	}
	return w.inbox.end.message
}
