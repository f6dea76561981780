package plugin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/lru"

	"knarr/controlplane/apiserver/admission"
)

// eventRateLimit keeps those who write events without end from filling the
// store.
type eventRateLimit struct{ buckets []*buckets }

// An eventRate is one limit of the configuration.
type eventRate struct {
	Type      string `json:"type"`
	QPS       int32  `json:"qps"`
	Burst     int32  `json:"burst"`
	CacheSize int32  `json:"cacheSize"`
}

// bucketsKept bounds how many buckets a limit has at once.
const bucketsKept = 4096

// bucketKeys say which bucket an event is charged to, by the type of limit.
var bucketKeys = map[string]func(*admission.Attributes) string{
	"Server":    func(*admission.Attributes) string { return "" },
	"Namespace": func(a *admission.Attributes) string { return a.Namespace },
	"User": func(a *admission.Attributes) string {
		if a.User == nil {
			return ""
		}
		return a.User.GetName()
	},
	"SourceAndObject": func(a *admission.Attributes) string {
		e, ok := a.Object.(*corev1.Event)
		if !ok {
			return ""
		}
		o := e.InvolvedObject
		return strings.Join([]string{e.Source.Component, e.Source.Host, o.Kind, o.Namespace, o.Name, string(o.UID), o.APIVersion}, "")
	},
}

// buckets are those of one limit. The ones used last are kept; one that comes
// back is full.
type buckets struct {
	eventRate
	by *lru.Cache
}

func newEventRateLimit(rates []eventRate) *eventRateLimit {
	e := &eventRateLimit{}
	for _, r := range rates {
		size := int(r.CacheSize)
		switch {
		case r.Type == "Server":
			size = 1
		case size == 0:
			size = bucketsKept
		}
		e.buckets = append(e.buckets, &buckets{r, lru.New(size)})
	}
	return e
}

func (*eventRateLimit) Name() string { return "EventRateLimit" }

func (e *eventRateLimit) Validate(_ context.Context, a *admission.Attributes) error {
	if a.Kind.Kind != "Event" || a.Kind.Group != "" || a.Operation != admission.Create && a.Operation != admission.Update || a.DryRun {
		return nil
	}
	var errs []error
	for _, b := range e.buckets {
		if key := bucketKeys[b.Type](a); !b.of(key).TryAccept() {
			errs = append(errs, fmt.Errorf("limit reached on type %v for key %v", b.Type, key))
		}
	}
	if err := utilerrors.NewAggregate(errs); err != nil {
		return apierrors.NewTooManyRequestsError(err.Error())
	}
	return nil
}

func (b *buckets) of(key string) flowcontrol.RateLimiter {
	if have, ok := b.by.Get(key); ok {
		return have.(flowcontrol.RateLimiter)
	}
	made := flowcontrol.NewTokenBucketRateLimiter(float32(b.QPS), int(b.Burst))
	b.by.Add(key, made)
	return made
}

var eventRateKind = schema.GroupVersionKind{Group: "eventratelimit.admission.k8s.io", Version: "v1alpha1", Kind: "Configuration"}

func readEventRates(s *Settings, data []byte) error {
	var config struct {
		metav1.TypeMeta `json:",inline"`
		Limits          []eventRate `json:"limits"`
	}
	if len(data) > 0 {
		if err := decode(data, &config, eventRateKind); err != nil {
			return err
		}
	}
	s.eventRates = config.Limits
	return checkEventRates(config.Limits).ToAggregate()
}

func checkEventRates(rates []eventRate) (errs field.ErrorList) {
	root := field.NewPath("limits")
	if len(rates) == 0 {
		errs = append(errs, field.Invalid(root, rates, "must not be empty"))
	}
	for i, r := range rates {
		at := root.Index(i)
		if bucketKeys[r.Type] == nil {
			errs = append(errs, field.NotSupported(at.Child("type"), r.Type, slices.Sorted(maps.Keys(bucketKeys))))
		}
		if r.Burst <= 0 {
			errs = append(errs, field.Invalid(at.Child("burst"), r.Burst, "must be positive"))
		}
		if r.QPS <= 0 {
			errs = append(errs, field.Invalid(at.Child("qps"), r.QPS, "must be positive"))
		}
		if r.CacheSize < 0 && r.Type != "Server" {
			errs = append(errs, field.Invalid(at.Child("cacheSize"), r.CacheSize, "must not be negative"))
		}
	}
	return errs
}
