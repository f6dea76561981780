package kubelet

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/internal/logonce"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/podstatus"
)

// Annotations of static pods and their mirrors.
const (
	annConfigSource = podspec.ConfigSource
	annConfigHash   = "kubernetes.io/config.hash"
	annConfigSeen   = "kubernetes.io/config.seen"
	annConfigMirror = "kubernetes.io/config.mirror"
)

// followStatic runs the pods whose manifests lie in a directory, or at a URL.
func (k *Kubelet) followStatic(ctx context.Context) {
	dir, url := k.cfg.Settings.StaticPodPath, k.cfg.Settings.StaticPodURL
	if dir == "" && url == "" {
		k.static.open()
		return
	}
	if !k.waitRuntime(ctx) {
		return
	}
	// The API's copies first, if they can be had.
	if !k.synced.waitFor(ctx, 10*time.Second) {
		return
	}
	duplicate := func(p *corev1.Pod) {
		k.events.Eventf(podReference(p), corev1.EventTypeWarning, "FailedValidation",
			"Error validating pod %s from %s due to duplicate pod name %q, ignoring", podspec.Format(p), p.Annotations[annConfigSource], p.Name)
	}
	failed := func(what string) {
		k.events.Event(k.nodeRef(), corev1.EventTypeWarning, "FailedStaticPod", what)
	}
	st := &staticPods{dir: dir, remote: &k.manifests, duplicate: duplicate, failed: failed, check: k.cfg.CheckStatic, byFile: map[string]*corev1.Pod{}, bad: map[string]string{}, ours: map[types.UID]*corev1.Pod{}, again: map[types.UID]bool{}}
	watch := &dirWatch{path: dir}
	defer watch.close()
	for {
		retry := never
		if dir != "" {
			retry = watch.ensure()
		}
		if k.syncStatic(ctx, st) && (url == "" || k.manifests.Load() != nil) {
			k.static.open()
		}
		select {
		case <-ctx.Done():
			return
		case <-k.staticWake: // one of them has ended: its successor may begin; or a mirror is gone
		case ok := <-watch.changed():
			if !ok {
				watch.close() // the directory is another now, or events were lost
			}
			if !sleep(ctx, settleTime) {
				return
			}
			watch.drain()
		case <-time.After(min(retry, k.cfg.Settings.FileCheckFrequency.Duration)): // what was missed, and mirrors
		}
	}
}

const (
	// settleTime is what an editor gets, which writes in steps.
	settleTime  = 50 * time.Millisecond
	maxManifest = 10 << 20
)

// staticPods is what followStatic knows of a directory.
type staticPods struct {
	dir string // "": none
	// remote are the manifests of the URL.
	remote *atomic.Pointer[[]manifestFile]
	// byFile are the pods of the manifests that were good when last read.
	byFile map[string]*corev1.Pod
	// bad is what is wrong with the others, which is logged once, and again once in a while.
	bad  map[string]string
	news logonce.Filter
	// check says why a pod is not to run; nil: nothing is asked.
	check func(*corev1.Pod) error
	// duplicate is called with a pod of a name or UID that another manifest has, once.
	duplicate func(*corev1.Pod)
	// failed is called with what is wrong with a manifest when that is logged; nil: it is not.
	failed func(string)
	// ignored is what of the manifests is not read, which is logged once.
	ignored map[string]string
	// readErr is why the directory could not be read.
	readErr string
	// ours are the pods that were started, until nothing of them is left.
	ours map[types.UID]*corev1.Pod
	// again are the pods whose manifests came back while they ended.
	again map[types.UID]bool
	// hidden are the pods that the API would not show.
	hidden map[types.UID]*hiddenPod
}

func (st *staticPods) unreadable(err error) {
	if again := st.news.IsNew(st.dir, err.Error()); !again && st.readErr == err.Error() {
		return
	}
	st.readErr = err.Error()
	slog.Warn("read static pods, trying again", "dir", st.dir, "err", err)
	if st.failed != nil {
		st.failed(fmt.Sprintf("Could not read the directory of static pods, staticPodPath (--pod-manifest-path): %v", err))
	}
}

// read brings the pods up to date. A manifest that has become bad keeps the pod
// that it was: it may be half written.
func (st *staticPods) read(node string) ([]*corev1.Pod, error) {
	var files []manifestFile
	if st.dir != "" {
		var err error
		if files, err = readManifests(st.dir, node); err != nil {
			return nil, err
		}
	}
	local := len(files)
	if remote := st.remote.Load(); remote != nil {
		files = append(files, *remote...)
	}
	byFile, bad, seen, ignored := map[string]*corev1.Pod{}, map[string]string{}, map[string]string{}, map[string]string{}
	var pods []*corev1.Pod
	for i, f := range files {
		if text := podstatus.Truncate(strings.Join(f.ignored, "; ")); text != "" {
			ignored[f.path] = text
			if st.ignored[f.path] != text {
				slog.Warn("a part of a manifest is ignored", "manifest", f.path, "ignored", text)
			}
		}
		pod, err, duplicate := f.pod, f.err, false
		if err == nil && st.check != nil {
			err = st.check(pod)
		}
		if err != nil {
			pod = st.byFile[f.path]
		} else if other := cmp.Or(seen[pod.Namespace+"/"+pod.Name], seen[string(pod.UID)]); other != "" {
			if st.duplicate != nil && st.bad[f.path] == "" {
				st.duplicate(pod)
			}
			pod, err, duplicate = nil, fmt.Errorf("%s has a pod of that name or UID already", other), true
		}
		if err != nil {
			bad[f.path] = err.Error()
			isNew, what := st.bad[f.path] != err.Error(), "leave out static pod"
			if pod != nil {
				what = "keep static pod as it was, since its manifest is not valid any more"
			}
			isNew = st.news.IsNew(f.path, err.Error()) || isNew
			if isNew {
				slog.Warn("Could not process manifest file: "+what, "manifest", f.path, "err", err)
			}
			if isNew && !duplicate && st.failed != nil {
				from := f.path
				if i >= local { // there may be a password in a URL
					from = "of staticPodURL (--manifest-url)"
				}
				st.failed(fmt.Sprintf("Could not process manifest file %s: %v; %s", from, err, what))
			}
		}
		if pod != nil {
			seen[pod.Namespace+"/"+pod.Name], seen[string(pod.UID)] = f.path, f.path
			byFile[f.path] = pod
			pods = append(pods, pod)
		}
	}
	st.byFile, st.bad, st.ignored = byFile, bad, ignored
	return pods, nil
}

func (k *Kubelet) syncStatic(ctx context.Context, st *staticPods) bool {
	pods, err := st.read(k.cfg.NodeName)
	if err != nil {
		st.unreadable(err)
		return false // what cannot be read has not gone
	}
	st.readErr = ""
	seen := map[types.UID]bool{}
	for _, p := range pods {
		seen[p.UID] = true
	}
	k.endStatic(ctx, st, seen)
	maps.DeleteFunc(st.again, func(uid types.UID, _ bool) bool { return !seen[uid] })
	for _, p := range pods {
		st.ours[p.UID] = p
		k.mu.Lock()
		w := k.workers[p.UID]
		if w == nil {
			if same := k.sameName(p); same == nil { // the one before it ends first
				w = k.startWorker(p)
				if st.again[p.UID] {
					k.metrics.restartedPods.WithLabelValues("true").Inc()
				}
				delete(st.again, p.UID)
			}
		} else if w.isGone() {
			st.again[p.UID] = true // it comes again once it has ended
		} else if w.shown.Load().pod.Annotations[annConfigHash] != p.Annotations[annConfigHash] {
			w.set(p) // its manifest names its UID, and has changed
		}
		k.mu.Unlock()
		if w != nil && st.mayMirror(p) {
			if err := k.ensureMirror(ctx, w, p); ctx.Err() == nil {
				st.mirrored(p, err)
			}
		}
	}
	return true
}

// endStatic ends those that have no manifest any more. The API shows one until it has
// ended, since it runs until then.
func (k *Kubelet) endStatic(ctx context.Context, st *staticPods, seen map[types.UID]bool) {
	for uid, p := range st.ours {
		if seen[uid] {
			continue
		}
		if w := k.worker(uid); w != nil {
			w.finish()
			continue
		}
		if m := k.mirrorOf(p); m == nil || m.Annotations[annConfigMirror] != p.Annotations[annConfigHash] || k.removeMirror(ctx, m) {
			delete(st.ours, uid)
			delete(st.hidden, uid)
		}
	}
}

// sameName is a worker of another pod of the same name; the lock is held.
func (k *Kubelet) sameName(p *corev1.Pod) *worker {
	for _, w := range k.workers {
		if o := w.shown.Load().pod; o.Namespace == p.Namespace && o.Name == p.Name && o.UID != p.UID {
			return w
		}
	}
	return nil
}

// setDefaults fills in what the API server would have.
func setDefaults(p *corev1.Pod) {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def((*string)(&p.Spec.RestartPolicy), string(corev1.RestartPolicyAlways))
	def((*string)(&p.Spec.DNSPolicy), string(corev1.DNSClusterFirst))
	def(&p.Spec.SchedulerName, corev1.DefaultSchedulerName)
	if p.Spec.TerminationGracePeriodSeconds == nil {
		p.Spec.TerminationGracePeriodSeconds = new(int64(30))
	}
	if p.Spec.EnableServiceLinks == nil {
		p.Spec.EnableServiceLinks = new(true)
	}
	if p.Spec.SecurityContext == nil {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			c := &list[i]
			def(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
			def((*string)(&c.TerminationMessagePolicy), string(corev1.TerminationMessageReadFile))
			c.ImagePullPolicy = pullPolicy(c.Image, c.ImagePullPolicy)
			for j := range c.Ports {
				def((*string)(&c.Ports[j].Protocol), string(corev1.ProtocolTCP))
				if p.Spec.HostNetwork && c.Ports[j].HostPort == 0 {
					c.Ports[j].HostPort = c.Ports[j].ContainerPort
				}
			}
			for name, q := range c.Resources.Limits {
				if _, ok := c.Resources.Requests[name]; !ok {
					if c.Resources.Requests == nil {
						c.Resources.Requests = corev1.ResourceList{}
					}
					c.Resources.Requests[name] = q
				}
			}
			for _, pr := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
				if pr == nil {
					continue
				}
				for _, f := range []struct {
					n *int32
					d int32
				}{{&pr.TimeoutSeconds, 1}, {&pr.PeriodSeconds, 10}, {&pr.SuccessThreshold, 1}, {&pr.FailureThreshold, 3}} {
					if *f.n == 0 {
						*f.n = f.d
					}
				}
			}
		}
	}
}

func shortHash(b []byte) string {
	h := fnv.New128a()
	h.Write(b)
	return hex.EncodeToString(h.Sum(nil))
}
