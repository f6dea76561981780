package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/csimigration"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/prober"
)

func lower(s string) string { return strings.ToLower(strings.TrimSpace(s)) }

// patchStatus writes the difference between the status the API server has and
// the one it should have, for that very pod.
func (k *Kubelet) patchStatus(ctx context.Context, base *corev1.Pod, s *corev1.PodStatus) (*corev1.Pod, error) {
	was, err := json.Marshal(corev1.Pod{Status: base.Status})
	if err != nil {
		return nil, err
	}
	is, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: base.UID}, Status: *s})
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(was, is, corev1.Pod{})
	if err != nil {
		return nil, err
	}
	return k.client.CoreV1().Pods(base.Namespace).Patch(ctx, base.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
}

// deletePod ends the object of a pod nothing is left of.
func (k *Kubelet) deletePod(ctx context.Context, pod *corev1.Pod) error {
	now := int64(0)
	return k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now,
		Preconditions:      metav1.NewUIDPreconditions(string(pod.UID)),
	})
}

func podReference(pod *corev1.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}
}

func containerReference(pod *corev1.Pod, c *corev1.Container) *corev1.ObjectReference {
	ref := podReference(pod)
	if c == nil {
		return ref
	}
	_, kind := podspec.FindContainer(pod, c.Name)
	ref.FieldPath = [...]string{"spec.containers", "spec.initContainers", "spec.ephemeralContainers"}[kind] + "{" + c.Name + "}"
	return ref
}

func (k *Kubelet) probeEvent(t prober.Target, _ prober.Kind, warning bool, message string) {
	reason := "Unhealthy"
	if strings.Contains(message, " probe warning: ") {
		reason = "ProbeWarning"
	}
	_ = warning
	k.events.Event(containerReference(t.Pod, t.Container), corev1.EventTypeWarning, reason, message)
}

// requestToken asks for a service account token bound to the pod.
func (k *Kubelet) requestToken(ctx context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) (*authenticationv1.TokenRequest, error) {
	req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: p.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if p.Audience != "" {
		req.Spec.Audiences = []string{p.Audience}
	}
	return k.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, req, metav1.CreateOptions{})
}

// token asks for a service account token bound to the pod, and says when to renew it.
func (k *Kubelet) token(ctx context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) (string, time.Time, error) {
	asked := time.Now()
	got, err := k.requestToken(ctx, pod, p)
	if err != nil {
		return "", time.Time{}, err
	}
	return got.Status.Token, asked.Add(tokenAge(got, asked)), nil
}

// minTokenAge is the least time between two requests for a token, about that of upstream's
// looks at a pod.
const minTokenAge = time.Minute

// tokenAge is after what time a token is renewed: when four fifths of its life, or a day, have
// passed. Its life is what the API server says that it granted: by this node's clock, which may
// be an hour ahead, the token has expired already. Pure.
func tokenAge(got *authenticationv1.TokenRequest, asked time.Time) time.Duration {
	life := got.Status.ExpirationTimestamp.Sub(asked)
	if granted := got.Spec.ExpirationSeconds; granted != nil && *granted > 0 {
		life = seconds(*granted)
	}
	return min(max(life*4/5, minTokenAge), 24*time.Hour)
}

// hasContainers says whether a pod has ever had a container.
func (k *Kubelet) hasContainers(uid types.UID) bool {
	w := k.worker(uid)
	return w != nil && len(w.shown.Load().observed.Containers) > 0
}

// claim resolves a claim the pod may use to its bound volume, which is a CSI driver's where
// one has taken over from its plugin.
func (k *Kubelet) claim(ctx context.Context, pod *corev1.Pod, name string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim, error) {
	pvc, err := k.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("error processing PVC %s/%s: failed to fetch PVC from API server: %w", pod.Namespace, name, err)
	}
	if pvc.DeletionTimestamp != nil && !k.hasContainers(pod.UID) {
		return nil, nil, fmt.Errorf("error processing PVC %s/%s: PVC is being deleted", pod.Namespace, name)
	}
	if pvc.Status.Phase != corev1.ClaimBound || pvc.Spec.VolumeName == "" {
		return nil, nil, fmt.Errorf("error processing PVC %s/%s: PVC is not bound", pod.Namespace, name)
	}
	pv, err := k.client.CoreV1().PersistentVolumes().Get(ctx, pvc.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("error processing PVC %s/%s: %w", pod.Namespace, name, err)
	}
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != pvc.UID {
		return nil, nil, fmt.Errorf("error processing PVC %s/%s: PV %s is bound to another claim", pod.Namespace, name, pv.Name)
	}
	if pv, err = csimigration.Volume(pv); err != nil {
		return nil, nil, fmt.Errorf("error processing PVC %s/%s: %w", pod.Namespace, name, err)
	}
	return pv, pvc, nil
}

// classCache remembers the handlers of runtime classes for a while.
type classCache struct {
	mu  sync.Mutex
	all map[string]classEntry
}

type classEntry struct {
	handler string
	err     error
	read    time.Time
}

const classLife = 30 * time.Second

// handler is the runtime handler of a pod's class.
func (k *Kubelet) handler(ctx context.Context, pod *corev1.Pod) (string, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
		return "", nil
	}
	name := *pod.Spec.RuntimeClassName
	k.classes.mu.Lock()
	defer k.classes.mu.Unlock()
	if e, ok := k.classes.all[name]; ok && time.Since(e.read) < classLife {
		return e.handler, e.err
	}
	e := classEntry{read: time.Now()}
	rc, err := k.client.NodeV1().RuntimeClasses().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		e.err = fmt.Errorf("RuntimeClass %q: %w", name, err)
	} else {
		e.handler = rc.Handler
	}
	if k.classes.all == nil || len(k.classes.all) > 100 {
		k.classes.all = map[string]classEntry{}
	}
	k.classes.all[name] = e
	return e.handler, e.err
}

func (k *Kubelet) handlerOf(pod *corev1.Pod) string {
	h, _ := k.handler(k.ctx, pod)
	return h
}

func (k *Kubelet) recursiveReadOnly(pod *corev1.Pod) bool {
	return k.runtimeHandler(k.handlerOf(pod)).GetFeatures().GetRecursiveReadOnlyMounts()
}

// runtimeHandler is what the runtime says of one of its handlers; nil if it has not told
// yet, or has none of that name.
func (k *Kubelet) runtimeHandler(name string) *cri.RuntimeHandler {
	if hs := k.handlers.Load(); hs != nil {
		for _, h := range *hs {
			if h.Name == name {
				return h
			}
		}
	}
	return nil
}
