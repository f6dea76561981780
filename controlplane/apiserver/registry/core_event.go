package registry

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
)

// eventTTL is how long events are kept.
const eventTTL = time.Hour

var events = &Kind[*corev1.Event]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Event"),
	Plural:           "events",
	Metadata:         Bare,
	Short:            []string{"ev"},
	TTL:              eventTTL,
	CreateOnUpdate:   true,
	NameRule:         NameIsDNSSubdomain,

	Validate: validateEvent,
	Fields:   eventFields,
	Columns:  eventColumns(func(e *corev1.Event) *corev1.Event { return e }),
}

func eventFields(e *corev1.Event) fields.Set {
	o := e.InvolvedObject
	return fields.Set{
		"involvedObject.kind":            o.Kind,
		"involvedObject.namespace":       o.Namespace,
		"involvedObject.name":            o.Name,
		"involvedObject.uid":             string(o.UID),
		"involvedObject.apiVersion":      o.APIVersion,
		"involvedObject.resourceVersion": o.ResourceVersion,
		"involvedObject.fieldPath":       o.FieldPath,
		"reason":                         e.Reason,
		"reportingComponent":             e.ReportingController,
		"source":                         orElse(e.Source.Component, e.ReportingController),
		"type":                           e.Type,
	}
}

// eventColumns are shared by both versions: hub finds the core event.
func eventColumns[T Object](hub func(T) *corev1.Event) []Column[T] {
	on := func(f func(*corev1.Event) any) func(T) any {
		return func(o T) any { return f(hub(o)) }
	}
	doc := corev1.Event{}.SwaggerDoc()
	name := nameColumn[T]()
	name.Priority = 1
	return []Column[T]{
		column("Last Seen", "string", doc["lastTimestamp"], 0, on(func(e *corev1.Event) any { return lastSeen(e) })),
		column("Type", "string", doc["type"], 0, on(func(e *corev1.Event) any { return e.Type })),
		column("Reason", "string", doc["reason"], 0, on(func(e *corev1.Event) any { return e.Reason })),
		column("Object", "string", doc["involvedObject"], 0, on(func(e *corev1.Event) any {
			kind := strings.ToLower(e.InvolvedObject.Kind)
			if e.InvolvedObject.Name == "" {
				return kind
			}
			return kind + "/" + e.InvolvedObject.Name
		})),
		column("Subobject", "string", corev1.ObjectReference{}.SwaggerDoc()["fieldPath"], 1,
			on(func(e *corev1.Event) any { return e.InvolvedObject.FieldPath })),
		column("Source", "string", doc["source"], 1, on(func(e *corev1.Event) any {
			component := orElse(e.Source.Component, e.ReportingController)
			if host := orElse(e.Source.Host, e.ReportingInstance); host != "" {
				return fmt.Sprintf("%s, %s", component, host)
			}
			return component
		})),
		column("Message", "string", doc["message"], 0,
			on(func(e *corev1.Event) any { return strings.TrimSpace(e.Message) })),
		column("First Seen", "string", doc["firstTimestamp"], 1, on(func(e *corev1.Event) any { return firstSeen(e) })),
		column("Count", "string", doc["count"], 1, on(func(e *corev1.Event) any {
			if e.Series != nil {
				return int64(e.Series.Count)
			}
			return int64(max(e.Count, 1))
		})),
		name,
	}
}

func firstSeen(e *corev1.Event) string {
	if e.FirstTimestamp.IsZero() {
		return microAge(e.EventTime)
	}
	return age(e.FirstTimestamp)
}

func lastSeen(e *corev1.Event) string {
	switch {
	case e.Series != nil:
		return microAge(e.Series.LastObservedTime)
	case e.LastTimestamp.IsZero():
		return firstSeen(e)
	}
	return age(e.LastTimestamp)
}

func microAge(t metav1.MicroTime) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}
