package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"knarr/controlplane/apiserver/authn"
	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/run"
)

// bootstrapTimeout is how long bootstrap is tried again once it has failed, as upstream's
// server tries it: on a busy machine the first try may take that long by itself.
const bootstrapTimeout = 30 * time.Second

// bootstrapWithRetries lets a store that is slow to answer its first writes, as on
// a busy machine, delay the server and not end it.
func (s *Server) bootstrapWithRetries(ctx context.Context) error {
	for end := (time.Time{}); ; {
		err := s.bootstrap(ctx)
		if end.IsZero() {
			end = time.Now().Add(bootstrapTimeout)
		}
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
		slog.WarnContext(ctx, "bootstrap is tried again", "err", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return err
		}
	}
}

// bootstrap makes the objects that every cluster starts with, where they are
// missing, and points the Service kubernetes at this server. All at once: the
// store commits concurrent writes together.
func (s *Server) bootstrap(ctx context.Context) error {
	objects, err := authz.Bootstrap(s.cfg.Features)
	if err != nil {
		return err
	}
	for _, ns := range []string{corev1.NamespaceDefault, "kube-system", "kube-public", corev1.NamespaceNodeLease} {
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	}
	objects = append(objects, priorityClasses()...)
	objects = append(objects, flows()...)
	objects = append(objects, s.kubernetesService()...)
	for _, o := range s.others.BuiltIn() {
		objects = append(objects, o)
	}
	objects = append(objects, s.extensionAuthentication())
	if o := s.tokenTracking(time.Now()); o != nil {
		objects = append(objects, o)
	}

	if s.cfg.Advertise.IsValid() { // before it counts itself in, this server is there
		servers, err := s.liveServers(ctx)
		if err != nil {
			return err
		}
		if me := s.cfg.Advertise.Addr(); !slices.Contains(servers, me) {
			servers = append(servers, me)
			slices.SortFunc(servers, netip.Addr.Compare)
		}
		objects = append(objects, s.kubernetesEndpoints(servers)...)
	}

	errs := make(chan error, len(objects))
	var group run.Group
	for _, o := range objects {
		group.Go("bootstrap", func() {
			if err := run.Catch("bootstrap", func() error { return s.ensure(ctx, o) }); err != nil {
				errs <- err
			}
		})
	}
	group.Wait()
	close(errs)
	for err := range errs {
		return err
	}
	// The first clients must find the roles that let them in.
	return s.cache.Sync(ctx)
}

func priorityClasses() []registry.Object {
	class := func(name string, value int32, description string) registry.Object {
		return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, Description: description}
	}
	return []registry.Object{
		class("system-cluster-critical", 2000000000, "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),
		class("system-node-critical", 2000001000, "Used for system critical pods that must not be moved from their current node."),
	}
}

// flows are the FlowSchemas and priority levels of every cluster, upstream's.
func flows() (objects []registry.Object) {
	add := func(o registry.Object) {
		o.SetAnnotations(map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: "true"})
		objects = append(objects, o)
	}
	for _, list := range [][]*flowcontrolv1.PriorityLevelConfiguration{bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations} {
		for _, l := range list {
			add(l.DeepCopy())
		}
	}
	for _, list := range [][]*flowcontrolv1.FlowSchema{bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas} {
		for _, f := range list {
			add(f.DeepCopy())
		}
	}
	return objects
}

// restoreFlows makes those that somebody has deleted.
func (s *Server) restoreFlows(ctx context.Context) error {
	var errs []error
	for _, o := range flows() {
		if err := s.ensure(ctx, o); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// extensionAuthentication publishes the certificate authorities that aggregated API servers are to trust.
func (s *Server) extensionAuthentication() registry.Object {
	data := map[string]string{}
	if len(s.cfg.ClientCAs) > 0 {
		data["client-ca-file"] = string(s.cfg.ClientCAs)
	}
	if p := s.cfg.FrontProxy; p != nil && len(s.cfg.FrontProxyCAs) > 0 {
		data["requestheader-client-ca-file"] = string(s.cfg.FrontProxyCAs)
		names, headers := s.cfg.FrontProxyNames, p.Headers
		if names == nil {
			names = p.Names
		}
		if headers == nil {
			headers = authn.StandardHeaders()
		}
		for key, list := range map[string][]string{
			"requestheader-username-headers": headers.User, "requestheader-uid-headers": headers.UID,
			"requestheader-group-headers": headers.Group, "requestheader-extra-headers-prefix": headers.ExtraPrefix,
			"requestheader-allowed-names": names,
		} {
			if text, err := json.Marshal(list); err == nil {
				data[key] = string(text)
			}
		}
	}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"}, Data: data}
}

// tokenTracking says since when uses of tokens in Secrets are noted; nil when
// that is written already.
func (s *Server) tokenTracking(now time.Time) registry.Object {
	const name, since, form = "kube-apiserver-legacy-service-account-token-tracking", "since", "2006-01-02"
	have, ok := watchcache.Read[*corev1.ConfigMap](s.cache.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")), "kube-system/"+name)
	if ok {
		if _, err := time.Parse(form, have.Data[since]); err == nil {
			return nil
		}
	}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Data: map[string]string{since: now.UTC().Format(form)}}
}

// ensure creates o if there is none, and brings what must follow this
// server's flags up to date.
func (s *Server) ensure(ctx context.Context, o registry.Object) error {
	res := resourceOf(o)
	if res == nil {
		return fmt.Errorf("no kind in the table for %T", o)
	}
	cached := s.cache.Resource(res.GVR())
	key := o.GetName()
	if o.GetNamespace() != "" {
		key = o.GetNamespace() + "/" + key
	}
	o.SetUID(types.UID(uuid.NewUUID()))
	o.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	res.Defaults(o)
	res.PrepareObject(ctx, o, nil)
	if c, ok := o.(*networkingv1.ServiceCIDR); ok { // upstream's server does so a little later
		c.Status.Conditions = []metav1.Condition{{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue,
			Message: "Kubernetes default Service CIDR is ready", LastTransitionTime: c.CreationTimestamp}}
	}
	if old := cached.Peek(key); old != nil {
		return s.refresh(ctx, cached, key, old, o)
	}
	_, err := cached.Create(ctx, key, o)
	if errors.Is(err, watchcache.ErrExists) {
		return nil // another server was first
	}
	if err != nil {
		return fmt.Errorf("create %s %s: %w", res.GVK().Kind, key, err)
	}
	return nil
}

// refresh brings up to date the objects by which others reach this server and know
// its authorities, the default range of Services, and the roles of a cluster that an
// older version has made.
func (s *Server) refresh(ctx context.Context, cached *watchcache.Resource, key string, old *watchcache.Record, want registry.Object) error {
	have, err := old.Object()
	if err != nil {
		return err
	}
	switch w := want.(type) {
	case *corev1.ConfigMap:
		h := have.DeepCopyObject().(*corev1.ConfigMap)
		if reflect.DeepEqual(h.Data, w.Data) {
			return nil
		}
		h.Data = w.Data
		_, err = cached.Update(ctx, key, old, h)
	case *corev1.Endpoints:
		h := have.DeepCopyObject().(*corev1.Endpoints)
		if reflect.DeepEqual(h.Subsets, w.Subsets) {
			return nil
		}
		h.Subsets = w.Subsets
		_, err = cached.Update(ctx, key, old, h)
	case *discoveryv1.EndpointSlice:
		h := have.DeepCopyObject().(*discoveryv1.EndpointSlice)
		if reflect.DeepEqual(h.Endpoints, w.Endpoints) && reflect.DeepEqual(h.Ports, w.Ports) {
			return nil
		}
		h.Endpoints, h.Ports = w.Endpoints, w.Ports
		_, err = cached.Update(ctx, key, old, h)
	case *networkingv1.ServiceCIDR:
		return s.refreshRange(ctx, cached, key, old, have.(*networkingv1.ServiceCIDR), w)
	default:
		if h := withMissing(have, want); h != nil {
			_, err = cached.Update(ctx, key, old, h)
		}
	}
	if errors.Is(err, watchcache.ErrConflict) {
		return nil
	}
	return err
}

func resourceOf(o registry.Object) registry.Resource {
	t := reflect.TypeOf(o)
	for _, r := range registry.Resources {
		if !r.IsVirtual() && reflect.TypeOf(r.New()) == t {
			return r
		}
	}
	return nil
}
