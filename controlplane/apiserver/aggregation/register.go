package aggregation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"knarr/controlplane/apiserver/watchcache"
)

// A priority orders groups and, within them, versions.
type priority struct{ group, version int32 }

// priorities are those of the built-in groups, upstream's.
var priorities = map[schema.GroupVersion]priority{
	{Version: "v1"}:                                        {18000, 1},
	{Group: "apps", Version: "v1"}:                         {17800, 15},
	{Group: "events.k8s.io", Version: "v1"}:                {17750, 15},
	{Group: "authentication.k8s.io", Version: "v1"}:        {17700, 15},
	{Group: "authorization.k8s.io", Version: "v1"}:         {17600, 15},
	{Group: "autoscaling", Version: "v1"}:                  {17500, 15},
	{Group: "autoscaling", Version: "v2"}:                  {17500, 30},
	{Group: "batch", Version: "v1"}:                        {17400, 15},
	{Group: "certificates.k8s.io", Version: "v1"}:          {17300, 15},
	{Group: "networking.k8s.io", Version: "v1"}:            {17200, 15},
	{Group: "policy", Version: "v1"}:                       {17100, 15},
	{Group: "rbac.authorization.k8s.io", Version: "v1"}:    {17000, 15},
	{Group: "storage.k8s.io", Version: "v1"}:               {16800, 15},
	{Group: "apiextensions.k8s.io", Version: "v1"}:         {16700, 15},
	{Group: "admissionregistration.k8s.io", Version: "v1"}: {16700, 15},
	{Group: "scheduling.k8s.io", Version: "v1"}:            {16600, 15},
	{Group: "coordination.k8s.io", Version: "v1"}:          {16500, 15},
	{Group: "node.k8s.io", Version: "v1"}:                  {16300, 15},
	{Group: "discovery.k8s.io", Version: "v1"}:             {16200, 15},
	{Group: "resource.k8s.io", Version: "v1"}:              {16200, 21},
	{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}: {16100, 21},
}

// custom is the priority of groups that CustomResourceDefinitions declare.
var custom = priority{1000, 100}

// automanaged marks the APIServices kept here: "onstart" the built-in groups',
// which are made once a start, "true" those of custom groups, which come and go.
const automanaged = "kube-aggregator.kubernetes.io/automanaged"

// Local is the APIService of a group version that is served here.
func Local(gv schema.GroupVersion) *apiregistrationv1.APIService {
	p, mode := custom, "true"
	if own, ok := priorities[gv]; ok {
		p, mode = own, "onstart"
	}
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group, Labels: map[string]string{automanaged: mode}},
		Spec:       apiregistrationv1.APIServiceSpec{Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: p.group, VersionPriority: p.version},
	}
}

// BuiltIn are the APIServices that every cluster starts with.
func (a *Aggregator) BuiltIn() (out []*apiregistrationv1.APIService) {
	for _, gv := range a.cfg.API.Versions() {
		if _, ok := priorities[gv]; ok {
			out = append(out, Local(gv))
		}
	}
	return out
}

// register brings the APIServices of custom groups up to date.
func (a *Aggregator) register(ctx context.Context) error {
	wanted := map[string]*apiregistrationv1.APIService{}
	for _, gv := range a.cfg.API.Versions() {
		if _, builtIn := priorities[gv]; !builtIn && gv.Group != apiregistrationv1.GroupName {
			s := Local(gv)
			wanted[s.Name] = s
		}
	}
	var errs []error
	var gone []string
	watchcache.Each(a.services, "", func(s *apiregistrationv1.APIService) bool {
		want := wanted[s.Name]
		delete(wanted, s.Name)
		switch {
		case s.Labels[automanaged] != "true": // a user's own takes its place
		case want == nil:
			gone = append(gone, s.Name)
		case !equality.Semantic.DeepEqual(want.Spec, s.Spec):
			now := s.DeepCopy()
			now.Spec = want.Spec
			if _, err := a.services.Update(ctx, s.Name, a.services.Peek(s.Name), now); err != nil {
				errs = append(errs, fmt.Errorf("update APIService %s: %w", s.Name, err))
			}
		}
		return true
	})
	for _, name := range gone {
		if rec := a.services.Peek(name); rec != nil {
			if _, err := a.services.Delete(ctx, name, rec); err != nil && !errors.Is(err, watchcache.ErrNotFound) {
				errs = append(errs, fmt.Errorf("delete APIService %s: %w", name, err))
			}
		}
	}
	for name, s := range wanted {
		s.UID, s.CreationTimestamp = types.UID(uuid.NewUUID()), metav1.NewTime(time.Now().Truncate(time.Second))
		a.services.Kind().PrepareObject(ctx, s, nil)
		if _, err := a.services.Create(ctx, name, s); err != nil && !errors.Is(err, watchcache.ErrExists) {
			errs = append(errs, fmt.Errorf("create APIService %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
