package kubelet

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/criconfig"
	"knarr/node/kubelet/userns"
)

// defaultIDsPerPod is how many ids a pod with users of its own gets.
const defaultIDsPerPod = 65536

// newUsers makes what gives pods ids for user namespaces.
func (k *Kubelet) newUsers(ctx context.Context) error {
	c, err := k.usersConfig(ctx)
	if err != nil {
		return fmt.Errorf("kubelet mappings: %w", err)
	}
	pods, err := k.volumes.Pods()
	if err != nil {
		return fmt.Errorf("read pods from disk: %w", err)
	}
	k.users, err = userns.New(c, pods)
	return err
}

func (k *Kubelet) usersConfig(ctx context.Context) (c userns.Config, err error) {
	each := uint32(defaultIDsPerPod)
	if u := k.cfg.Settings.UserNamespaces; u != nil && u.IDsPerPod != nil {
		each = uint32(*u.IDsPerPod) // validated
	}
	ids, err := userns.IDs(ctx, each)
	return userns.Config{IDs: ids, Each: each, MaxPods: k.maxPods(), PodDir: func(uid types.UID) string { return k.volumes.PodDir(string(uid)) }}, err
}

// checkUserIDs says why the node's ids are not enough for its pods.
func (k *Kubelet) checkUserIDs() error {
	c, err := k.usersConfig(context.Background())
	if err == nil {
		_, err = userns.New(c, nil)
	}
	if err != nil {
		return fmt.Errorf("userNamespaces.idsPerPod, maxPods (--max-pods), or the user kubelet in /etc/subuid and /etc/subgid: %w", err)
	}
	return nil
}

// sandboxConfig is the configuration of a pod's sandbox and the handler that runs it.
func (k *Kubelet) sandboxConfig(ctx context.Context, pod *corev1.Pod, attempt uint32) (*cri.PodSandboxConfig, string, error) {
	handler, err := k.handler(ctx, pod)
	if err != nil {
		return nil, "", err
	}
	var users *cri.UserNamespace
	if u := pod.Spec.HostUsers; u != nil && !*u {
		if err := k.checkUsers(handler); err != nil {
			return nil, "", err
		}
		if users, err = k.users.For(pod.UID); err != nil {
			return nil, "", err
		}
	}
	cfg, notes, err := criconfig.Sandbox(k.nodeConfig(), pod, attempt, users)
	for _, n := range notes {
		k.events.Event(podReference(pod), corev1.EventTypeWarning, n.Reason, n.Message)
		if n.Node != "" {
			k.events.Event(k.nodeRef(), corev1.EventTypeWarning, n.Reason, n.Node)
		}
	}
	return cfg, handler, err
}

// checkUsers says why a handler of the runtime has no user namespaces.
func (k *Kubelet) checkUsers(handler string) error {
	msg := "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
	if handler != "" {
		msg = fmt.Sprintf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user namespaces", handler)
	}
	switch h := k.runtimeHandler(handler); {
	case h.GetFeatures().GetUserNamespaces():
		return nil
	case k.handlers.Load() == nil:
		return fmt.Errorf("%s: runtime handlers are not set", msg)
	case h == nil:
		return fmt.Errorf("%s: the handler %q is not known", msg, handler)
	}
	return errors.New(msg)
}
