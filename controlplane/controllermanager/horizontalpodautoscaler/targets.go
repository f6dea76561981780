package horizontalpodautoscaler

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"knarr/internal/apipath"
)

// mappingTime is how long it is believed which resources a kind has.
const mappingTime = 30 * time.Second

// targets reads and writes the scale of whatever has one.
type targets struct {
	client rest.Interface
	mu     sync.Mutex
	// known holds kinds that are served: its size is bounded by them.
	known map[schema.GroupKind]mapping
}

// A mapping is the resources of a kind, one per version, the preferred first.
type mapping struct {
	resources []schema.GroupVersionResource
	until     time.Time
}

// A target is a scale and where it is from.
type target struct {
	resource schema.GroupVersionResource
	*autoscalingv1.Scale
}

// scale reads the scale of what ref names, of the first version that has one.
func (t *targets) scale(ctx context.Context, namespace string, ref *autoscalingv2.CrossVersionObjectReference) (*target, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, err
	}
	resources, err := t.mapped(ctx, schema.GroupKind{Group: gv.Group, Kind: ref.Kind})
	if err != nil {
		return nil, err
	}
	var first error
	for _, resource := range resources {
		found := &target{resource: resource}
		if err = t.read(ctx, found, namespace, ref.Name); err == nil {
			return found, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

func (t *targets) read(ctx context.Context, into *target, namespace, name string) error {
	raw, err := body(t.request(t.client.Get(), into.resource, namespace, name).Do(ctx))
	if err != nil {
		return err
	}
	scale := &autoscalingv1.Scale{}
	if err := json.Unmarshal(raw, scale); err != nil {
		return fmt.Errorf("read the scale of %s/%s: %w", into.resource.Resource, name, err)
	}
	if want := autoscalingv1.SchemeGroupVersion.WithKind("Scale"); scale.GroupVersionKind() != want {
		return fmt.Errorf("the scale of %s/%s is a %s", into.resource.Resource, name, scale.GroupVersionKind())
	}
	into.Scale = scale
	return nil
}

// resize writes the number of replicas. Who changed the target meanwhile does
// not change what it needs.
func (t *targets) resize(ctx context.Context, to *target, replicas int32) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		to.Spec.Replicas = replicas
		scale, err := json.Marshal(to.Scale)
		if err != nil {
			return err
		}
		namespace, name := to.Namespace, to.Name
		err = t.request(t.client.Put(), to.resource, namespace, name).
			SetHeader("Content-Type", "application/json").Body(scale).Do(ctx).Error()
		if apierrors.IsConflict(err) { // without the newer one the next try fails again
			_ = t.read(ctx, to, namespace, name)
		}
		return err
	})
}

func (t *targets) request(r *rest.Request, resource schema.GroupVersionResource, namespace, name string) *rest.Request {
	return r.AbsPath(root(resource.GroupVersion())...).Namespace(namespace).Resource(resource.Resource).Name(name).
		SubResource("scale").SetHeader("Accept", "application/json")
}

func root(gv schema.GroupVersion) []string {
	if gv.Group == "" {
		return []string{"api", gv.Version}
	}
	return []string{"apis", gv.Group, gv.Version}
}

// body is that of an answer, or the error that it says.
func body(answer rest.Result) ([]byte, error) {
	if err := answer.Error(); err != nil {
		return nil, err
	}
	return answer.Raw()
}

// qualified is the resource of a kind with its group, which custom metrics are
// asked by.
func (t *targets) qualified(ctx context.Context, kind schema.GroupKind) (string, error) {
	resources, err := t.mapped(ctx, kind)
	if err != nil {
		return "", fmt.Errorf("unable to map kind %s to resource: %w", kind, err)
	}
	return resources[0].GroupResource().String(), nil
}

// mapped are the resources of a kind, at least one.
func (t *targets) mapped(ctx context.Context, kind schema.GroupKind) ([]schema.GroupVersionResource, error) {
	t.mu.Lock()
	m, ok := t.known[kind]
	t.mu.Unlock()
	if ok && time.Now().Before(m.until) {
		return m.resources, nil
	}
	resources, err := t.discover(ctx, kind)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[kind] = mapping{resources, time.Now().Add(mappingTime)}
	return resources, nil
}

func (t *targets) discover(ctx context.Context, kind schema.GroupKind) (found []schema.GroupVersionResource, err error) {
	versions := []string{"v1"}
	if kind.Group != "" {
		var group metav1.APIGroup
		if err := t.ask(ctx, &group, "apis", kind.Group); err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		versions = inOrder(&group)
	}
	for _, version := range versions {
		gv := schema.GroupVersion{Group: kind.Group, Version: version}
		var list metav1.APIResourceList
		if err := t.ask(ctx, &list, root(gv)...); err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		i := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool {
			return r.Kind == kind.Kind && !strings.Contains(r.Name, "/")
		})
		if i >= 0 {
			found = append(found, gv.WithResource(list.APIResources[i].Name))
		}
	}
	if len(found) == 0 {
		return nil, &meta.NoKindMatchError{GroupKind: kind}
	}
	return found, nil
}

// inOrder are a group's versions, the preferred first.
func inOrder(group *metav1.APIGroup) []string {
	var versions []string
	for _, v := range append([]metav1.GroupVersionForDiscovery{group.PreferredVersion}, group.Versions...) {
		if v.Version != "" && !slices.Contains(versions, v.Version) {
			versions = append(versions, v.Version)
		}
	}
	return versions
}

// ask reads a document of discovery. A path's segments may be a user's words.
func (t *targets) ask(ctx context.Context, into any, path ...string) error {
	if err := apipath.Check(path...); err != nil {
		return err
	}
	raw, err := body(t.client.Get().AbsPath(path...).SetHeader("Accept", "application/json").Do(ctx))
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

func newTargets(client rest.Interface) *targets {
	return &targets{client: client, known: map[schema.GroupKind]mapping{}}
}
