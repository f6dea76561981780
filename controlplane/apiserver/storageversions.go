package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"knarr/controlplane/apiserver/endpoints"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/storage/encryption"
	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/run"
	"knarr/internal/storageversion"
)

// Where the feature StorageVersionAPI is on, each API server says in StorageVersions which
// version of each resource it stores and which ones it can read, before it takes writes.
// What it says counts while it has a Lease. Names and times are upstream's, so that its API
// servers count too.
const (
	identityTTL      = time.Hour
	identityRenewal  = 10 * time.Second
	identityRetry    = time.Second
	staleIdentities  = time.Hour        // between looks for Leases that have expired
	versionsRecorded = 10 * time.Minute // between two records: somebody may have changed them
	recordTries      = 5                // of a StorageVersion that others write too
)

// versions are what this server says.
type versions struct {
	server string
	all    []resourceVersions
	// pending are their resources, of which nothing is written until recorded is closed.
	pending  map[schema.GroupResource]bool
	recorded chan struct{}
	done     func() // closes it, once
	lastErr  atomic.Pointer[string]
}

// resourceVersions are the versions of one resource: that in which it is stored, those
// that can be read, those that are served.
type resourceVersions struct {
	schema.GroupResource
	stored           string
	decoded, serving []string
}

func newVersions(kinds []registry.Resource) *versions {
	v := &versions{server: encryption.ServerID(), all: versionsOf(kinds), pending: map[schema.GroupResource]bool{}, recorded: make(chan struct{})}
	v.done = sync.OnceFunc(func() { close(v.recorded) })
	for _, k := range kinds {
		if !k.IsVirtual() {
			v.pending[k.GVR().GroupResource()] = true
		}
	}
	return v
}

// versionsOf are those of the resources that are stored, one for those that share their
// storage. Pure.
func versionsOf(kinds []registry.Resource) (all []resourceVersions) {
	index := map[schema.GroupResource]int{}
	for _, k := range kinds {
		if k.IsVirtual() {
			continue
		}
		gr := k.Storage().Hub.GVR().GroupResource()
		i, known := index[gr]
		if !known {
			i = len(all)
			index[gr] = i
			stored := registry.StoredKind(k).GroupVersion().String()
			all = append(all, resourceVersions{GroupResource: gr, stored: stored, decoded: []string{stored}})
		}
		version := k.GVR().GroupVersion().String()
		if !slices.Contains(all[i].decoded, version) {
			all[i].decoded = append(all[i].decoded, version)
		}
		if k.GVR().GroupResource() == gr {
			all[i].serving = append(all[i].serving, version)
		}
	}
	return all
}

// name is that of the StorageVersion.
func (r resourceVersions) name() string {
	if r.Group == "" {
		return "core." + r.Resource
	}
	return r.Group + "." + r.Resource
}

// barrier refuses writes of resources whose versions are not recorded yet. Those it does
// not refuse are what the record itself depends on.
func (v *versions) barrier(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-v.recorded:
		default:
			if info := request.InfoFrom(r.Context()); v.waits(info) {
				last := "<nil>"
				if e := v.lastErr.Load(); e != nil {
					last = *e
				}
				gr := schema.GroupResource{Group: info.Group, Resource: info.Resource}
				endpoints.WriteStatus(w, r, apierrors.NewServiceUnavailable(
					fmt.Sprintf("wait for storage version registration to complete for resource: %v, last seen error: %s", gr, last)))
				return
			}
		}
		api.ServeHTTP(w, r)
	})
}

func (v *versions) waits(i *request.Info) bool {
	switch {
	case i == nil || !i.IsResource || i.Verb == "get" || i.Verb == "list" || i.Verb == "watch":
		return false
	case i.Group == apiserverinternalv1alpha1.GroupName && i.Resource == "storageversions":
		return false
	case i.Group == coordinationv1.GroupName && i.Resource == "leases" && i.Namespace == metav1.NamespaceSystem:
		return false
	}
	return v.pending[schema.GroupResource{Group: i.Group, Resource: i.Resource}]
}

// keepVersions keeps this server's Lease and what it says, and removes Leases that have
// expired, until ctx ends.
func (s *Server) keepVersions(ctx context.Context) {
	holder := s.versions.server + "_" + string(uuid.NewUUID())
	defer func() { s.releaseIdentity(context.WithoutCancel(ctx), holder) }()
	var record, collect time.Time // when they are due
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-due.C:
		}
		now := time.Now()
		err := s.renewIdentity(ctx, holder, now)
		if err == nil && !now.Before(record) {
			if err = s.recordVersions(ctx); err == nil {
				record = now.Add(versionsRecorded)
				s.versions.done()
			}
		}
		if err == nil && !now.Before(collect) {
			if err = s.collectIdentities(ctx, now); err == nil {
				collect = now.Add(staleIdentities)
			}
		}
		if err == nil {
			s.versions.lastErr.Store(nil)
			due.Reset(identityRenewal)
			continue
		}
		due.Reset(identityRetry)
		if ctx.Err() != nil {
			return
		}
		text := err.Error()
		if last := s.versions.lastErr.Swap(&text); last == nil || *last != text { // a store in trouble is logged once
			slog.WarnContext(ctx, "record the storage versions of this API server", "err", err)
		}
	}
}

func (s *Server) identities() *watchcache.Resource {
	return s.cache.Resource(coordinationv1.SchemeGroupVersion.WithResource("leases"))
}

// renewIdentity makes or renews the Lease of this server.
func (s *Server) renewIdentity(ctx context.Context, holder string, now time.Time) error {
	leases, key := s.identities(), metav1.NamespaceSystem+"/"+s.versions.server
	old := leases.Peek(key)
	l := &coordinationv1.Lease{ObjectMeta: made(s.versions.server, now)}
	l.Namespace = metav1.NamespaceSystem
	if old != nil {
		have, err := old.Object()
		if err != nil {
			return fmt.Errorf("read Lease %s: %w", key, err)
		}
		l = have.DeepCopyObject().(*coordinationv1.Lease)
	}
	metav1.SetMetaDataLabel(&l.ObjectMeta, storageversion.IdentityLabel, storageversion.IdentityValue)
	if host, err := os.Hostname(); err == nil && len(validation.IsValidLabelValue(host)) == 0 {
		metav1.SetMetaDataLabel(&l.ObjectMeta, corev1.LabelHostname, host)
	}
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &holder, new(int32(identityTTL/time.Second)), new(metav1.NewMicroTime(now))
	var err error
	if old == nil {
		_, err = leases.Create(ctx, key, l)
	} else {
		_, err = leases.Update(ctx, key, old, l)
	}
	if err != nil {
		return fmt.Errorf("renew Lease %s: %w", key, err)
	}
	return nil
}

// made is the metadata of an object that this server makes.
func made(name string, now time.Time) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, UID: types.UID(uuid.NewUUID()), CreationTimestamp: metav1.NewTime(now.Truncate(time.Second))}
}

// releaseIdentity deletes the Lease of this server, which ends. Servers of one host have one
// name, as upstream's, and so one Lease: while another holds it, it stays.
func (s *Server) releaseIdentity(ctx context.Context, holder string) {
	rec := s.identities().Peek(metav1.NamespaceSystem + "/" + s.versions.server)
	if rec == nil {
		return
	}
	if o, err := rec.Object(); err != nil || ptr.Deref(o.(*coordinationv1.Lease).Spec.HolderIdentity, "") != holder {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaseReleaseTimeout)
	defer cancel()
	key := watchcache.Root + "leases/" + metav1.NamespaceSystem + "/" + s.versions.server
	if have, _, err := s.cfg.Store.Get(ctx, key); err == nil && have != nil {
		_, _, _, _ = s.cfg.Store.Delete(ctx, key, have.Revision) // else it expires
	}
}

// collectIdentities deletes the Leases of servers that have not renewed them in time.
func (s *Server) collectIdentities(ctx context.Context, now time.Time) error {
	leases := s.identities()
	var stale []string
	watchcache.Each(leases, metav1.NamespaceSystem, func(l *coordinationv1.Lease) bool {
		if storageversion.IsIdentity(l) && expired(l, now) {
			stale = append(stale, l.Namespace+"/"+l.Name)
		}
		return true
	})
	for _, key := range stale {
		// As the store has it: another server may have renewed it meanwhile.
		rec, err := leases.Fetch(ctx, key)
		if errors.Is(err, watchcache.ErrNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read Lease %s: %w", key, err)
		}
		if o, err := rec.Object(); err != nil || !expired(o.(*coordinationv1.Lease), now) {
			continue
		}
		_, err = leases.Delete(ctx, key, rec)
		if err != nil && !errors.Is(err, watchcache.ErrNotFound) && !errors.Is(err, watchcache.ErrConflict) {
			return fmt.Errorf("delete Lease %s, which has expired: %w", key, err)
		}
	}
	return nil
}

// expired says that a Lease has, or that it never could. Pure.
func expired(l *coordinationv1.Lease, now time.Time) bool {
	s := l.Spec
	return s.RenewTime == nil || s.LeaseDurationSeconds == nil || s.RenewTime.Add(time.Duration(*s.LeaseDurationSeconds)*time.Second).Before(now)
}

// recordVersions says what this server says of all resources. All at once: the store
// commits concurrent writes together.
func (s *Server) recordVersions(ctx context.Context) error {
	errs := make(chan error, len(s.versions.all))
	var group run.Group
	for _, r := range s.versions.all {
		group.Go("storage version", func() {
			if err := run.Catch("storage version", func() error { return s.recordVersion(ctx, r) }); err != nil {
				errs <- fmt.Errorf("record the storage version of %v: %w", r.GroupResource, err)
			}
		})
	}
	group.Wait()
	close(errs)
	return <-errs
}

func (s *Server) recordVersion(ctx context.Context, r resourceVersions) (err error) {
	all, name := s.cache.Resource(apiserverinternalv1alpha1.SchemeGroupVersion.WithResource("storageversions")), r.name()
	entry := apiserverinternalv1alpha1.ServerStorageVersion{APIServerID: s.versions.server, EncodingVersion: r.stored, DecodableVersions: r.decoded, ServedVersions: r.serving}
	for range recordTries {
		old, v := all.Peek(name), &apiserverinternalv1alpha1.StorageVersion{ObjectMeta: made(name, time.Now())}
		if old != nil {
			have, err := old.Object()
			if err != nil {
				return err
			}
			v = have.DeepCopyObject().(*apiserverinternalv1alpha1.StorageVersion)
		}
		storageversion.Record(v, entry)
		if old == nil {
			_, err = all.Create(ctx, name, v)
		} else {
			_, err = all.Update(ctx, name, old, v)
		}
		if !errors.Is(err, watchcache.ErrExists) && !errors.Is(err, watchcache.ErrConflict) && !errors.Is(err, watchcache.ErrNotFound) {
			return err
		}
		if err := s.cache.Sync(ctx); err != nil { // what somebody else has written is to be seen
			return err
		}
	}
	return err
}
