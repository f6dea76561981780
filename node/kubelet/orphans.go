package kubelet

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/run"
	"knarr/node/kubelet/crilabels"
	"knarr/node/kubelet/podfile"
	"knarr/node/kubelet/podspec"
)

const orphanPeriod = time.Minute

// collectOrphans ends and removes what no pod of the API stands for: pods
// deleted while the kubelet was away, and directories left behind.
func (k *Kubelet) collectOrphans(ctx context.Context) {
	if !k.synced.wait(ctx) || !k.static.wait(ctx) {
		return
	}
	o := orphans{k: k, busy: map[string]bool{}, failures: map[string]bool{}}
	defer o.group.Wait()
	for {
		if err := o.collect(ctx); err != nil && ctx.Err() == nil {
			slog.Warn("collect orphans", "err", err)
			k.events.Event(k.nodeRef(), corev1.EventTypeWarning, "ContainerGCFailed", err.Error())
		}
		if !sleep(ctx, orphanPeriod) {
			return
		}
	}
}

// orphans is what is being taken away, each thing beside the others: one whose
// driver or file system does not answer holds up nothing else.
type orphans struct {
	k     *Kubelet
	group run.Group
	mu    sync.Mutex
	busy  map[string]bool
	// failures are the pods whose directories could not be removed.
	failures map[string]bool
}

// begin takes one thing away, unless that is still going on.
func (o *orphans) begin(what string, f func() error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.busy[what] {
		return
	}
	o.busy[what] = true
	o.group.Go("remove orphan", func() {
		defer func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			delete(o.busy, what)
		}()
		if err := f(); err != nil && o.k.ctx.Err() == nil {
			slog.Warn("remove what is left of a pod that is gone", "what", what, "err", err)
		}
	})
}

func (o *orphans) collect(ctx context.Context) error {
	k := o.k
	// Listed before asking who is known: what starts meanwhile is known then.
	boxes, err := k.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	containers, err := k.runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return err
	}
	dirs, err := k.volumes.Pods()
	if err != nil {
		return err
	}
	logs, err := os.ReadDir(k.cfg.PodLogsDir)
	if err != nil {
		return err
	}
	lost := lostPods(boxes.Items, containers.Containers)
	for uid := range lost {
		if k.worker(uid) != nil {
			delete(lost, uid)
		}
	}
	k.mu.Lock()
	for uid, pod := range lost {
		if k.workers[uid] == nil {
			slog.Info("ending a pod that is not in the API", "pod", podspec.Format(pod))
			pod.Status.StartTime = &metav1.Time{Time: time.Now()} // not to be admitted anew
			k.metrics.orphanedPods.Inc()
			k.startWorker(pod).finish()
		}
	}
	k.mu.Unlock()
	found := map[string]bool{}
	for _, uid := range dirs {
		if k.worker(types.UID(uid)) == nil && lost[types.UID(uid)] == nil {
			found[uid] = true
			o.begin("directory of "+uid, func() error {
				err := o.removeDir(ctx, uid)
				o.failed(uid, err)
				return err
			})
		}
	}
	o.count(found)
	o.begin("staged volumes", func() error { return k.drivers.Collect(ctx) })
	for _, d := range logs {
		parts := strings.Split(d.Name(), "_")
		if len(parts) != 3 || !d.IsDir() || k.worker(types.UID(parts[2])) != nil || lost[types.UID(parts[2])] != nil {
			continue
		}
		path := filepath.Join(k.cfg.PodLogsDir, d.Name())
		o.begin("logs "+d.Name(), func() error { return podfile.RemoveAll(ctx, path) })
	}
	o.begin("mirror pods", func() error {
		k.endOrphanMirrors(ctx)
		return nil
	})
	k.deadLinks()
	return nil
}

// removeDir removes a pod's directory, and its users.
func (o *orphans) removeDir(ctx context.Context, uid string) error {
	if o.k.worker(types.UID(uid)) != nil {
		return nil
	}
	if err := o.k.volumes.Unmount(ctx, uid); err != nil {
		return err
	}
	return o.k.users.Release(types.UID(uid))
}

// failed notes whether a directory could not be removed.
func (o *orphans) failed(uid string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.failures, uid)
	if err != nil {
		o.failures[uid] = true
	}
}

// count shows how many directories were found this time, and how many of them could not
// be removed the last time.
func (o *orphans) count(found map[string]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.failures, func(uid string, _ bool) bool { return !found[uid] })
	o.k.metrics.orphanDirs.Set(float64(len(found)))
	o.k.metrics.orphanDirErrors.Set(float64(len(o.failures)))
}

// lostPods makes of what the runtime holds pods that can be ended as their
// specs said: with their grace and their preStop hooks.
func lostPods(boxes []*cri.PodSandbox, containers []*cri.Container) map[types.UID]*corev1.Pod {
	lost := map[types.UID]*corev1.Pod{}
	add := func(labels map[string]string) *corev1.Pod {
		uid := types.UID(labels[crilabels.PodUID])
		if lost[uid] == nil && uid != "" {
			lost[uid] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: labels[crilabels.PodName], Namespace: labels[crilabels.PodNamespace], UID: uid}}
		}
		return lost[uid]
	}
	for _, s := range boxes {
		add(s.Labels)
	}
	slices.SortFunc(containers, func(a, b *cri.Container) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
	for _, c := range containers {
		p := add(c.Labels)
		if p == nil {
			continue
		}
		if g, err := strconv.ParseInt(c.Annotations[crilabels.TerminationGracePeriod], 10, 64); err == nil && p.Spec.TerminationGracePeriodSeconds == nil {
			p.Spec.TerminationGracePeriodSeconds = &g
		}
		if g, err := strconv.ParseInt(c.Annotations[crilabels.DeletionGracePeriod], 10, 64); err == nil && p.DeletionGracePeriodSeconds == nil {
			p.DeletionGracePeriodSeconds = &g
		}
		name := c.Labels[crilabels.ContainerName]
		if known, _ := podspec.FindContainer(p, name); name == "" || known != nil {
			continue
		}
		spec := corev1.Container{Name: name, TerminationMessagePath: c.Annotations[crilabels.TerminationMessagePath]}
		_ = json.Unmarshal([]byte(c.Annotations[crilabels.ContainerPorts]), &spec.Ports) // a hook may name one
		var hook *corev1.LifecycleHandler
		if err := json.Unmarshal([]byte(c.Annotations[crilabels.PreStopHandler]), &hook); err == nil && hook != nil {
			spec.Lifecycle = &corev1.Lifecycle{PreStop: hook}
		}
		p.Spec.Containers = append(p.Spec.Containers, spec)
	}
	return lost
}

// deadLinks removes links to logs that are gone.
func (k *Kubelet) deadLinks() {
	if k.cfg.ContainerLogsDir == "" {
		return
	}
	links, _ := filepath.Glob(filepath.Join(k.cfg.ContainerLogsDir, "*.log"))
	for _, l := range links {
		to, err := os.Readlink(l)
		if err != nil || !strings.HasPrefix(to, k.cfg.PodLogsDir+"/") {
			continue
		}
		if _, err := os.Lstat(to); os.IsNotExist(err) {
			_ = os.Remove(l)
		}
	}
}
