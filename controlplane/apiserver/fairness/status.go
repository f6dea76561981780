package fairness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver/watchcache"
)

// Run says in every FlowSchema's status whether its level exists, and calls
// restore when an object may be missing that every cluster has. It returns when
// ctx ends.
func (d *Dispatcher) Run(ctx context.Context, restore func(context.Context) error) {
	for ctx.Err() == nil {
		d.follow(ctx, restore)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second): // it panicked or fell behind
		}
	}
}

// follow keeps up with changes until ctx ends, or something does not work.
func (d *Dispatcher) follow(ctx context.Context, restore func(context.Context) error) {
	defer func() {
		if p := recover(); p != nil {
			slog.ErrorContext(ctx, "panic", "in", "priority and fairness", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	var watches [2]*watchcache.Watcher
	for i, r := range []*watchcache.Resource{d.flowSchemas, d.priorityLevels} {
		w, err := r.Watch(ctx, watchcache.WatchQuery{ResourceVersion: "0"})
		if err != nil {
			return
		}
		defer w.Stop()
		watches[i] = w
	}
	var buf []watchcache.Delivery
	for {
		if err := errors.Join(restore(ctx), d.mark(ctx)); err != nil {
			if ctx.Err() == nil {
				slog.WarnContext(ctx, "look after FlowSchemas", "err", err)
			}
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-watches[0].C():
		case <-watches[1].C():
		}
		for _, w := range watches {
			var err error
			if buf, err = w.Poll(buf[:0]); err != nil {
				return
			}
		}
	}
}

// mark writes the conditions that are not as they should be.
func (d *Dispatcher) mark(ctx context.Context) error {
	levels := d.current().levels
	var wrong []*flowcontrolv1.FlowSchema
	watchcache.Each(d.flowSchemas, "", func(s *flowcontrolv1.FlowSchema) bool {
		name := s.Spec.PriorityLevelConfiguration.Name
		want := dangling(name, levels[name] != nil)
		i := slices.IndexFunc(s.Status.Conditions, func(c flowcontrolv1.FlowSchemaCondition) bool { return c.Type == want.Type })
		if i >= 0 {
			want.LastTransitionTime = s.Status.Conditions[i].LastTransitionTime
			if s.Status.Conditions[i] == want {
				return true
			}
		}
		want.LastTransitionTime = metav1.NewTime(time.Now().Truncate(time.Second))
		s = s.DeepCopy()
		if i >= 0 {
			s.Status.Conditions[i] = want
		} else {
			s.Status.Conditions = append(s.Status.Conditions, want)
		}
		s.ManagedFields = owned(s.ManagedFields, want.LastTransitionTime)
		wrong = append(wrong, s)
		return true
	})
	for _, s := range wrong {
		old := d.flowSchemas.Peek(s.Name)
		if old == nil || fmt.Sprint(old.Revision) != s.ResourceVersion {
			continue // it has changed again: more is to come
		}
		_, err := d.flowSchemas.Update(ctx, s.Name, old, s)
		if err != nil && !errors.Is(err, watchcache.ErrConflict) && !errors.Is(err, watchcache.ErrNotFound) {
			return fmt.Errorf("update FlowSchema %s: %w", s.Name, err)
		}
	}
	return nil
}

// owned are a schema's managers with upstream's name for the writer of the
// condition.
func owned(all []metav1.ManagedFieldsEntry, at metav1.Time) []metav1.ManagedFieldsEntry {
	const name = "api-priority-and-fairness-config-consumer-v1"
	mine := metav1.ManagedFieldsEntry{
		Manager: name, Operation: metav1.ManagedFieldsOperationApply, APIVersion: flowcontrolv1.SchemeGroupVersion.String(),
		Time: &at, FieldsType: "FieldsV1", Subresource: "status",
		FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:status":{"f:conditions":{"k:{\"type\":\"Dangling\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:reason":{},"f:status":{},"f:type":{}}}}}`)},
	}
	all = slices.DeleteFunc(slices.Clone(all), func(e metav1.ManagedFieldsEntry) bool { return e.Manager == name })
	return append([]metav1.ManagedFieldsEntry{mine}, all...)
}

// dangling is what a schema's status says of its level, in upstream's words.
func dangling(level string, exists bool) flowcontrolv1.FlowSchemaCondition {
	c := flowcontrolv1.FlowSchemaCondition{
		Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionFalse, Reason: "Found",
		Message: fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists", level),
	}
	if !exists {
		c.Status, c.Reason = flowcontrolv1.ConditionTrue, "NotFound"
		c.Message = fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q but there is no such object", level)
	}
	return c
}
