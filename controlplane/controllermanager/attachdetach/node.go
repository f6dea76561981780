package attachdetach

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/controlplane/controllermanager/pods"
)

// reconcileNode makes status.volumesAttached of a Node true.
func (r *reconciler) reconcileNode(ctx context.Context, name string) (time.Duration, error) {
	n := get[*corev1.Node](r.nodes, name)
	here := n != nil && metav1.HasAnnotation(n.ObjectMeta, managed)
	if err := r.meet(name, here); err != nil {
		return 0, err
	}
	attached := map[corev1.UniqueVolumeName]*volume{}
	for _, a := range list[*storagev1.VolumeAttachment](r.attachments, byNode, name) {
		of := r.attachmentOf(a)
		if of == "" {
			continue
		}
		v, err := r.read(ctx, of)
		if err != nil {
			return 0, err
		}
		is := reports(v, name, r.unwantedSince(v, name), time.Now())
		if is {
			attached[of] = v
		}
		if is == v.nodes[name].reported {
			r.add(key{volume: of}) // else once the Node says so
		}
	}
	if !here {
		return 0, nil
	}
	return 0, r.report(ctx, n, attached)
}

// meet has all volumes of a node's pods looked at when the node has come.
func (r *reconciler) meet(name string, here bool) error {
	r.mu.Lock()
	before := r.seen[name]
	if here {
		r.seen[name] = true
	} else {
		delete(r.seen, name)
	}
	r.mu.Unlock()
	if before == here {
		return nil
	}
	all, err := pods.OnNode(r.pods, name)
	if err != nil {
		return err
	}
	for _, pod := range all {
		for _, claim := range pods.Claims(pod) {
			if v := r.bound(pod.Namespace, claim); v != nil && nameOf(v) != "" {
				r.add(key{volume: nameOf(v)})
			}
		}
		for _, v := range inline(pod) {
			r.add(key{volume: nameOf(v)})
		}
	}
	return nil
}

// report writes what is attached into a Node, and tells the pods of what is new.
func (r *reconciler) report(ctx context.Context, n *corev1.Node, attached map[corev1.UniqueVolumeName]*volume) error {
	want := []corev1.AttachedVolume{}
	known := map[corev1.UniqueVolumeName]bool{}
	for _, o := range n.Status.VolumesAttached {
		known[o.Name] = true
		if _, _, csi := split(o.Name); !csi || attached[o.Name] != nil {
			want = append(want, o)
		}
	}
	var fresh []*volume
	for name, v := range attached {
		if !known[name] {
			fresh = append(fresh, v)
			want = append(want, corev1.AttachedVolume{Name: name})
		}
	}
	slices.SortFunc(want, func(a, b corev1.AttachedVolume) int { return cmp.Compare(a.Name, b.Name) })
	if equality.Semantic.DeepEqual(want, n.Status.VolumesAttached) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.UID}, "status": map[string]any{"volumesAttached": want}})
	if err != nil {
		return err
	}
	_, err = r.client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write volumesAttached of node %s: %w", n.Name, err)
	}
	for _, v := range fresh {
		for _, pod := range v.wanted[n.Name] {
			r.events.Event(pod, corev1.EventTypeNormal, "SuccessfulAttachVolume", v.message("AttachVolume.Attach succeeded", ""))
		}
	}
	return nil
}
