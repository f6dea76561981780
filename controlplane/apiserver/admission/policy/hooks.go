// Package policy holds writes to the admission policies that are configured.
// It reads policies, their bindings and parameters, and Namespaces in the
// cache, and changes or refuses incoming objects.
package policy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/admission/match"
	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/expressions"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// Config is what the plugins need.
type Config struct {
	Cache      *watchcache.Cache
	Authorizer authz.Authorizer
}

// A hook is a policy P with its bindings B, compiled to C when first needed.
type hook[P, B registry.Object, C any] struct {
	policy   P
	criteria *match.Criteria
	compiled func() C
	bindings []binding[B]
}

type binding[B any] struct {
	object   B
	criteria *match.Criteria
	param    *admissionv1.ParamRef
}

// hooks are the policies that have bindings, in the order of their names. They
// are made anew when one of either has changed; what was compiled is kept as
// long as its policy's generation.
type hooks[P, B registry.Object, C any] struct {
	policies, bindings *watchcache.Resource
	constraints        func(P) *admissionv1.MatchResources
	spec               func(B) (policy string, param *admissionv1.ParamRef, matching *admissionv1.MatchResources)
	compile            func(P) C

	current atomic.Pointer[snapshot[P, B, C]]
	mu      sync.Mutex
}

type snapshot[P, B registry.Object, C any] struct {
	policies, bindings int64 // revisions
	hooks              []*hook[P, B, C]
}

// all are the policies in force now. Without any it costs a few atomic loads.
func (h *hooks[P, B, C]) all() []*hook[P, B, C] {
	policies, bindings := h.policies.Changed(), h.bindings.Changed()
	if now := h.current.Load(); now != nil && now.policies == policies && now.bindings == bindings {
		return now.hooks
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	kept := map[string]*hook[P, B, C]{}
	if old := h.current.Load(); old != nil {
		for _, k := range old.hooks {
			kept[string(k.policy.GetUID())] = k
		}
	}
	next := &snapshot[P, B, C]{policies: policies, bindings: bindings}
	byPolicy := map[string][]binding[B]{}
	watchcache.Each(h.bindings, "", func(b B) bool {
		policy, param, matching := h.spec(b)
		byPolicy[policy] = append(byPolicy[policy], binding[B]{b, match.ForResources(matching), param})
		return true
	})
	watchcache.Each(h.policies, "", func(p P) bool {
		bindings := byPolicy[p.GetName()]
		if len(bindings) == 0 {
			return true
		}
		k := &hook[P, B, C]{policy: p, bindings: bindings, criteria: match.ForResources(h.constraints(p))}
		if old := kept[string(p.GetUID())]; old != nil && old.policy.GetGeneration() == p.GetGeneration() {
			k.compiled = old.compiled
		} else {
			k.compiled = sync.OnceValue(func() C { return h.compile(p) })
		}
		next.hooks = append(next.hooks, k)
		return true
	})
	h.current.Store(next)
	return next.hooks
}

// params are the objects that a binding's policy is evaluated with, one after
// the other; a nil one where there are no parameters.
func params(ctx context.Context, r *match.Request, kind *admissionv1.ParamKind, ref *admissionv1.ParamRef) ([]runtime.Object, error) {
	if kind == nil || ref == nil {
		return []runtime.Object{nil}, nil
	}
	stored := r.Served.Stored(kindOf(kind))
	if stored == nil {
		return nil, fmt.Errorf("paramKind kind `%v` not known", kind.String())
	}
	namespace := ""
	switch {
	case !stored.Namespaced() && ref.Namespace != "":
		return nil, errors.New("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
	case !stored.Namespaced():
	case ref.Namespace != "":
		namespace = ref.Namespace
	case r.Namespace != "":
		namespace = r.Namespace
	default:
		return nil, errors.New("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")
	}
	found, err := find(ctx, stored, namespace, ref)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 && ref.ParameterNotFoundAction != nil && *ref.ParameterNotFoundAction == admissionv1.DenyAction {
		return nil, errors.New("no params found for policy binding with `Deny` parameterNotFoundAction")
	}
	return found, nil
}

func find(ctx context.Context, from admission.Stored, namespace string, ref *admissionv1.ParamRef) ([]runtime.Object, error) {
	if ref.Name != "" {
		obj, err := from.Get(namespace, ref.Name)
		if err != nil || obj == nil {
			return nil, err
		}
		return []runtime.Object{obj}, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(ref.Selector)
	if err != nil {
		return nil, err
	}
	return from.List(ctx, namespace, selector)
}

func kindOf(k *admissionv1.ParamKind) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(k.APIVersion, k.Kind)
}

// unknownKind is the fault of a policy whose parameters have a kind that is not
// served.
func unknownKind(r *match.Request, kind *admissionv1.ParamKind) error {
	if kind == nil || r.Served.Stored(kindOf(kind)) != nil {
		return nil
	}
	return fmt.Errorf("failed to find resource referenced by paramKind: '%v'", kindOf(kind))
}

func variables(list []admissionv1.Variable) []plugincel.NamedExpressionAccessor {
	out := make([]plugincel.NamedExpressionAccessor, len(list))
	for i, v := range list {
		out[i] = &expressions.Variable{Name: v.Name, Expression: v.Expression}
	}
	return out
}
