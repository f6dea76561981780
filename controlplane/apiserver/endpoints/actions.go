package endpoints

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// action is the subresource, or kind, that does something of its own.
func action(name string) func(*call) error {
	switch name {
	case "pods/binding", "bindings":
		return (*call).bind
	case "pods/eviction":
		return (*call).evict
	case "componentstatuses":
		return (*call).componentStatuses
	case "namespaces/finalize":
		return (*call).finalizeNamespace
	}
	return nil
}

// readAction reads the body of an action on the object named in the URL.
func (c *call) readAction(obj registry.Object) (*metav1.CreateOptions, error) {
	opts, err := c.createOptions()
	if err != nil {
		return nil, err
	}
	if c.out, err = c.negotiate(false); err != nil {
		return nil, err
	}
	gvk := c.gvk
	if c.sub != nil && !c.sub.Kind.Empty() {
		gvk = c.sub.Kind
	}
	if err := c.readObject(obj, gvk, opts.FieldValidation); err != nil {
		return nil, err
	}
	if err := c.namespaceOf(obj); err != nil {
		return nil, err
	}
	attrs := c.attributes(admission.Create, opts, len(opts.DryRun) > 0)
	attrs.Object = obj
	if attrs.Name == "" {
		attrs.Name = obj.GetName()
	}
	if err := c.s.cfg.Admission.Admit(c.ctx, attrs); err != nil {
		return nil, err
	}
	return opts, c.s.cfg.Admission.Validate(c.ctx, attrs)
}

// pods is the entry of pods, which bindings need, too.
func (c *call) pods() *entry {
	return c.s.table.Load().entries[corev1.SchemeGroupVersion.WithResource("pods")]
}

// bind gives a pod its node.
func (c *call) bind() error {
	binding := &corev1.Binding{}
	opts, err := c.readAction(binding)
	if err != nil {
		return err
	}
	if c.info.Name != "" && binding.Name != c.info.Name {
		return apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	var errs field.ErrorList
	target := field.NewPath("target")
	if k := binding.Target.Kind; k != "" && k != "Node" {
		errs = append(errs, field.NotSupported(target.Child("kind"), k, []string{"Node", "<empty>"}))
	}
	if binding.Target.Name == "" {
		errs = append(errs, field.Required(target.Child("name"), ""))
	}
	if len(errs) > 0 {
		return errs.ToAggregate()
	}
	w := c.podWrite(opts, binding.Name)
	err = w.changePod(c.ctx, func(pod *corev1.Pod) error {
		switch {
		case binding.UID != "" && binding.UID != pod.UID:
			return w.staleBinding("UID", binding.UID, pod.UID)
		case binding.ResourceVersion != "" && binding.ResourceVersion != pod.ResourceVersion:
			return w.staleBinding("ResourceVersion", binding.ResourceVersion, pod.ResourceVersion)
		case pod.DeletionTimestamp != nil:
			return w.bindConflict(fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name))
		case pod.Spec.NodeName != "":
			return w.bindConflict(fmt.Errorf("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName))
		case len(pod.Spec.SchedulingGates) != 0:
			return w.bindConflict(fmt.Errorf("pod %v has non-empty .spec.schedulingGates", pod.Name))
		}
		pod.Spec.NodeName = binding.Target.Name
		pod.Status.NominatedNodeName = ""
		for k, v := range binding.Annotations {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, k, v)
		}
		for k, v := range binding.Labels {
			metav1.SetMetaDataLabel(&pod.ObjectMeta, k, v)
		}
		setPodCondition(&pod.Status, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, time.Now())
		return nil
	})
	if err != nil {
		return err
	}
	return c.write(http.StatusCreated, &metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated})
}

// podWrite is a write of a pod that no client has sent as a whole.
func (c *call) podWrite(opts *metav1.CreateOptions, name string) *write {
	info := *c.info
	info.Name = name
	own := *c
	own.info, own.entry, own.sub = &info, c.pods(), nil
	return &write{call: &own, opts: opts, manager: c.manager(opts.FieldManager), dryRun: len(opts.DryRun) > 0}
}

func (w *write) bindConflict(err error) error {
	return apierrors.NewConflict(corev1.Resource("pods/binding"), w.info.Name, err)
}

// staleBinding is a binding meant for another pod, or another state of it.
func (w *write) staleBinding(what string, want, have any) error {
	return apierrors.NewConflict(corev1.Resource("pods"), w.info.Name, fmt.Errorf(
		"StorageError: invalid object, Code: 4, Key: /registry/pods/%s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: %s in precondition: %v, %s in object meta: %v",
		w.key(), what, want, what, have))
}

// changePod stores what change makes of the pod, as often as it takes.
func (w *write) changePod(ctx context.Context, change func(*corev1.Pod) error) error {
	key := w.key()
	current, fresh := w.store.Peek(key), false
	for {
		if current == nil {
			var err error
			if current, err = w.store.Fetch(ctx, key); err != nil {
				return w.fromCache(err, w.info.Name)
			}
			fresh = true
		}
		old, err := w.object(current)
		if err != nil {
			return err
		}
		pod := old.DeepCopyObject().(*corev1.Pod)
		err = change(pod)
		if err == nil {
			if w.dryRun {
				return nil
			}
			_, err = w.store.Update(ctx, key, current, pod)
			if err == nil {
				return nil
			}
			if !errors.Is(err, watchcache.ErrConflict) && !errors.Is(err, watchcache.ErrNotFound) {
				return err
			}
		} else if fresh {
			return err
		}
		if current, err = w.store.Fetch(ctx, key); err != nil {
			return w.fromCache(err, w.info.Name)
		}
		fresh = true
	}
}

// setPodCondition sets a condition and, when its status changes, its time.
func setPodCondition(status *corev1.PodStatus, c corev1.PodCondition, now time.Time) {
	c.LastTransitionTime = metav1.Time{Time: now.Truncate(time.Second)}
	for i := range status.Conditions {
		have := &status.Conditions[i]
		if have.Type != c.Type {
			continue
		}
		if have.Status == c.Status {
			c.LastTransitionTime = have.LastTransitionTime
		}
		*have = c
		return
	}
	status.Conditions = append(status.Conditions, c)
}
