// Package extension serves the kinds that CustomResourceDefinitions declare. It
// reads the definitions from the cache, writes their status, has the cache and
// the handlers serve their objects, and deletes those when a definition goes.
package extension

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/run"
)

// An API is what the handlers offer.
type API interface {
	SetResources([]registry.Resource)
	ChangeStatus(ctx context.Context, gvr schema.GroupVersionResource, name string, change func(registry.Object)) error
	DeleteAll(ctx context.Context, gvr schema.GroupVersionResource) error
}

// Config is what the package needs.
type Config struct {
	Cache *watchcache.Cache
	API   API
	// Resolve finds Services for conversion webhooks.
	Resolve Resolver
}

// A Server keeps what is served up to date.
type Server struct {
	cfg     Config
	source  *watchcache.Resource
	serving map[string]*definition // by name
	waiting map[string]string      // those that lack a name: their groups
	ending  map[string]struct{}    // whose objects are being deleted
	mu      sync.Mutex             // guards ending
	wg      run.Group
	synced  chan struct{}
	kept    keptRules
}

// New makes a server; it starts nothing.
func New(c Config) *Server {
	return &Server{cfg: c, source: c.Cache.Resource(definitionsGVR), serving: map[string]*definition{},
		waiting: map[string]string{}, ending: map[string]struct{}{}, synced: make(chan struct{})}
}

// Synced is closed once all definitions there were are served.
func (s *Server) Synced() <-chan struct{} { return s.synced }

// Run follows the definitions until ctx ends. The cache must be ready.
func (s *Server) Run(ctx context.Context) error {
	defer s.wg.Wait()
	for ctx.Err() == nil {
		if err := s.follow(ctx); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "follow CustomResourceDefinitions", "err", err)
			select {
			case <-time.After(retryAfter):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

const retryAfter = time.Second

// follow serves what changes, from the present state on.
func (s *Server) follow(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	w, err := s.source.Watch(ctx, watchcache.WatchQuery{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	defer w.Stop()
	gone := map[string]struct{}{}
	for name := range s.serving {
		gone[name] = struct{}{}
	}
	names := gone // those that went while nobody looked are looked at, too
	var batch []watchcache.Delivery
	for {
		if batch, err = w.Poll(batch[:0]); err != nil {
			return err
		}
		for _, d := range batch {
			if d.Record != nil {
				names[d.Record.Key] = struct{}{}
			}
		}
		if len(batch) == 0 || len(names) > 0 {
			if err := s.update(ctx, names); err != nil {
				return err
			}
			names = map[string]struct{}{}
			select {
			case <-s.synced:
			default:
				close(s.synced)
			}
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.C():
		}
	}
}

// update brings what is served up to date with the named definitions. The
// statuses follow: who reads that a kind is established must find it served.
func (s *Server) update(ctx context.Context, names map[string]struct{}) error {
	var after []func(context.Context) error
	changed := false
	for _, name := range s.withNameConflicts(names) {
		then, did, err := s.one(ctx, name)
		if err != nil {
			return fmt.Errorf("serve %s: %w", name, err)
		}
		changed = changed || did
		if then != nil {
			after = append(after, then)
		}
	}
	if changed {
		s.cfg.API.SetResources(s.resources())
	}
	var errs []error
	for _, then := range after {
		if err := then(ctx); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// withNameConflicts puts those that are gone first, and adds the definitions that wait
// for names that may be free now.
func (s *Server) withNameConflicts(names map[string]struct{}) []string {
	all := slices.Sorted(maps.Keys(names))
	slices.SortStableFunc(all, func(a, b string) int {
		is := func(name string) int {
			if s.source.Peek(name) == nil {
				return 0
			}
			return 1
		}
		return is(a) - is(b)
	})
	for _, other := range slices.Sorted(maps.Keys(s.waiting)) {
		if _, named := names[other]; named {
			continue
		}
		for name := range names {
			if _, group, _ := strings.Cut(name, "."); group == s.waiting[other] {
				all = append(all, other)
				break
			}
		}
	}
	return all
}

// one looks at one definition: whether what is served changes, and what is to
// be done once it is served.
func (s *Server) one(ctx context.Context, name string) (then func(context.Context) error, changed bool, err error) {
	rec := s.source.Peek(name)
	old := s.serving[name]
	delete(s.waiting, name)
	if rec == nil {
		if old == nil {
			return nil, false, nil
		}
		delete(s.serving, name)
		s.cfg.Cache.Remove(old.prefix())
		old.webhook.close()
		return nil, true, nil
	}
	obj, err := rec.Object()
	if err != nil {
		return nil, false, err
	}
	crd := obj.(*customResourceDefinition)
	v := computeStatus(crd, s.siblingNames(crd))
	if !sameNames(v.names, crd.Spec.Names) {
		s.waiting[name] = crd.Spec.Group
	}
	if v.accepted(crd) && (old == nil || !old.sameServed(crd, v.names)) {
		if err := s.serve(ctx, crd, v.names); err != nil {
			return nil, false, err
		}
		changed = true
	}
	if crd.DeletionTimestamp != nil {
		s.end(ctx, crd)
	}
	if v.matchesStatus(crd) {
		return nil, changed, nil
	}
	return func(ctx context.Context) error {
		return s.cfg.API.ChangeStatus(ctx, definitionsGVR, name, func(o registry.Object) { v.writeStatus(o.(*customResourceDefinition)) })
	}, changed, nil
}

// accepted says that the definition is to be served.
func (v statusUpdate) accepted(crd *customResourceDefinition) bool {
	for _, c := range v.conditions {
		switch {
		case c.Type == apiextensionsv1.Established:
			return c.Status == apiextensionsv1.ConditionTrue
		}
	}
	return apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
}

// siblingNames are the names given to definitions of the same group, one's own too.
func (s *Server) siblingNames(crd *customResourceDefinition) (out []names) {
	for _, d := range s.serving {
		if d.crd.Spec.Group == crd.Spec.Group && d.crd.Name != crd.Name {
			out = append(out, d.crd.Status.AcceptedNames)
		}
	}
	return append(out, crd.Status.AcceptedNames)
}

// serve has the definition served as it is now, with these names.
func (s *Server) serve(ctx context.Context, crd *customResourceDefinition, given names) error {
	name := crd.Name // the definition itself is big, and must not be kept
	d := newDefinition(crd, given, func() (*customResourceDefinition, error) {
		now, ok := watchcache.Read[*customResourceDefinition](s.source, name)
		if !ok {
			return nil, apierrors.NewNotFound(definitionsGVR.GroupResource(), name)
		}
		return now, nil
	}, newConverter(crd, s.cfg.Resolve), &s.kept)
	old := s.serving[crd.Name]
	if old != nil && old.crd.UID != crd.UID {
		s.cfg.Cache.Remove(old.prefix())
	}
	hub := newKind(d, &d.crd.Spec.Versions[slices.IndexFunc(d.crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })])
	if err := s.cfg.Cache.Add(ctx, hub); err != nil {
		return err
	}
	s.serving[crd.Name] = d
	if old != nil {
		old.webhook.close()
		// Watches show what was served; their clients come back for what is.
		s.cfg.Cache.At(d.prefix()).Disconnect()
	}
	return nil
}

// resources are all kinds served, groups by name, versions from the newest.
func (s *Server) resources() (out []registry.Resource) {
	var kinds []*kind
	for _, d := range s.serving {
		kinds = append(kinds, d.kinds...)
	}
	slices.SortFunc(kinds, func(a, b *kind) int {
		return cmp.Or(strings.Compare(a.gvk.Group, b.gvk.Group),
			-version.CompareKubeAwareVersionStrings(a.gvk.Version, b.gvk.Version),
			strings.Compare(a.gvr.Resource, b.gvr.Resource))
	})
	for _, k := range kinds {
		out = append(out, k)
	}
	return out
}
