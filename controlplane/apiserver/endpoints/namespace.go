package endpoints

import (
	"context"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver/registry"
)

// namespaceKept says that obj is a namespace with something still in it.
func namespaceKept(obj registry.Object) bool {
	ns, ok := obj.(*corev1.Namespace)
	return ok && len(ns.Spec.Finalizers) > 0
}

type constError string

func (e constError) Error() string { return string(e) }

// planDeleteNamespace: a namespace is emptied by its controller first.
func planDeleteNamespace(ns *corev1.Namespace, opts *metav1.DeleteOptions, now time.Time) (registry.Object, bool) {
	finalizers, changed := collectorFinalizers(plainPropagation{}, ns, opts)
	if len(ns.Spec.Finalizers) == 0 && len(finalizers) == 0 {
		return nil, true
	}
	if ns.DeletionTimestamp != nil && !changed && ns.Status.Phase == corev1.NamespaceTerminating {
		return nil, false
	}
	out := ns.DeepCopy()
	out.Finalizers = finalizers
	if out.DeletionTimestamp == nil {
		out.DeletionTimestamp = &metav1.Time{Time: now.Truncate(time.Second)}
	}
	out.Status.Phase = corev1.NamespaceTerminating
	return out, false
}

// plainPropagation has the default rules.
type plainPropagation struct{ registry.Resource }

func (plainPropagation) Traits() registry.Traits { return registry.Traits{} }

// finalizeNamespace replaces spec.finalizers alone.
func (c *call) finalizeNamespace() error {
	opts, err := c.updateOptions()
	if err != nil {
		return err
	}
	if c.out, err = c.negotiate(false); err != nil {
		return err
	}
	body := &corev1.Namespace{}
	if err := c.readObject(body, c.gvk, opts.FieldValidation); err != nil {
		return err
	}
	c.res.Defaults(body)
	if err := c.checkName(body); err != nil {
		return err
	}
	w := c.newWrite(opts, opts.FieldManager, opts.DryRun)
	if c.sub.Prepare == nil {
		sub := *c.sub
		sub.Prepare = func(_ context.Context, obj, old registry.Object) {
			finalizers := obj.(*corev1.Namespace).Spec.Finalizers
			managed := obj.GetManagedFields()
			old.(*corev1.Namespace).DeepCopyInto(obj.(*corev1.Namespace))
			obj.(*corev1.Namespace).Spec.Finalizers = finalizers
			obj.SetManagedFields(managed)
		}
		c.sub = &sub
	}
	rec, obj, _, err := w.change(c.ctx, false, func(_ context.Context, old registry.Object) (registry.Object, error) {
		return c.managers.update(old, body.DeepCopy(), w.manager, "finalize"), nil
	})
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, rec, obj)
}
