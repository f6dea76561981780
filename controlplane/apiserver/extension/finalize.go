package extension

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// emptied bounds one wait for objects to go; they may have finalizers of their
// own.
const emptied = time.Minute

// end deletes the objects of a definition that is being deleted, beside what
// else goes on, and lets it go then.
func (s *Server) end(ctx context.Context, crd *customResourceDefinition) {
	if !slices.Contains(crd.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer) {
		return
	}
	id := string(crd.UID)
	s.mu.Lock()
	_, under := s.ending[id]
	s.ending[id] = struct{}{}
	s.mu.Unlock()
	if under {
		return
	}
	name, established := crd.Name, apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
	gr := groupResource(crd)
	var served string
	if d := s.serving[name]; d != nil && len(d.kinds) > 0 {
		served = d.kinds[0].gvk.Version
	}
	prefix := crd.Spec.Group + "/" + crd.Spec.Names.Plural
	gvr := schema.GroupVersionResource{Group: gr.Group, Version: served, Resource: gr.Resource}
	s.wg.Go("remove custom objects", func() {
		defer func() {
			s.mu.Lock()
			delete(s.ending, id)
			s.mu.Unlock()
		}()
		for ctx.Err() == nil {
			err := s.finish(ctx, name, prefix, gvr, established)
			if err == nil || apierrors.IsNotFound(err) {
				return
			}
			slog.WarnContext(ctx, "delete what a CustomResourceDefinition declares", "definition", name, "err", err)
			select {
			case <-time.After(retryAfter):
			case <-ctx.Done():
			}
		}
	})
}

func (s *Server) finish(ctx context.Context, name, prefix string, gvr schema.GroupVersionResource, established bool) error {
	terminating := func(status apiextensionsv1.ConditionStatus, reason, message string) condition {
		return condition{Type: apiextensionsv1.Terminating, Status: status, Reason: reason, Message: message}
	}
	set := func(c condition, last bool) error {
		return s.cfg.API.ChangeStatus(ctx, definitionsGVR, name, func(o registry.Object) {
			crd := o.(*customResourceDefinition)
			apihelpers.SetCRDCondition(crd, c)
			if last {
				apihelpers.CRDRemoveFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer)
			}
		})
	}
	if err := set(terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionInProgress", "CustomResource deletion is in progress"), false); err != nil {
		return err
	}
	if !established {
		return set(terminating(apiextensionsv1.ConditionFalse, "NeverEstablished", "resource was never established"), true)
	}
	if gvr.Version != "" {
		if err := s.cfg.API.DeleteAll(ctx, gvr); err != nil {
			serr := set(terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionFailed", fmt.Sprintf("could not issue all deletes: %v", err)), false)
			if serr != nil {
				return serr
			}
			return err
		}
	}
	if err := s.empty(ctx, prefix); err != nil {
		serr := set(terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionCheck", fmt.Sprintf("could not confirm zero CustomResources remaining: %v", err)), false)
		if serr != nil {
			return serr
		}
		return err
	}
	return set(terminating(apiextensionsv1.ConditionFalse, "InstanceDeletionCompleted", "removed all instances"), true)
}

// empty returns once no object is left.
func (s *Server) empty(ctx context.Context, prefix string) error {
	ctx, cancel := context.WithTimeout(ctx, emptied)
	defer cancel()
	for {
		r := s.cfg.Cache.At(prefix)
		if r == nil {
			return nil
		}
		w, err := r.Watch(ctx, watchcache.WatchQuery{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		err = drained(ctx, r, w)
		w.Stop()
		if err != watchcache.ErrEnded {
			return err
		}
	}
}

func drained(ctx context.Context, r *watchcache.Resource, w *watchcache.Watcher) error {
	var batch []watchcache.Delivery
	for !r.Empty() {
		var err error
		if batch, err = w.Poll(batch[:0]); err != nil {
			return err
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.C():
		}
	}
	return nil
}
