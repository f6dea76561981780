package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// followStatic runs the pods whose manifests lie in a directory.
func (k *Kubelet) followStatic(ctx context.Context) {
	dir := k.cfg.StaticPodDir
	if dir == "" {
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
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		_ = os.MkdirAll(dir, 0o755)
		err = watcher.Add(dir)
	}
	if err != nil {
		slog.Warn("watch static pods", "dir", dir, "err", err)
		return
	}
	ours := map[types.UID]bool{}
	for {
		if k.syncStatic(ctx, dir, ours) {
			k.static.open()
		}
		select {
		case <-ctx.Done():
			return
		case <-watcher.Events:
			if !sleep(ctx, 50*time.Millisecond) { // an editor writes in steps
				return
			}
			for len(watcher.Events) > 0 {
				<-watcher.Events
			}
		case <-time.After(20 * time.Second): // what was missed, and mirrors
		}
	}
}

func (k *Kubelet) syncStatic(ctx context.Context, dir string, ours map[types.UID]bool) bool {
	pods, err := readManifests(dir, k.cfg.NodeName)
	if err != nil {
		slog.Warn("read static pods", "dir", dir, "err", err)
		return false // a half-written file ends nothing
	}
	seen := map[types.UID]bool{}
	for _, p := range pods {
		seen[p.UID] = true
		ours[p.UID] = true
		k.mu.Lock()
		w := k.workers[p.UID]
		if w == nil {
			if same := k.sameName(p); same == nil { // the one before it ends first
				w = k.startWorker(p)
			}
		}
		k.mu.Unlock()
		if w != nil {
			k.ensureMirror(ctx, w, p)
		}
	}
	for uid := range ours {
		if seen[uid] {
			continue
		}
		if w := k.worker(uid); w != nil {
			k.deleteMirror(ctx, w)
			w.finish()
		} else {
			delete(ours, uid)
		}
	}
	return true
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

// readManifests reads every manifest of a directory.
func readManifests(dir, node string) (pods []*corev1.Pod, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.IsDir() {
			continue
		}
		path := filepath.Join(dir, e.Name())
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		p, err := decodeStatic(b, path, node)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// decodeStatic makes a pod of a manifest.
func decodeStatic(b []byte, path, node string) (*corev1.Pod, error) {
	p := &corev1.Pod{}
	if err := yaml.Unmarshal(b, p); err != nil {
		return nil, err
	}
	if p.Kind != "Pod" || p.Name == "" || len(p.Spec.Containers) == 0 {
		return nil, fmt.Errorf("no pod with a name and containers")
	}
	hash := shortHash(append(append([]byte(node+"\x00"+path+"\x00"), b...), p.UID...))
	if p.UID == "" {
		p.UID = types.UID(hash)
	}
	p.Name += "-" + lower(node)
	if p.Namespace == "" {
		p.Namespace = metav1.NamespaceDefault
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[annConfigHash], p.Annotations[annConfigSource] = hash, "file"
	p.Annotations[annConfigSeen] = time.Now().Format(time.RFC3339Nano)
	p.Spec.NodeName = node
	p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})
	p.Status = corev1.PodStatus{Phase: corev1.PodPending}
	setDefaults(p)
	return p, nil
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
			if c.ImagePullPolicy == "" {
				c.ImagePullPolicy = corev1.PullIfNotPresent
				if strings.HasSuffix(withTag(c.Image), ":latest") {
					c.ImagePullPolicy = corev1.PullAlways
				}
			}
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

// mirrorChanged hears of the API's copy of a static pod.
func (k *Kubelet) mirrorChanged(m *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mirrors[m.UID] = m
	for _, w := range k.workers {
		if p := w.shown.Load().pod; isStatic(p) && p.Namespace == m.Namespace && p.Name == m.Name {
			w.inbox.Lock()
			w.inbox.mirror = m
			w.inbox.Unlock()
			w.poke()
		}
	}
}

func (k *Kubelet) mirrorGone(m *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.mirrors, m.UID)
	for _, w := range k.workers {
		w.inbox.Lock()
		if w.inbox.mirror != nil && w.inbox.mirror.UID == m.UID {
			w.inbox.mirror = nil
		}
		w.inbox.Unlock()
	}
}

// ensureMirror makes the API show a static pod.
func (k *Kubelet) ensureMirror(ctx context.Context, w *worker, p *corev1.Pod) {
	w.inbox.Lock()
	have := w.inbox.mirror
	w.inbox.Unlock()
	if have == nil {
		k.mu.Lock()
		for _, m := range k.mirrors {
			if m.Namespace == p.Namespace && m.Name == p.Name {
				have = m
			}
		}
		k.mu.Unlock()
		if have != nil {
			k.mirrorChanged(have)
		}
	}
	hash := p.Annotations[annConfigHash]
	if have != nil && have.Annotations[annConfigMirror] == hash && have.DeletionTimestamp == nil {
		return
	}
	if have != nil { // an older version's
		k.removeMirror(ctx, have)
		return
	}
	m := p.DeepCopy()
	m.UID, m.ResourceVersion, m.Status = "", "", corev1.PodStatus{}
	m.Annotations[annConfigMirror] = hash
	if n := k.node.Load(); n != nil {
		yes := true
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID, Controller: &yes}}
	}
	got, err := k.client.CoreV1().Pods(m.Namespace).Create(ctx, m, metav1.CreateOptions{})
	if err != nil {
		if !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
			slog.Debug("create mirror pod", "pod", podRef(p), "err", err)
		}
		return
	}
	k.mirrorChanged(got)
}

func (k *Kubelet) deleteMirror(ctx context.Context, w *worker) {
	w.inbox.Lock()
	m := w.inbox.mirror
	w.inbox.Unlock()
	if m != nil {
		k.removeMirror(ctx, m)
	}
}

func (k *Kubelet) removeMirror(ctx context.Context, m *corev1.Pod) {
	if err := k.deletePod(ctx, m); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		slog.Warn("delete mirror pod", "pod", podRef(m), "err", err)
	}
}
