package kubelet

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/node/kubelet/podcertificate"
)

// newCertificates makes what gets the certificates of pods.
func (k *Kubelet) newCertificates() *podcertificate.Manager {
	return podcertificate.New(podcertificate.Config{
		Client: k.client, Node: k.cfg.NodeName,
		NodeUID: func(ctx context.Context) (types.UID, error) {
			n, err := k.client.CoreV1().Nodes().Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			return n.UID, nil
		},
		Follow: func(follow func(context.Context)) {
			k.wg.Go("kubelet: certificate of a pod", func() { follow(k.ctx) })
		},
		Changed: func(pod types.UID) {
			if w := k.worker(pod); w != nil {
				w.dirty.Store(true)
				w.poke()
			}
		},
		Event: func(pod *corev1.Pod, kind, reason, message string) {
			k.events.Event(podReference(pod), kind, reason, message)
		},
	})
}

func (k *Kubelet) podCertificate(ctx context.Context, pod *corev1.Pod, volume string, index int, p *corev1.PodCertificateProjection) (key, chain []byte, refresh time.Time, err error) {
	c, refresh, err := k.certificates.Get(ctx, pod, volume, index, p)
	return c.Key, c.Chain, refresh, err
}
