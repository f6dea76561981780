// Package registry declares every kind the API server serves, one file each,
// and the table of them. It reads and writes nothing: it is what discovery,
// the handlers, OpenAPI, RBAC names, printing and garbage collection read.
package registry

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
)

// Object is any API object.
type Object interface {
	runtime.Object
	metav1.Object
}

// A Kind is all the API server knows about one kind in one version. The zero
// value of a field means "nothing special".
type Kind[T Object] struct {
	schema.GroupVersionKind
	Plural     string
	Singular   string // default: the kind in lower case
	Short      []string
	Categories []string
	Cluster    bool // cluster-scoped rather than namespaced

	// Prefix is the storage folder under /registry/ when it is not Plural,
	// such as "services/specs". Upstream's layout.
	Prefix string
	// JSON kinds are stored as JSON rather than as protobuf, Text in a version of
	// its own. Upstream's layout.
	JSON bool
	Text *Text
	// StoredIn is the version in the stored bytes when it is not the one
	// served; the two must have the same wire form. Upstream's layout.
	StoredIn string
	// TTL lets objects vanish after that time (events).
	TTL time.Duration
	// Verbs limits what is served; nil is all of them.
	Verbs []string
	// Virtual kinds are not stored: creating one asks a question
	// (TokenReview, SubjectAccessReview), or they are read only
	// (ComponentStatus). The handler finds the answer by GVR.
	Virtual bool
	// Hub, when set, is another kind whose storage this one shares (events in
	// events.k8s.io and core). FromHub and ToHub convert.
	Hub     func() Resource
	FromHub func(Object) T
	ToHub   func(T) Object

	// Default fills absent fields, as upstream's SetDefaults do. It runs on
	// every request body before anything else, and must be idempotent.
	Default func(obj T)
	// Incomplete kinds are stored by upstream, which fills absent fields whenever
	// it reads, without some of them: its rules for writes drop them.
	Incomplete bool
	// Decoded sets what objects have and their protobuf form has no room for.
	Decoded func(obj T)
	// Prepare makes a spec write of an incoming object: on create (old is the
	// zero T) it drops status and sets generation 1; on update it keeps status from
	// old and bumps generation when spec changed.
	Prepare func(ctx context.Context, obj, old T)
	// Pods is the spec of a pod, or of the pods an object is for.
	Pods func(obj T) *corev1.PodSpec
	// Validate reports every fault; old is the zero T on create. Metadata
	// (name, namespace, labels, ...) is not its business.
	Validate func(ctx context.Context, obj, old T) field.ErrorList
	// NameRule checks metadata.name; nil means DNS subdomain.
	NameRule func(name string, prefix bool) []string
	// NameRuleOf is NameRule of kinds whose names follow from the object.
	NameRuleOf func(obj T) func(name string, prefix bool) []string
	// Metadata is what else is checked of metadata; RecheckName says that an update
	// checks it again as if the object were new.
	Metadata    MetadataRule
	RecheckName bool
	// Warn returns texts for Warning headers.
	Warn func(ctx context.Context, obj, old T) []string
	// Grace decides graceful deletion: the seconds to wait given the caller's
	// options. Nil, or a result of 0, deletes at once.
	Grace func(obj T, opts *metav1.DeleteOptions) int64
	// OrphanDependents and the like: the default propagation when the
	// caller says nothing. Empty is background.
	Propagation metav1.DeletionPropagation
	// CreateOnUpdate lets PUT and apply-as-PUT create (leases, events, ...).
	CreateOnUpdate bool
	// Conditional demands metadata.resourceVersion on update.
	Conditional bool
	// Deprecated is what every request for the kind is warned with.
	Deprecated string

	// Fields are the selectable fields beyond metadata.name and
	// metadata.namespace. All keys must always be present.
	Fields func(T) fields.Set
	// Columns are those of `kubectl get`, upstream's names and texts. Nil is
	// Name and Created At.
	Columns []Column[T]
	// SortedBy is the column of numbers by which a table lists objects. Empty:
	// they are in the order of a list, by name.
	SortedBy string
	Sub      []Subresource[T]
}

// A Column is one column of `kubectl get`. One without a name has cells alone,
// as a few of upstream's have.
type Column[T Object] struct {
	metav1.TableColumnDefinition
	Cell func(T) any
}

// A Subresource is a second view of an object, or an action on it.
type Subresource[T Object] struct {
	Name string // "status", "scale", "binding", ...
	// Kind of the body when it is not the parent's.
	Kind schema.GroupVersionKind
	// Verbs served: get, update, patch; create for actions.
	Verbs []string

	// Prepare and Validate make the subresource a write of the parent that
	// changes one part only: Prepare copies all but that part from old.
	Prepare  func(ctx context.Context, obj, old T)
	Validate func(ctx context.Context, obj, old T) field.ErrorList
	// Scale makes it the scale subresource.
	Scale *Scale[T]
	// A subresource with neither (binding, eviction, token, log, exec, attach,
	// portforward, proxy) is served by a handler of its own, found by name.
}

// Scale reads and writes replicas.
type Scale[T Object] struct {
	Get func(T) *autoscalingv1.Scale // spec and status; metadata is filled by the caller
	Set func(T, int32)
}

// A Resource is a Kind without its type parameter: what the handlers use.
// Objects passed in must be of the kind; old is nil on create.
type Resource interface {
	GVK() schema.GroupVersionKind
	GVR() schema.GroupVersionResource
	Names() Names
	Namespaced() bool
	Storage() Storage
	New() Object
	NewList() runtime.Object
	Supports(verb string) bool
	IsVirtual() bool

	Defaults(obj Object)
	PrepareObject(ctx context.Context, obj, old Object)
	ValidateObject(ctx context.Context, obj, old Object) field.ErrorList
	// CheckMetadata is what is wrong with the metadata; of a new object, as far
	// as its kind's own rules go.
	CheckMetadata(obj, old Object) field.ErrorList
	Warnings(ctx context.Context, obj, old Object) []string
	GraceSeconds(obj Object, opts *metav1.DeleteOptions) int64
	Traits() Traits

	// FieldSet has metadata.name and metadata.namespace too.
	FieldSet(obj Object) fields.Set
	// FieldLabels are the labels a field selector may use.
	FieldLabels() []string
	ColumnDefinitions() []metav1.TableColumnDefinition
	Row(obj Object) []any
	Subresources() []Sub
}

// Names are a kind's names in discovery.
type Names struct {
	Plural, Singular, ListKind string
	Short, Categories          []string
}

// Storage says where and how a kind's objects are kept.
type Storage struct {
	Prefix  string                  // folder under /registry/, no slashes at the ends
	GVK     schema.GroupVersionKind // what the stored bytes say they are; empty for a custom kind's version that is not served
	TTL     time.Duration
	JSON    bool     // stored as JSON rather than as protobuf
	Text    *Text    // how, when it is not the kind's own JSON
	Hub     Resource // the kind stored; the resource itself when it is the hub
	ToHub   func(Object) Object
	FromHub func(Object) Object
	// Complete fills what a stored value may lack; nil when it lacks nothing.
	Complete func(Object)
	// Decoded fills what the stored form has no room for; nil when it has room for all.
	Decoded func(Object)
}

// Text is the form of objects that are stored as JSON in another version.
type Text struct {
	schema.GroupVersionKind
	Encode func(Object) (Object, error) // the result carries its kind
	Decode func(data []byte) (Object, error)
}

// Traits are a kind's rules that need no code.
type Traits struct {
	Propagation    metav1.DeletionPropagation
	CreateOnUpdate bool
	Conditional    bool
	Deprecated     string
	Metadata       MetadataRule
	SortedBy       string
}

// Sub is a Subresource without its type parameter.
type Sub struct {
	Name  string
	Kind  schema.GroupVersionKind
	Verbs []string
	// Writes says that Prepare and Validate make it a partial write.
	Writes   bool
	Prepare  func(ctx context.Context, obj, old Object)
	Validate func(ctx context.Context, obj, old Object) field.ErrorList
	GetScale func(Object) (*autoscalingv1.Scale, error)
	SetScale func(Object, int32)
	// ReplicasPath is where SetScale writes; nil: spec, replicas.
	ReplicasPath []string
}

// AllVerbs are what a stored kind serves unless it says otherwise.
var AllVerbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}

func (k *Kind[T]) GVK() schema.GroupVersionKind { return k.GroupVersionKind }
func (k *Kind[T]) GVR() schema.GroupVersionResource {
	return k.GroupVersion().WithResource(k.Plural)
}
func (k *Kind[T]) Namespaced() bool { return !k.Cluster }
func (k *Kind[T]) IsVirtual() bool  { return k.Virtual }

func (k *Kind[T]) Names() Names {
	singular := k.Singular
	if singular == "" {
		singular = strings.ToLower(k.Kind)
	}
	return Names{k.Plural, singular, k.Kind + "List", k.Short, k.Categories}
}

func (k *Kind[T]) Storage() Storage {
	s := Storage{Prefix: k.Prefix, TTL: k.TTL, JSON: k.JSON, Text: k.Text, Hub: k, GVK: k.GroupVersionKind}
	if k.StoredIn != "" {
		s.GVK.Version = k.StoredIn
	}
	if k.Incomplete {
		s.Complete = k.Defaults
	}
	if k.Decoded != nil {
		s.Decoded = func(o Object) { k.Decoded(o.(T)) }
	}
	if k.Hub != nil {
		hub := k.Hub()
		s = hub.Storage()
		s.ToHub = func(o Object) Object { return k.ToHub(o.(T)) }
		s.FromHub = func(o Object) Object { return k.FromHub(o) }
	}
	if s.Prefix == "" {
		s.Prefix = k.Plural
	}
	return s
}

func (k *Kind[T]) New() Object {
	return reflect.New(reflect.TypeFor[T]().Elem()).Interface().(Object)
}

func (k *Kind[T]) NewList() runtime.Object {
	obj, err := scheme.Scheme.New(k.GroupVersion().WithKind(k.Kind + "List"))
	if err != nil {
		panic(fmt.Sprintf("list of %s: %v", k.Kind, err)) // the table is wrong: a house test finds it
	}
	return obj
}

func (k *Kind[T]) verbs() []string {
	switch {
	case k.Verbs != nil:
		return k.Verbs
	case k.Virtual:
		return []string{"create"}
	}
	return AllVerbs
}

func (k *Kind[T]) Supports(verb string) bool {
	for _, v := range k.verbs() {
		if v == verb {
			return true
		}
	}
	return false
}

func (k *Kind[T]) Defaults(obj Object) {
	if k.Default != nil {
		k.Default(obj.(T))
	}
}

// typed is obj as T, the zero T when obj is nil.
func typed[T Object](obj Object) (t T) {
	if obj != nil {
		t = obj.(T)
	}
	return t
}

func (k *Kind[T]) PrepareObject(ctx context.Context, obj, old Object) {
	if k.Pods != nil {
		var had *corev1.PodSpec
		if old != nil {
			had = k.Pods(old.(T))
		}
		dropPodFeatures(ctx, k.Pods(obj.(T)), had)
	}
	if k.Prepare != nil {
		k.Prepare(ctx, obj.(T), typed[T](old))
	}
}

func (k *Kind[T]) ValidateObject(ctx context.Context, obj, old Object) field.ErrorList {
	if k.Validate == nil {
		return nil
	}
	return k.Validate(ctx, obj.(T), typed[T](old))
}

func (k *Kind[T]) Warnings(ctx context.Context, obj, old Object) []string {
	if k.Warn == nil {
		return nil
	}
	return k.Warn(ctx, obj.(T), typed[T](old))
}

func (k *Kind[T]) GraceSeconds(obj Object, opts *metav1.DeleteOptions) int64 {
	if k.Grace == nil {
		return 0
	}
	return k.Grace(obj.(T), opts)
}

func (k *Kind[T]) Traits() Traits {
	return Traits{k.Propagation, k.CreateOnUpdate, k.Conditional, k.Deprecated, k.Metadata, k.SortedBy}
}

func (k *Kind[T]) FieldSet(obj Object) fields.Set {
	set := fields.Set{}
	if k.Fields != nil {
		set = k.Fields(obj.(T))
	}
	set["metadata.name"] = obj.GetName()
	if !k.Cluster {
		set["metadata.namespace"] = obj.GetNamespace()
	}
	return set
}

func (k *Kind[T]) FieldLabels() []string {
	var labels []string
	for label := range k.FieldSet(k.New()) {
		labels = append(labels, label)
	}
	return labels
}

func (k *Kind[T]) columns() []Column[T] {
	if k.Columns != nil {
		return k.Columns
	}
	return []Column[T]{nameColumn[T](), createdColumn[T]()}
}

func (k *Kind[T]) ColumnDefinitions() []metav1.TableColumnDefinition {
	cols := k.columns()
	defs := make([]metav1.TableColumnDefinition, 0, len(cols))
	for _, c := range cols {
		if c.Name != "" {
			defs = append(defs, c.TableColumnDefinition)
		}
	}
	return defs
}

func (k *Kind[T]) Row(obj Object) []any {
	cols := k.columns()
	row := make([]any, len(cols))
	for i, c := range cols {
		row[i] = c.Cell(obj.(T))
	}
	return row
}

func (k *Kind[T]) Subresources() []Sub {
	subs := make([]Sub, len(k.Sub))
	for i, s := range k.Sub {
		out := Sub{Name: s.Name, Kind: s.Kind, Verbs: s.Verbs, Writes: s.Prepare != nil}
		if out.Kind.Empty() {
			out.Kind = k.GroupVersionKind
		}
		if s.Prepare != nil {
			out.Prepare = func(ctx context.Context, obj, old Object) { s.Prepare(ctx, obj.(T), old.(T)) }
		}
		if s.Validate != nil {
			out.Validate = func(ctx context.Context, obj, old Object) field.ErrorList {
				return s.Validate(ctx, obj.(T), old.(T))
			}
		}
		if s.Scale != nil {
			out.GetScale = func(o Object) (*autoscalingv1.Scale, error) { return s.Scale.Get(o.(T)), nil }
			out.SetScale = func(o Object, n int32) { s.Scale.Set(o.(T), n) }
		}
		subs[i] = out
	}
	return subs
}
