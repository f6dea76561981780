package kubelet

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/node/kubelet/podtest"
)

func manifest(t *testing.T, dir, name string) {
	t.Helper()
	write(t, filepath.Join(dir, name+".yaml"), "apiVersion: v1\nkind: Pod\nmetadata: {name: "+name+", namespace: ns}\nspec: {containers: [{name: "+name+", image: 'img:1'}]}\n")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestOneBadManifest: what is wrong with one manifest is logged, and keeps neither
// the others from running nor orphans from being collected. A manifest that is
// bad while it is written does not end its pod.
func TestOneBadManifest(t *testing.T) {
	n := newNode(t)
	stop := n.start()
	n.api.addPod(podtest.Pod("orphan", "orphan"))
	n.until("ready", n.ready("orphan"))
	stop()
	n.api.dropPod("orphan")

	dir := t.TempDir()
	n.config = func(c *Config) { c.Settings.StaticPodPath = dir }
	manifest(t, dir, "good")
	write(t, filepath.Join(dir, "bad.yaml"), "kind: Pod\nmetadata: {na")
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "endless.yaml")); err != nil {
		t.Fatal(err)
	}
	defer n.start()()
	n.until("the good one runs and the orphan is gone", func() bool { return slices.Equal(n.rt.Running(), []string{"good"}) })
	write(t, filepath.Join(dir, "good.yaml"), "kind: Pod\nmetadata: {na")
	manifest(t, dir, "third")
	n.until("the third runs beside the first", func() bool { return slices.Equal(n.rt.Running(), []string{"good", "third"}) })
	if err := os.Remove(filepath.Join(dir, "good.yaml")); err != nil {
		t.Fatal(err)
	}
	n.until("the first is gone", func() bool { return slices.Equal(n.rt.Running(), []string{"third"}) })
}

// TestBadManifestIsLoggedOnce: in words that say whether its pod goes on.
func TestBadManifestIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	dir := t.TempDir()
	manifest(t, dir, "good")
	write(t, filepath.Join(dir, "bad.yaml"), "kind: Pod\nmetadata: {na")
	st := &staticPods{dir: dir, remote: &atomic.Pointer[[]manifestFile]{}}
	for range 3 {
		if pods, err := st.read("n"); err != nil || len(pods) != 1 {
			t.Fatalf("%d pods, %v", len(pods), err)
		}
	}
	write(t, filepath.Join(dir, "good.yaml"), "kind: Pod\nmetadata: {na")
	var good *corev1.Pod
	for range 3 {
		pods, err := st.read("n")
		if err != nil || len(pods) != 1 {
			t.Fatalf("%d pods, %v", len(pods), err)
		}
		good = pods[0]
	}
	for range 3 {
		st.unreadable(os.ErrPermission)
		st.mirrored(good, errors.New("it is forbidden"))
	}
	got := log.String()
	for _, want := range []string{
		"read static pods, trying again\" dir=" + dir,
		"Could not process manifest file: leave out static pod\" manifest=" + dir + "/bad.yaml",
		"Could not process manifest file: keep static pod as it was, since its manifest is not valid any more\" manifest=" + dir + "/good.yaml",
		"the API does not show this static pod\" pod=good-n_ns(" + string(good.UID) + ") err=\"it is forbidden\"",
	} {
		if strings.Count(got, want) != 1 || strings.Count(got, "\n") != 4 {
			t.Errorf("want %q once in\n%s", want, got)
		}
	}
}

// TestRefusedManifest: a manifest that the API would not show keeps the pod that it was, and
// one that is new is left out.
func TestRefusedManifest(t *testing.T) {
	dir := t.TempDir()
	manifest(t, dir, "good")
	refused := false
	st := &staticPods{dir: dir, remote: &atomic.Pointer[[]manifestFile]{}, check: func(p *corev1.Pod) error {
		if refused {
			return errors.New("spec.restartPolicy: Unsupported value")
		}
		return nil
	}}
	first, err := st.read("n")
	if err != nil || len(first) != 1 {
		t.Fatalf("%d pods, %v", len(first), err)
	}
	refused = true
	manifest(t, dir, "new")
	now, err := st.read("n")
	if err != nil || len(now) != 1 || now[0] != first[0] || len(st.bad) != 2 {
		t.Errorf("%v, %v; bad are %v", now, err, st.bad)
	}
}

// TestTwoManifestsOfOnePod: the first by name counts.
func TestTwoManifestsOfOnePod(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []string{"a", "b"} {
		write(t, filepath.Join(dir, f+".yaml"), "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: ns, uid: u}\nspec: {containers: [{name: "+f+", image: x}]}\n")
	}
	st := &staticPods{dir: dir, remote: &atomic.Pointer[[]manifestFile]{}}
	pods, err := st.read("n")
	if err != nil || len(pods) != 1 || len(st.bad) != 1 || pods[0].Spec.Containers[0].Name != "a" {
		t.Errorf("%d pods, %v", len(pods), err)
	}
}

// TestStaticPodsAreWatchedAgain: after what was watched went away, and after it
// could not be watched at first, a new manifest is found at once.
func TestStaticPodsAreWatchedAgain(t *testing.T) {
	n := newNode(t)
	dir := filepath.Join(t.TempDir(), "manifests")
	write(t, dir, "a file is in the way")
	n.config = func(c *Config) { c.Settings.StaticPodPath = dir }
	defer n.start()()
	n.api.addPod(podtest.Pod("web", "web"))
	n.until("other pods run", n.ready("web"))
	for _, name := range []string{"one", "two"} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		manifest(t, dir, name)
		n.until(name+" alone runs", func() bool { return slices.Equal(n.rt.Running(), []string{name, "web"}) })
		for _, next := range []string{"a", "b", "c", "d", "e", "f"} { // more than what is read for another reason
			manifest(t, dir, next)
			n.until("one beside it, too", func() bool { return slices.Contains(n.rt.Running(), next) })
		}
	}
}

// TestDirWatchOfAFileThatBecomesADirectory: what is written into it then shows,
// and so does its way back.
func TestDirWatchOfAFileThatBecomesADirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "manifests")
	d := &dirWatch{path: path}
	defer d.close()
	ensure := func(dir string) {
		t.Helper()
		if retry := d.ensure(); retry != never || d.dir != dir {
			t.Fatalf("%s is watched, not %s: %s", d.dir, dir, d.logged)
		}
	}
	shows := func(what, dir string) {
		t.Helper()
		select {
		case ok := <-d.changed():
			if !ok {
				d.close()
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s does not show", what)
		}
		d.drain() // what one change reports twice
		ensure(dir)
	}
	write(t, path, "a file")
	ensure(filepath.Dir(path))
	write(t, path, "another")
	shows("a change of the file", filepath.Dir(path))
	for range 3 {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		shows("the directory", path)
		manifest(t, path, "a")
		shows("a file in it", path)
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		write(t, path, "a file")
		shows("the file", filepath.Dir(path))
	}
}

// TestMirrorUntilTheEnd: the API shows a static pod for as long as it runs, though its
// manifest is another one already, or gone.
func TestMirrorUntilTheEnd(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	n.config = func(c *Config) { c.Settings.StaticPodPath = dir }
	var stays atomic.Bool // it does not heed its signal yet
	n.rt.Fail = func(method string) error {
		if method == "StopContainer" && stays.Load() {
			return errors.New("it is still running")
		}
		return nil
	}
	manifest(t, dir, "web")
	n.start()
	n.until("the static pod runs", func() bool { return n.api.pod("web-n1") != nil && n.ready("web-n1")() })
	first := n.api.pod("web-n1").UID
	stops := func() (count int) {
		for _, call := range n.rt.Calls() {
			if call == "StopContainer web" {
				count++
			}
		}
		return count
	}

	stays.Store(true)
	write(t, filepath.Join(dir, "web.yaml"), "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: ns}\nspec: {containers: [{name: web, image: 'img:2'}]}\n")
	n.until("it is told to end", func() bool { return stops() > 1 })
	if p := n.api.pod("web-n1"); p == nil || p.UID != first || p.Status.Phase != corev1.PodRunning {
		t.Errorf("the API shows %v of a pod that runs", p)
	}
	stays.Store(false)
	n.until("the next one runs", func() bool {
		p := n.api.pod("web-n1")
		return p != nil && p.UID != first && p.Spec.Containers[0].Image == "img:2" && n.ready("web-n1")()
	})

	stays.Store(true)
	earlier := stops()
	if err := os.Remove(filepath.Join(dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	n.until("it is told to end", func() bool { return stops() > earlier+1 })
	if n.api.pod("web-n1") == nil {
		t.Error("the API shows nothing of a pod that runs")
	}
	stays.Store(false)
	n.until("it is gone", func() bool { return n.api.pod("web-n1") == nil })
}

// TestFalseMirror: a pod that somebody made says that it shows a static one, which there is
// not. Nothing is run for it, whatever its annotation is, and it is deleted.
func TestFalseMirror(t *testing.T) {
	n := newNode(t)
	for name, hash := range map[string]string{"empty": "", "made-up": "x"} {
		p := podtest.Pod(name, name)
		p.Annotations = map[string]string{annConfigMirror: hash}
		n.api.addPod(p)
	}
	n.api.addPod(podtest.Pod("plain", "plain"))
	defer n.start()()
	n.until("they are gone", func() bool { return n.api.pod("empty") == nil && n.api.pod("made-up") == nil && n.ready("plain")() })
	n.until("they are forgotten", func() bool { // the API has deleted them before the kubelet hears that it has
		n.k.mu.Lock()
		defer n.k.mu.Unlock()
		return len(n.k.workers) == 1 && len(n.k.mirrors) == 0
	})
	if running := n.rt.Running(); !slices.Equal(running, []string{"plain"}) {
		t.Errorf("running: %q", running)
	}
}

// TestStaticPodAcrossRestart: a static pod that has started and is ready stays so when the
// kubelet starts again, until a probe says otherwise: its manifest does not tell, the API does.
func TestStaticPodAcrossRestart(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	n.config = func(c *Config) { c.Settings.StaticPodPath = dir }
	var code atomic.Int32
	n.rt.OnExec = func(string, []string) (string, int32) { return "", code.Load() }
	probe := "{exec: {command: [x]}, failureThreshold: 1000}"
	write(t, filepath.Join(dir, "web.yaml"), "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: ns}\nspec: {containers: [{name: web, image: 'img:1', startupProbe: "+probe+", readinessProbe: "+probe+"}]}\n")
	stop := n.start()
	n.until("ready", func() bool { return n.api.pod("web-n1") != nil && n.ready("web-n1")() })
	since := n.api.pod("web-n1").Status.StartTime
	stop()
	code.Store(1) // no probe of the next kubelet succeeds
	n.start()
	n.until("it is ready for the next kubelet", func() bool {
		all := n.k.all()
		if len(all) == 0 {
			return false
		}
		s := all[0].shown.Load().status
		return s != nil && len(s.ContainerStatuses) == 1 && *s.ContainerStatuses[0].Started && s.ContainerStatuses[0].Ready && s.StartTime.Equal(since)
	})
	if p := n.api.pod("web-n1"); !*p.Status.ContainerStatuses[0].Started || !p.Status.ContainerStatuses[0].Ready {
		t.Errorf("the API shows %+v", p.Status.ContainerStatuses)
	}
}

// TestLostMirror: a static pod whose manifest goes while no kubelet runs ends, and the API shows
// it no longer; one whose manifest is there stays.
func TestLostMirror(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	n.config = func(c *Config) { c.Settings.StaticPodPath = dir }
	manifest(t, dir, "web")
	manifest(t, dir, "gone")
	stop := n.start()
	n.until("both run", func() bool {
		return n.api.pod("web-n1") != nil && n.ready("web-n1")() && n.api.pod("gone-n1") != nil && n.ready("gone-n1")()
	})
	kept := n.api.pod("web-n1").UID
	stop()
	if err := os.Remove(filepath.Join(dir, "gone.yaml")); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.until("it has ended", func() bool { return slices.Equal(n.rt.Running(), []string{"web"}) && len(n.k.all()) == 1 })
	o := orphans{k: n.k, busy: map[string]bool{}, failures: map[string]bool{}}
	if err := o.collect(t.Context()); err != nil { // that of the kubelet comes a minute later
		t.Fatal(err)
	}
	o.group.Wait()
	if n.api.pod("gone-n1") != nil {
		t.Error("the API shows a static pod that has no manifest")
	}
	if p := n.api.pod("web-n1"); p == nil || p.UID != kept {
		t.Errorf("the API shows %v of one that has", p)
	}
}

// TestStaticPodComesAgain: one whose manifest comes back while it ends is started anew, and
// counted; until then its worker counts as that of a pod which nobody wants.
func TestStaticPodComesAgain(t *testing.T) {
	n := newNode(t)
	var stays atomic.Bool
	n.rt.Fail = func(method string) error {
		if method == "StopContainer" && stays.Load() {
			return errors.New("it is still running")
		}
		return nil
	}
	n.start()
	n.until("the node", func() bool { return n.k.static.isOpen() })
	dir := t.TempDir()
	st := &staticPods{dir: dir, remote: &atomic.Pointer[[]manifestFile]{}, ours: map[types.UID]*corev1.Pod{}, again: map[types.UID]bool{}}
	counted := func(name, label string) float64 { return total(asked(t, n.k, "/metrics")[name], label) }
	manifest(t, dir, "web")
	n.k.syncStatic(t.Context(), st)
	n.until("the static pod runs", func() bool { return n.api.pod("web-n1") != nil && n.ready("web-n1")() })
	if got := counted("kubelet_working_pods", "desired"); got != 1 {
		t.Errorf("%v pods are worked for", got)
	}
	stays.Store(true)
	if err := os.Remove(filepath.Join(dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	n.k.syncStatic(t.Context(), st)
	n.until("it is ending", func() bool { return counted("kubelet_working_pods", "terminating") == 1 })
	if got := counted("kubelet_working_pods", "orphan"); got != 1 {
		t.Errorf("%v pods are wanted by nobody", got)
	}
	manifest(t, dir, "web")
	n.k.syncStatic(t.Context(), st)
	stays.Store(false)
	n.until("it has ended", func() bool { return len(n.k.all()) == 0 })
	n.k.syncStatic(t.Context(), st)
	n.until("it runs again", func() bool { return slices.Equal(n.rt.Running(), []string{"web"}) })
	if got := counted("kubelet_restarted_pods_total", "true"); got != 1 {
		t.Errorf("it came again %v times", got)
	}
}

// TestDeletedMirror: what the API shows of a static pod comes back at once when somebody
// deletes it.
func TestDeletedMirror(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	n.config = func(c *Config) { c.Settings.StaticPodPath, c.Settings.FileCheckFrequency.Duration = dir, time.Hour }
	manifest(t, dir, "web")
	n.start()
	n.until("it runs", func() bool { return n.api.pod("web-n1") != nil && n.ready("web-n1")() })
	for _, remove := range []func(string){n.api.deletePod, n.api.dropPod} {
		before := n.api.pod("web-n1").UID
		remove("web-n1")
		n.until("it is shown again", func() bool {
			p := n.api.pod("web-n1")
			return p != nil && p.UID != before && n.ready("web-n1")()
		})
	}
	if starts := slices.DeleteFunc(n.rt.Calls(), func(call string) bool { return call != "StartContainer web" }); len(starts) != 1 {
		t.Errorf("it was started %d times", len(starts))
	}
}

// TestStaticPodOfOneUID: a manifest that names its pod's UID changes that pod.
func TestStaticPodOfOneUID(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	n.config = func(c *Config) { c.Settings.StaticPodPath = dir }
	put := func(image string) {
		write(t, filepath.Join(dir, "web.yaml"), "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: ns, uid: u}\nspec: {containers: [{name: web, image: '"+image+"'}]}\n")
	}
	put("img:1")
	n.start()
	n.until("it runs", func() bool { return n.api.pod("web-n1") != nil && n.ready("web-n1")() })
	put("img:2")
	n.until("it runs with the new image", func() bool {
		p := n.api.pod("web-n1")
		return p != nil && p.Spec.Containers[0].Image == "img:2" && n.ready("web-n1")() && p.Status.ContainerStatuses[0].Image == "img:2"
	})
}
