package registry

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateEvent(_ context.Context, e, _ *corev1.Event) field.ErrorList {
	return validateEventContent(e, "reportingComponent")
}

// validateEventContent holds events of both versions to what the old version
// promised; controller is the version's name for who reports.
func validateEventContent(e *corev1.Event, controller string) (errs field.ErrorList) {
	about := e.InvolvedObject.Namespace
	elsewhere := func() {
		errs = append(errs, field.Invalid(field.NewPath("involvedObject", "namespace"), about, "does not match event.namespace"))
	}
	if e.EventTime.IsZero() { // the old way
		clusterWide := about == "" && (e.Namespace == "" || e.Namespace == metav1.NamespaceDefault)
		if about != e.Namespace && !clusterWide {
			elsewhere()
		}
	} else {
		if about == "" && e.Namespace != metav1.NamespaceDefault && e.Namespace != metav1.NamespaceSystem {
			elsewhere()
		}
		limit := func(name, value string, need bool, most int) {
			if need && value == "" {
				errs = append(errs, field.Required(field.NewPath(name), ""))
			}
			if len(value) > most {
				errs = append(errs, field.Invalid(field.NewPath(name), "", fmt.Sprintf("can have at most %v characters", most)))
			}
		}
		if e.ReportingController == "" {
			errs = append(errs, field.Required(field.NewPath(controller), ""))
		}
		errs = append(errs, qualifiedName(e.ReportingController, field.NewPath(controller))...)
		limit("reportingInstance", e.ReportingInstance, true, 128)
		limit("action", e.Action, true, 128)
		limit("reason", e.Reason, true, 128)
		limit("message", e.Message, false, 1024)
	}
	for _, msg := range utilvalidation.IsDNS1123Subdomain(e.Namespace) {
		errs = append(errs, field.Invalid(field.NewPath("namespace"), e.Namespace, msg))
	}
	return errs
}

func validateNewEvent(e *corev1.Event) field.ErrorList {
	errs := append(validateEventContent(e, "reportingController"), validateEventSeries(e)...)
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", fmt.Sprintf("has invalid value: %v", e.Type)))
	}
	old := []struct {
		name string
		set  bool
	}{
		{"firstTimestamp", !e.FirstTimestamp.IsZero()},
		{"lastTimestamp", !e.LastTimestamp.IsZero()},
		{"count", e.Count != 0},
		{"source", e.Source != corev1.EventSource{}},
	}
	for _, f := range old {
		if f.set {
			errs = append(errs, field.Invalid(field.NewPath(f.name), "", "needs to be unset"))
		}
	}
	return errs
}

func validateEventSeries(e *corev1.Event) (errs field.ErrorList) {
	if e.Series == nil {
		return nil
	}
	if e.Series.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
	}
	if e.Series.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
	}
	return errs
}

func validateNewEventUpdate(e, old *corev1.Event) field.ErrorList {
	errs := validateEventContent(e, "reportingController")
	if !same(e.Series, old.Series) {
		errs = append(errs, validateEventSeries(e)...)
	}
	fixed := []struct {
		name    string
		is, was any
	}{
		{"involvedObject", e.InvolvedObject, old.InvolvedObject},
		{"reason", e.Reason, old.Reason},
		{"message", e.Message, old.Message},
		{"source", e.Source, old.Source},
		{"firstTimestamp", e.FirstTimestamp, old.FirstTimestamp},
		{"lastTimestamp", e.LastTimestamp, old.LastTimestamp},
		{"count", e.Count, old.Count},
		{"reason", e.Reason, old.Reason},
		{"type", e.Type, old.Type},
		{"eventTime", e.EventTime, old.EventTime},
		{"action", e.Action, old.Action},
		{"related", e.Related, old.Related},
		{"reportingController", e.ReportingController, old.ReportingController},
		{"reportingInstance", e.ReportingInstance, old.ReportingInstance},
	}
	for _, f := range fixed {
		if f.name == "eventTime" && e.EventTime.Truncate(time.Microsecond).Equal(old.EventTime.Truncate(time.Microsecond)) {
			continue // clients cut times to microseconds
		}
		errs = append(errs, validation.ValidateImmutableField(f.is, f.was, field.NewPath(f.name))...)
	}
	return errs
}
