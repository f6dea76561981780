package storageversionmigrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// errNotServed says that the API server knows no such resource, yet.
var errNotServed = errors.New("is not served")

// A refusal is an error that no further try mends.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// needed are the verbs of a resource that can be migrated.
var needed = []string{"update", "patch", "list"}

// find asks discovery for the version of a resource to ask for, and for its kind.
func (r *reconciler) find(gr schema.GroupResource) (gvr schema.GroupVersionResource, kind string, err error) {
	versions := []string{"v1"}
	if gr.Group != "" {
		groups, err := r.client.Discovery().ServerGroups()
		if err != nil {
			return gvr, "", fmt.Errorf("look for %s: %w", gr, err)
		}
		versions = nil
		for _, g := range groups.Groups {
			if g.Name != gr.Group {
				continue
			}
			versions = append(versions, g.PreferredVersion.GroupVersion)
			for _, v := range g.Versions {
				versions = append(versions, v.GroupVersion)
			}
		}
	}
	for _, v := range versions {
		list, err := r.client.Discovery().ServerResourcesForGroupVersion(v)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return gvr, "", fmt.Errorf("look for %s: %w", gr, err)
		}
		for _, res := range list.APIResources {
			if res.Name != gr.Resource {
				continue
			}
			gv, err := schema.ParseGroupVersion(v)
			if err != nil {
				return gvr, "", fmt.Errorf("look for %s: %w", gr, err)
			}
			gvr = gv.WithResource(gr.Resource)
			for _, verb := range needed {
				if !slices.Contains(res.Verbs, verb) {
					return gvr, "", &refusal{fmt.Errorf("resource %q does not support discovery operations: %v", gvr.String(), needed)}
				}
			}
			return gvr, res.Kind, nil
		}
	}
	return gvr, "", fmt.Errorf("%s: %w", gr, errNotServed)
}

// page bounds how many objects are known of at once.
const page = 500

// rewrite has every object written anew that was last written before until. What is
// done already is done again without harm, so that a new term begins at the start.
func (r *reconciler) rewrite(ctx context.Context, gvr schema.GroupVersionResource, kind, until string) error {
	for next := ""; ; {
		list, err := r.metadata.Resource(gvr).List(ctx, metav1.ListOptions{Limit: page, Continue: next})
		if apierrors.IsResourceExpired(err) && next != "" {
			next = "" // from the start: what is new is left out below
			continue
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", gvr, err)
		}
		for i := range list.Items {
			if err := r.touch(ctx, gvr, kind, &list.Items[i], until); err != nil {
				return err
			}
		}
		if next = list.Continue; next == "" {
			return nil
		}
	}
}

// touch applies nothing to an object, which the API server stores anew where the store
// has it in another form. UID and version make that fail for any object but this one
// as it is: another one is new enough.
func (r *reconciler) touch(ctx context.Context, gvr schema.GroupVersionResource, kind string, o *metav1.PartialObjectMetadata, until string) error {
	order, err := resourceversion.CompareResourceVersion(o.ResourceVersion, until)
	if err != nil {
		return &refusal{err}
	}
	if order > 0 {
		return nil
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": gvr.GroupVersion().String(), "kind": kind,
		"metadata": map[string]any{"uid": o.UID, "resourceVersion": o.ResourceVersion},
	})
	if err != nil {
		return &refusal{err}
	}
	_, err = r.metadata.Resource(gvr).Namespace(o.Namespace).Patch(ctx, o.Name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: Name})
	switch {
	case err == nil, apierrors.IsConflict(err):
		return nil
	case ctx.Err() != nil, mayPass(err):
		return fmt.Errorf("write %s %s/%s anew: %w", gvr, o.Namespace, o.Name, err)
	}
	return &refusal{err}
}

// mayPass reports whether the same request may be answered otherwise later.
func mayPass(err error) bool {
	return utilnet.IsConnectionReset(err) || utilnet.IsConnectionRefused(err) || utilnet.IsHTTP2ConnectionLost(err) || utilnet.IsProbableEOF(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err)
}
