package kubelet

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const orphanPeriod = time.Minute

// collectOrphans ends and removes what no pod of the API stands for: pods
// deleted while the kubelet was away, and directories left behind.
func (k *Kubelet) collectOrphans(ctx context.Context) {
	if !k.synced.wait(ctx) || !k.static.wait(ctx) {
		return
	}
	for {
		if err := k.orphans(ctx); err != nil && ctx.Err() == nil {
			slog.Warn("collect orphans", "err", err)
		}
		if !sleep(ctx, orphanPeriod) {
			return
		}
	}
}

func (k *Kubelet) orphans(ctx context.Context) error {
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
	lost := map[types.UID]*corev1.Pod{}
	add := func(labels, annotations map[string]string) {
		uid := types.UID(labels[labelPodUID])
		if uid == "" || k.worker(uid) != nil {
			return
		}
		p := lost[uid]
		if p == nil {
			p = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: labels[labelPodName], Namespace: labels[labelPodNamespace], UID: uid}}
			lost[uid] = p
		}
		if g, err := strconv.ParseInt(annotations[annTerminationGrace], 10, 64); err == nil {
			p.Spec.TerminationGracePeriodSeconds = &g
		}
		if name := labels[labelContainerName]; name != "" {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name})
		}
	}
	for _, s := range boxes.Items {
		add(s.Labels, nil)
	}
	for _, c := range containers.Containers {
		add(c.Labels, c.Annotations)
	}
	k.mu.Lock()
	for uid, pod := range lost {
		if k.workers[uid] == nil {
			slog.Info("ending a pod that is not in the API", "pod", podRef(pod))
			pod.Status.StartTime = &metav1.Time{Time: time.Now()} // not to be admitted anew
			k.startWorker(pod).finish()
		}
	}
	k.mu.Unlock()
	for _, uid := range dirs {
		if k.worker(types.UID(uid)) == nil && lost[types.UID(uid)] == nil {
			if err := k.volumes.Unmount(ctx, uid); err != nil {
				slog.Warn("remove the directory of a pod that is gone", "uid", uid, "err", err)
			}
		}
	}
	for _, d := range logs {
		parts := strings.Split(d.Name(), "_")
		if len(parts) != 3 || !d.IsDir() || k.worker(types.UID(parts[2])) != nil || lost[types.UID(parts[2])] != nil {
			continue
		}
		if err := os.RemoveAll(filepath.Join(k.cfg.PodLogsDir, d.Name())); err != nil {
			return err
		}
	}
	k.deadLinks()
	return nil
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
		if _, err := os.Stat(to); os.IsNotExist(err) {
			_ = os.Remove(l)
		}
	}
}
