package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var newEvents = &Kind[*eventsv1.Event]{
	GroupVersionKind: eventsv1.SchemeGroupVersion.WithKind("Event"),
	Plural:           "events",
	Short:            []string{"ev"},
	CreateOnUpdate:   true,
	NameRule:         NameIsDNSSubdomain,

	Hub:     func() Resource { return events },
	FromHub: func(o Object) *eventsv1.Event { return eventFromCore(o.(*corev1.Event)) },
	ToHub:   func(e *eventsv1.Event) Object { return eventToCore(e) },

	Validate: func(_ context.Context, e, old *eventsv1.Event) field.ErrorList {
		if old == nil {
			return validateNewEvent(eventToCore(e))
		}
		return validateNewEventUpdate(eventToCore(e), eventToCore(old))
	},
	Fields: func(e *eventsv1.Event) fields.Set {
		return fields.Set{
			"regarding.kind":            e.Regarding.Kind,
			"regarding.namespace":       e.Regarding.Namespace,
			"regarding.name":            e.Regarding.Name,
			"regarding.uid":             string(e.Regarding.UID),
			"regarding.apiVersion":      e.Regarding.APIVersion,
			"regarding.resourceVersion": e.Regarding.ResourceVersion,
			"regarding.fieldPath":       e.Regarding.FieldPath,
			"reason":                    e.Reason,
			"reportingController":       e.ReportingController,
			"type":                      e.Type,
		}
	},
	Columns: eventColumns(eventToCore),
}

func eventToCore(e *eventsv1.Event) *corev1.Event {
	c := &corev1.Event{
		ObjectMeta:          e.ObjectMeta,
		InvolvedObject:      e.Regarding,
		Reason:              e.Reason,
		Message:             e.Note,
		Source:              e.DeprecatedSource,
		FirstTimestamp:      e.DeprecatedFirstTimestamp,
		LastTimestamp:       e.DeprecatedLastTimestamp,
		Count:               e.DeprecatedCount,
		Type:                e.Type,
		EventTime:           e.EventTime,
		Action:              e.Action,
		Related:             e.Related,
		ReportingController: e.ReportingController,
		ReportingInstance:   e.ReportingInstance,
	}
	if e.Series != nil {
		c.Series = &corev1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	c.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Event"))
	return c
}

func eventFromCore(c *corev1.Event) *eventsv1.Event {
	e := &eventsv1.Event{
		ObjectMeta:               c.ObjectMeta,
		EventTime:                c.EventTime,
		ReportingController:      c.ReportingController,
		ReportingInstance:        c.ReportingInstance,
		Action:                   c.Action,
		Reason:                   c.Reason,
		Regarding:                c.InvolvedObject,
		Related:                  c.Related,
		Note:                     c.Message,
		Type:                     c.Type,
		DeprecatedSource:         c.Source,
		DeprecatedFirstTimestamp: c.FirstTimestamp,
		DeprecatedLastTimestamp:  c.LastTimestamp,
		DeprecatedCount:          c.Count,
	}
	if c.Series != nil {
		e.Series = &eventsv1.EventSeries{Count: c.Series.Count, LastObservedTime: c.Series.LastObservedTime}
	}
	e.SetGroupVersionKind(eventsv1.SchemeGroupVersion.WithKind("Event"))
	return e
}
