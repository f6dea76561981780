package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/controllermanager/volumemetrics"
)

// reconcileVolume attaches and detaches one volume.
func (r *reconciler) reconcileVolume(ctx context.Context, name corev1.UniqueVolumeName) (time.Duration, error) {
	v, err := r.read(ctx, name)
	if err != nil {
		return 0, err
	}
	d := r.decide(v)
	v.observe(d.done...)
	for _, w := range d.warn {
		r.events.Event(w.pod, corev1.EventTypeWarning, "FailedAttachVolume", w.message)
	}
	for _, node := range d.report {
		r.add(key{node: node})
	}
	var errs []error
	for _, one := range d.detach {
		errs = append(errs, r.detach(ctx, v, one))
	}
	for _, node := range d.attach {
		errs = append(errs, r.attach(ctx, v, node))
	}
	return d.again, errors.Join(errs...)
}

// decide plans with what is remembered of the volume.
func (r *reconciler) decide(v *volume) decision {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.memories[v.name]
	if m == nil {
		m = newMemory()
		r.memories[v.name] = m
	}
	v.patient = r.patient
	d := plan(v, m, time.Now())
	if m.empty() {
		delete(r.memories, v.name)
	}
	return d
}

func (r *reconciler) attach(ctx context.Context, v *volume, node string) error {
	source := storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.pv}
	if v.pv == "" && v.inline != nil {
		source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &v.inline.Spec}
	}
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachmentName(v.driver, v.handle, node)},
		Spec:       storagev1.VolumeAttachmentSpec{NodeName: node, Attacher: v.driver, Source: source},
	}
	r.setMade(a.Name, a)
	began := time.Now()
	_, err := r.client.StorageV1().VolumeAttachments().Create(ctx, a, metav1.CreateOptions{})
	if err == nil || apierrors.IsAlreadyExists(err) {
		r.note(v.name, func(m *memory) { m.attaching[node] = began })
		return nil
	}
	v.observe(outcome{volumemetrics.Attach, time.Since(began), true})
	for _, pod := range v.wanted[node] {
		r.events.Event(pod, corev1.EventTypeWarning, "FailedAttachVolume", v.message("AttachVolume.Attach failed", ": "+err.Error()))
	}
	return fmt.Errorf("create volume attachment of %s for node %s: %w", v.name, node, err)
}

// detach takes the volume from a node, and counts it: once it has come about, or each try
// that fails.
func (r *reconciler) detach(ctx context.Context, v *volume, d detachment) error {
	began := time.Now()
	if err := r.tryDetach(ctx, v, d); err != nil {
		v.observe(outcome{volumemetrics.Detach, time.Since(began), true})
		return err
	}
	r.note(v.name, func(m *memory) { m.detaching[d.node] = going{uid: d.uid, since: began} })
	return nil
}

// tryDetach deletes an attachment once the node itself, not what is remembered of
// it, says that it has not mounted the volume and may not mount it.
func (r *reconciler) tryDetach(ctx context.Context, v *volume, d detachment) error {
	if d.force != "" {
		slog.WarnContext(ctx, "detach a volume that may be mounted", "volume", v.name, "node", d.node, "why", d.force)
	} else {
		n, err := r.client.CoreV1().Nodes().Get(ctx, d.node, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("get node %s: %w", d.node, err)
		}
		if err == nil {
			if is := nodeOf(n, v.name); is.inUse || is.reported {
				return fmt.Errorf("detach %s from node %s: volume is still in use by node, according to Node status", v.name, d.node)
			}
		}
	}
	name := attachmentName(v.driver, v.handle, d.node)
	err := r.client.StorageV1().VolumeAttachments().Delete(ctx, name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(d.uid))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete volume attachment %s: %w", name, err)
	}
	if err == nil && d.force != "" {
		forced.WithLabelValues(d.force).Inc()
	}
	return nil
}
