package endpoints

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/watchcache"
)

// maxFaults is how many unreadable objects a refused list names.
const maxFaults = 100

// found lists. What upstream answers from its cache it refuses while anything
// of the kind is unreadable, for then it has none; pages without a selector come
// from the store, and fail only where they meet such a value.
func (c *call) found(q watchcache.Query, paged bool) (*watchcache.List, error) {
	list, err := c.store.List(c.ctx, q)
	whole := c.store.CheckReadable()
	switch {
	case whole != nil && !(paged && (q.Labels == nil || q.Labels.Empty()) && (q.Fields == nil || q.Fields.Empty())):
		return nil, c.reinitializing(whole)
	case err != nil:
		return nil, c.partial(err)
	}
	return list, nil
}

// partial refuses a list that would not be whole.
func (c *call) partial(err error) error {
	var p *watchcache.PartialError
	if c.s.cfg.Discards == nil || !errors.As(err, &p) {
		return c.fromCache(err, "")
	}
	gr := c.gvr.GroupResource()
	s := statusError(http.StatusInternalServerError, metav1.StatusReasonStoreReadError,
		fmt.Sprintf("failed to read one or more %s from the storage", gr))
	s.ErrStatus.Details = &metav1.StatusDetails{Group: gr.Group, Kind: gr.Resource, Name: "list"}
	for i, f := range p.Faults {
		if i == maxFaults {
			s.ErrStatus.Details.Causes = append(s.ErrStatus.Details.Causes,
				metav1.StatusCause{Type: metav1.CauseTypeTooMany, Message: "too many errors, the list is truncated"})
			break
		}
		s.ErrStatus.Details.Causes = append(s.ErrStatus.Details.Causes,
			metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse, Field: f.Key, Message: corrupt(f.Key, f)})
	}
	return s
}

// corrupt is what upstream's store says of an unreadable object.
func corrupt(key string, f *watchcache.UnreadableError) string {
	what, rev := "object not decodable", f.Revision
	if f.Sealed {
		what, rev = "data from the storage is not transformable", 0
	}
	return fmt.Sprintf("StorageError: corrupt object, Code: 7, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: %s revision=%d: %v", key, what, rev, f)
}

// reinitializing refuses a watch that would not show everything. Upstream's
// clients take it for a sign to wait.
func (c *call) reinitializing(err error) error {
	var p *watchcache.PartialError
	if !errors.As(err, &p) {
		return c.fromCache(err, "")
	}
	kind := "*unstructured.Unstructured"
	if c.custom == nil {
		kind = "*" + internalPackage(c.gvk.Group) + "." + c.gvk.Kind
	}
	why := p.Error()
	if c.s.cfg.Discards != nil {
		why = c.partial(p).Error()
	}
	return apierrors.NewTooManyRequests(fmt.Sprintf("storage is (re)initializing: failed to list %s: %s", kind, why), retryAfter(time.Since(p.Since)))
}

// retryAfter is how many seconds a client is to wait when something has been
// unreadable for so long.
func retryAfter(since time.Duration) int {
	return int(min(30, max(1, math.Exp(0.06*since.Seconds()))))
}

var ignoreReadError = field.NewPath("ignoreStoreReadErrorWithClusterBreakingPotential")

// discard removes an object that cannot be read, as somebody asked for who knows
// what it may break: neither admission nor finalizers have a say.
func (c *call) discard() error {
	request.AuditFrom(c.ctx).Annotate("apiserver.k8s.io/unsafe-delete-ignore-read-error", "")
	if err := c.mayDiscard(); err != nil {
		return err
	}
	_, err := c.store.Fetch(c.ctx, c.key())
	var unreadable *watchcache.UnreadableError
	if !errors.As(err, &unreadable) {
		return apierrors.NewInvalid(schema.GroupKind{Group: c.gvr.Group, Kind: c.gvr.Resource}, c.info.Name, field.ErrorList{
			field.Invalid(ignoreReadError, true, "is exclusively used to delete corrupt object(s), try again by removing this option")})
	}
	if err := c.store.Discard(c.ctx, c.key(), unreadable); err != nil && !errors.Is(err, watchcache.ErrNotFound) {
		return c.fromCache(err, c.info.Name)
	}
	return c.write(http.StatusOK, &metav1.Status{
		Status: metav1.StatusSuccess, Code: http.StatusOK,
		Details: &metav1.StatusDetails{Name: c.info.Name, Group: c.gvr.Group, Kind: c.gvk.Kind},
	})
}

// internalPackage is where upstream keeps a group's types.
func internalPackage(group string) string {
	switch group {
	case "", "events.k8s.io":
		return "core"
	case "internal.apiserver.k8s.io":
		return "apiserverinternal"
	}
	first, _, _ := strings.Cut(group, ".")
	return first
}

// mayDiscard asks for the right to that, which is not the one to delete.
func (c *call) mayDiscard() error {
	const verb = "unsafe-delete-ignore-read-errors"
	allowed, reason, err := c.s.cfg.Discards(c.ctx, verb)
	switch {
	case err != nil:
		err = fmt.Errorf("error while checking permission for %q, %w", verb, err)
	case !allowed:
		err = fmt.Errorf("not permitted to do %q, reason: %s", verb, reason)
	default:
		return nil
	}
	return apierrors.NewForbidden(c.gvr.GroupResource(), c.info.Name, err)
}
