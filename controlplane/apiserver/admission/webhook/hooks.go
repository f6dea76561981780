// Package webhook asks the webhooks that are configured about writes. It reads
// the webhook configurations, Namespaces, Services and EndpointSlices in the
// cache, speaks to the webhooks, and changes or refuses incoming objects.
package webhook

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"

	"knarr/controlplane/apiserver/admission/match"
	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/expressions"
	"knarr/controlplane/apiserver/metrics"
	"knarr/controlplane/apiserver/watchcache"
)

// Config is what the plugins need.
type Config struct {
	Cache      *watchcache.Cache
	Authorizer authz.Authorizer
	// Dial reaches webhooks. Default: a net.Dialer.
	Dial Dialer
	// Credentials are shown to webhooks. Default: none.
	Credentials *Credentials
	// Counts counts what webhooks say. Default: nothing does.
	Counts *metrics.Admission
}

// A hook is one webhook of one configuration, ready to be asked.
type hook struct {
	admissionv1.MutatingWebhook // a validating one has no reinvocationPolicy
	configuration               string
	key                         string // among all hooks
	criteria                    *match.Criteria
	matcher                     func() *expressions.Matcher
	client                      *client
	counts                      *metrics.Admission
}

func (h *hook) ignoresFailures() bool {
	return h.FailurePolicy != nil && *h.FailurePolicy == admissionv1.Ignore
}

// hooks are those of all configurations of one kind, in the order of their
// names. They are made anew when a configuration has changed, which costs a
// write two atomic loads to find out.
type hooks struct {
	resource *watchcache.Resource
	clients  *clients
	counts   *metrics.Admission
	authz    authorizer.Authorizer
	collect  func(resource *watchcache.Resource, add func(meta metav1.Object, list []admissionv1.MutatingWebhook))

	current atomic.Pointer[snapshot]
	mu      sync.Mutex
}

type snapshot struct {
	revision int64
	hooks    []*hook
	// by is the same by configuration, for the next snapshot to keep.
	by map[string]configured
}

type configured struct {
	version string
	hooks   []*hook
}

// all are the hooks there are now.
func (s *hooks) all() []*hook {
	revision := s.resource.Changed()
	if now := s.current.Load(); now != nil && now.revision == revision {
		return now.hooks
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.current.Load()
	if old == nil {
		old = &snapshot{revision: -1}
	} else if old.revision == revision {
		return old.hooks
	}
	next := &snapshot{revision: revision, by: map[string]configured{}}
	used := map[string]bool{}
	s.collect(s.resource, func(meta metav1.Object, list []admissionv1.MutatingWebhook) {
		c := old.by[meta.GetName()]
		if version := meta.GetResourceVersion(); c.version != version {
			c = configured{version: version, hooks: s.prepare(meta.GetName(), list)}
		}
		next.by[meta.GetName()] = c
		next.hooks = append(next.hooks, c.hooks...)
		for _, h := range c.hooks {
			used[h.client.key] = true
		}
	})
	s.clients.keep(used)
	s.current.Store(next)
	return next.hooks
}

func (s *hooks) prepare(configuration string, list []admissionv1.MutatingWebhook) []*hook {
	out := make([]*hook, len(list))
	for i, w := range list {
		out[i] = &hook{
			MutatingWebhook: w, configuration: configuration, key: fmt.Sprintf("%s/%s/%d", configuration, w.Name, i),
			criteria: match.ForWebhook(w.Rules, w.MatchPolicy, w.NamespaceSelector, w.ObjectSelector),
			client:   s.clients.of(w.Name, &w.ClientConfig),
			counts:   s.counts,
			// Compiling waits for the first write that matches otherwise.
			matcher: sync.OnceValue(func() *expressions.Matcher {
				if len(w.MatchConditions) == 0 {
					return nil
				}
				return expressions.NewMatcher(conditionCompiler(), w.MatchConditions, w.FailurePolicy, false)
			}),
		}
	}
	return out
}

var conditionCompiler = sync.OnceValue(func() plugincel.ConditionCompiler {
	return plugincel.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
})

// concerns reports whether the hook is to be asked, and shows the write in the
// version it asked for.
func (s *hooks) concerns(ctx context.Context, h *hook, r *match.Request) (t match.Target, view *upstream.VersionedAttributes, err error) {
	t, ok, err := h.criteria.Match(ctx, r)
	if err != nil || !ok {
		return t, nil, err
	}
	if view, err = r.View(t); err != nil {
		return t, nil, err
	}
	ok, err = h.matcher().Matches(ctx, view, metav1.GroupVersionResource(t.Resource), nil, s.authz)
	if err != nil {
		return t, nil, apierrors.NewForbidden(r.Resource.GroupResource(), r.Name, err)
	}
	if !ok {
		return t, nil, nil
	}
	return t, view, nil
}

func newHooks(c Config, resource string, collect func(*watchcache.Resource, func(metav1.Object, []admissionv1.MutatingWebhook))) *hooks {
	return &hooks{
		resource: c.Cache.Resource(admissionv1.SchemeGroupVersion.WithResource(resource)),
		clients:  newClients(c), counts: c.Counts, authz: match.Authorizer(c.Authorizer), collect: collect,
	}
}

// seconds is how long the hook may take.
func (h *hook) seconds() int32 {
	if h.TimeoutSeconds == nil {
		return 10
	}
	return *h.TimeoutSeconds
}
