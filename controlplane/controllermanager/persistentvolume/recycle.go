package persistentvolume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"knarr/controlplane/controllermanager/pods"
)

// A Recycler is how volumes of one kind are emptied whose policy is Recycle: a pod removes
// all that is in them.
type Recycler struct {
	// Template is the pod; its first volume becomes the one to empty. Nil: upstream's, whose
	// image a registry has to have.
	Template *corev1.Pod
	// Minimum is how long it may run, and PerGiB how long for each GiB of the volume, if that
	// is longer. Zero: upstream's default; below: none.
	Minimum, PerGiB time.Duration
}

// CheckTemplate says what keeps a pod from being a Recycler's template.
func CheckTemplate(pod *corev1.Pod) error {
	if len(pod.Spec.Volumes) == 0 {
		return errors.New("does not contain any volume(s)")
	}
	return nil
}

const (
	// recyclerPrefix begins the names of the pods.
	recyclerPrefix = "recycler-for-"
	// recycleAgain is when a volume that could not be emptied is looked at again.
	recycleAgain = 15 * time.Second
	// maxForwarded bounds how many events of a pod the volume gets.
	maxForwarded = 20
	// forwardTime bounds how long they are waited for.
	forwardTime = 2 * time.Second
	// endTime is how long after its deadline a pod may take to end. Only a kubelet ends it:
	// one that finds no node, or whose node is gone, never does.
	endTime = time.Minute
)

// A madePod is one that this controller made to empty a volume.
type madePod struct {
	*corev1.Pod
	// forwarded are its events that the volume has got, since when none were looked for.
	forwarded map[types.UID]bool
	since     time.Time
}

// defaultTemplate is as upstream's, in which a shell removes files.
func defaultTemplate() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: new(int64(1)), // who stops it wants to keep what is left
			Volumes:                       []corev1.Volume{{Name: "vol"}},
			Containers: []corev1.Container{{
				Name: "pv-recycler", Image: "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6",
				Command:      []string{"/bin/sh", "-c", `cd /scrub && find . -mindepth 1 -delete && [ -z "$(ls -A)" ]`},
				VolumeMounts: []corev1.VolumeMount{{Name: "vol", MountPath: "/scrub"}},
			}},
		},
	}
}

// pod is what empties the volume.
func (r Recycler) pod(v *corev1.PersistentVolume) *corev1.Pod {
	p := defaultTemplate()
	if r.Template != nil {
		p = r.Template.DeepCopy()
	}
	p.Name, p.GenerateName, p.Namespace = recyclerPrefix+v.Name, "", cmp.Or(p.Namespace, metav1.NamespaceDefault)
	switch to := &p.Spec.Volumes[0]; {
	case v.Spec.HostPath != nil:
		to.VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: v.Spec.HostPath.Path}}
	case v.Spec.NFS != nil:
		to.VolumeSource = corev1.VolumeSource{NFS: v.Spec.NFS.DeepCopy()}
	}
	size := time.Duration(v.Spec.Capacity.Storage().Value() >> 30)
	seconds := max(max(r.Minimum, 0)/time.Second, size*(max(r.PerGiB, 0)/time.Second), 1)
	p.Spec.ActiveDeadlineSeconds = new(int64(min(seconds, math.MaxInt32)))
	return p
}

// recyclerOf is who empties the volume, nil if nobody can.
func (c *Config) recyclerOf(v *corev1.PersistentVolume) *Recycler {
	r, least := Recycler{}, time.Duration(0)
	switch {
	case v.Spec.HostPath != nil:
		r, least = c.HostPath, time.Minute
	case v.Spec.NFS != nil:
		r, least = c.NFS, 5*time.Minute
	default:
		return nil
	}
	r.Minimum, r.PerGiB = cmp.Or(r.Minimum, least), cmp.Or(r.PerGiB, 30*time.Second)
	return &r
}

// A recycling is what is known of a volume's being emptied.
type recycling struct {
	// pod is the one that is to do it, nil if nothing can.
	pod *corev1.Pod
	// found is the one of its name, nil if there is none. ours says that this controller
	// made it, and is true too if it made one that is gone: whoever else made one of that
	// name, or an earlier controller, what it did is not known.
	found *corev1.Pod
	ours  bool
	// overdue says that it should have ended.
	overdue bool
	// users are the pods that use the claim, which is gone.
	users []string
}

// recycle is the step with a volume that is to be emptied.
func (v *volumeView) recycle() step {
	r := v.recycling
	switch {
	case r == nil || r.pod == nil:
		return v.failed("VolumeFailedRecycle", "No recycler plugin found for the volume!")
	case len(r.users) > 0:
		return step{last: true, after: recycleAgain, events: []event{{v.volume, corev1.EventTypeNormal, "VolumeFailedRecycle", "Volume is used by pods: " + strings.Join(r.users, ",")}}}
	case r.found == nil && !r.ours:
		return step{start: r.pod, last: true}
	case r.found == nil:
		return v.notRecycled(nil, "recycler pod was deleted")
	case !r.ours && r.found.DeletionTimestamp == nil:
		return step{end: r.found, last: true}
	case !r.ours:
		return step{last: true} // its end is seen
	}
	switch status := r.found.Status; status.Phase {
	case corev1.PodSucceeded:
		return step{end: r.found, volume: unbind(v.volume), events: []event{{v.volume, corev1.EventTypeNormal, "VolumeRecycled", "Volume recycled"}}}
	case corev1.PodFailed:
		return v.notRecycled(r.found, cmp.Or(status.Message, "pod failed, pod.Status.Message unknown"))
	}
	if r.overdue {
		return v.notRecycled(r.found, "pod has not ended: "+string(r.found.Status.Phase))
	}
	return step{observe: r.found, last: true, after: recycleAgain}
}

// overdue says whether a pod should have ended by its deadline, which its kubelet counts
// from its start. Pure.
func overdue(pod *corev1.Pod, now time.Time) bool {
	begin := pod.CreationTimestamp
	if at := pod.Status.StartTime; at != nil {
		begin = *at
	}
	seconds := pod.Spec.ActiveDeadlineSeconds
	return seconds != nil && now.Sub(begin.Time) > time.Duration(*seconds)*time.Second+endTime
}

// notRecycled is the step after the pod has failed, nil if it is gone: another try, later.
func (v *volumeView) notRecycled(pod *corev1.Pod, why string) step {
	s := v.failed("VolumeFailedRecycle", "Recycle failed: failed to recycle volume: "+why)
	s.end, s.forget, s.after = pod, true, recycleAgain
	return s
}

// viewRecycling gathers what is decided on.
func (r *reconciler) viewRecycling(ctx context.Context, v *corev1.PersistentVolume) (*recycling, error) {
	by := r.recyclerOf(v)
	if by == nil {
		return &recycling{}, nil
	}
	out := &recycling{pod: by.pod(v)}
	// Pods that name the claim are of another one if there is one of its name.
	if key := claimKey(v.Spec.ClaimRef); r.claim(key) == nil {
		list, err := pods.Claiming(r.pods, key)
		if err != nil {
			return nil, err
		}
		for _, p := range list {
			if !pods.Terminal(p) {
				out.users = append(out.users, p.Namespace+"/"+p.Name)
			}
		}
	}
	made, known := r.recyclers[v.Name]
	out.found = lookup[*corev1.Pod](r.pods, cache.MetaObjectToName(out.pod).String())
	if out.found == nil && known {
		// It may be too new for the cache.
		found, err := r.client.CoreV1().Pods(out.pod.Namespace).Get(ctx, out.pod.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			out.found = found
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("get the pod that recycles volume %s: %w", v.Name, err)
		}
	}
	out.ours = known && (out.found == nil || out.found.UID == made.UID)
	out.overdue = out.found != nil && overdue(out.found, time.Now())
	return out, nil
}

// errChanged says that a volume is another than it was decided on.
var errChanged = errors.New("the volume has changed")

// recyclePods makes and ends the step's pods. What is removed is gone, so that the volume is
// as it was decided on is asked of the server itself.
func (r *reconciler) recyclePods(ctx context.Context, v *corev1.PersistentVolume, s step) error {
	name := v.Name
	switch {
	case s.start != nil:
		now, err := r.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return errChanged
		}
		if err != nil {
			return err
		}
		if now.UID != v.UID || now.ResourceVersion != v.ResourceVersion {
			return errChanged
		}
		pod, err := r.client.CoreV1().Pods(s.start.Namespace).Create(ctx, s.start, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return errors.New("old recycler pod found, will retry later")
		}
		if err != nil {
			return fmt.Errorf("unexpected error creating recycler pod: %w", err)
		}
		r.recyclers[name] = &madePod{Pod: pod, forwarded: map[types.UID]bool{}, since: time.Now()}
	case s.observe != nil:
		if made := r.recyclers[name]; made != nil && time.Since(made.since) >= recycleAgain {
			r.forwardEvents(ctx, v, s.observe)
		}
	case s.end != nil:
		r.forwardEvents(ctx, v, s.end)
		if err := r.deletePod(ctx, s.end); err != nil {
			return err
		}
		delete(r.recyclers, name)
	}
	if s.forget {
		delete(r.recyclers, name)
	}
	return nil
}

// stopRecycler ends what empties a volume that is not to be emptied any more: its policy has
// changed, or somebody else has it by now.
func (r *reconciler) stopRecycler(ctx context.Context, name string) error {
	pod := r.recyclers[name]
	if pod == nil {
		return nil
	}
	if err := r.deletePod(ctx, pod.Pod); err != nil {
		return err
	}
	delete(r.recyclers, name)
	return nil
}

func (r *reconciler) deletePod(ctx context.Context, pod *corev1.Pod) error {
	err := r.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("failed to delete recycler pod: %w", err)
	}
	return nil
}

// forwardEvents has the volume tell what happened to the pod since the last look at it. The
// controller's account may watch events, as upstream's, and not list them.
func (r *reconciler) forwardEvents(ctx context.Context, v *corev1.PersistentVolume, pod *corev1.Pod) {
	made := r.recyclers[v.Name]
	if made == nil || made.UID != pod.UID || len(made.forwarded) >= maxForwarded {
		return // somebody else's, or told enough
	}
	made.since = time.Now()
	ctx, cancel := context.WithTimeout(ctx, forwardTime)
	defer cancel()
	w, err := r.client.CoreV1().Events(pod.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector:     "involvedObject.uid=" + string(pod.UID),
		SendInitialEvents: new(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		return // the pod's own are there
	}
	defer w.Stop()
	for len(made.forwarded) < maxForwarded {
		change := <-w.ResultChan()
		e, ok := change.Object.(*corev1.Event)
		if !ok || change.Type != watch.Added {
			return
		}
		if !made.forwarded[e.UID] {
			made.forwarded[e.UID] = true
			r.events.Event(v, e.Type, "RecyclerPod", "Recycler pod: "+e.Message)
		}
	}
}

// waitingForRecycler is the volume that the pod empties.
func waitingForRecycler(o metav1.Object) (keys []cache.ObjectName) {
	if name, ok := strings.CutPrefix(o.GetName(), recyclerPrefix); ok {
		keys = append(keys, cache.ObjectName{Name: name})
	}
	return keys
}
