package watchcache

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/registry"
)

// The errors of reads and writes; the handlers turn them into Status.
var (
	ErrNotFound = errors.New("not found")          // 404
	ErrExists   = errors.New("already exists")     // 409 AlreadyExists
	ErrConflict = errors.New("object has changed") // 409 Conflict
	ErrNotReady = errors.New("storage is (re)initializing")
	// ErrEnded ends a watch without a word: the client is to come back.
	ErrEnded = errors.New("what is watched is served anew")
	// ErrContinueExpired is what a ContinueExpiredError is.
	ErrContinueExpired = errors.New("the provided continue parameter is too old")
)

// noKind empties an object's kind and apiVersion.
var noKind schema.GroupVersionKind

// ContinueExpiredError is 410 Expired for a continue token whose revision is no
// longer to be had. Token continues all the same, inconsistently.
type ContinueExpiredError struct{ Token string }

func (e *ContinueExpiredError) Error() string        { return ErrContinueExpired.Error() }
func (e *ContinueExpiredError) Is(target error) bool { return target == ErrContinueExpired }

// TooOldError is 410 Expired: the log no longer reaches back to Revision.
type TooOldError struct{ Revision, Oldest int64 }

func (e *TooOldError) Error() string {
	return fmt.Sprintf("too old resource version: %d (%d)", e.Revision, e.Oldest)
}

// TooNewError is 504 Timeout: Revision has not been reached in time.
type TooNewError struct{ Revision, Current int64 }

func (e *TooNewError) Error() string {
	return fmt.Sprintf("Too large resource version: %d, current: %d", e.Revision, e.Current)
}

// InvalidError is 400: a resourceVersion or continue token that cannot be.
type InvalidError struct{ Reason string }

func (e *InvalidError) Error() string { return e.Reason }

// A Query selects what to list. Zero selectors select everything.
type Query struct {
	Namespace string // "" is all
	Name      string // exactly this name, "" is all
	Labels    labels.Selector
	Fields    fields.Selector
	// FieldSet gives the fields Fields selects on; nil: those of the kind stored.
	FieldSet func(registry.Object) fields.Set
	// Object gives what selectors look at; nil: the object as stored.
	Object   func(*Record) (registry.Object, error)
	Limit    int64
	Continue string
	// ResourceVersion as in the request: "" is consistent with the store, "0"
	// whatever the cache holds.
	ResourceVersion string
	Match           metav1.ResourceVersionMatch
}

// A List is what a Query found, in key order, as of one Revision.
type List struct {
	Records   []*Record
	Revision  int64
	Continue  string // token for the next page, "" at the end
	Remaining *int64 // items after this page, nil when unknown (selectors)
}

// A WatchQuery selects what to watch.
type WatchQuery struct {
	Namespace, Name string
	Labels          labels.Selector
	Fields          fields.Selector
	FieldSet        func(registry.Object) fields.Set       // as in Query
	Object          func(*Record) (registry.Object, error) // as in Query
	// ResourceVersion: "" starts with ADDED for the present state,
	// consistently; "0" the same without waiting; else after that revision.
	ResourceVersion string
	// SendInitialEvents as in ListOptions (nil: upstream's defaulting). When true,
	// the state comes first, then a Delivery with InitialEnd.
	SendInitialEvents *bool
}
