package kubelet

import (
	"context"

	"knarr/node/kubelet/volume"
)

func (k *Kubelet) csi() volume.Driver        { return nil }
func (w *worker) resize(ctx context.Context) {}
