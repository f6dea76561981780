package kubelet

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/volume"
)

func (k *Kubelet) watchPressure(ctx context.Context)  {}
func (k *Kubelet) collectOrphans(ctx context.Context) {}
func (k *Kubelet) followStatic(ctx context.Context)   {}
func (k *Kubelet) csi() volume.Driver                 { return nil }
func (k *Kubelet) mirrorChanged(pod *corev1.Pod)      {}
func (k *Kubelet) mirrorGone(pod *corev1.Pod)         {}
func (w *worker) resize(ctx context.Context)          {}
func admitPressure(*corev1.Pod, *pressure) *rejection { return nil }

type pressure struct{ memory, disk, pids bool }
