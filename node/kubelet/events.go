package kubelet

import (
	"fmt"
	"log/slog"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/reference"

	"knarr/internal/logonce"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/podstatus"
)

// truncatedEvents bounds the messages of events, which are stored in etcd, and has those of
// type Warning in the log too: events are gone after an hour.
type truncatedEvents struct {
	record.EventRecorder
	news *logonce.Filter
}

func (r truncatedEvents) Event(object runtime.Object, kind, reason, message string) {
	message = podstatus.Truncate(message)
	r.log(object, kind, reason, message)
	r.EventRecorder.Event(object, kind, reason, message)
}

func (r truncatedEvents) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	r.Event(object, kind, reason, fmt.Sprintf(format, args...))
}

func (r truncatedEvents) AnnotatedEventf(object runtime.Object, annotations map[string]string, kind, reason, format string, args ...any) {
	message := podstatus.Truncate(fmt.Sprintf(format, args...))
	r.log(object, kind, reason, message)
	r.EventRecorder.AnnotatedEventf(object, annotations, kind, reason, "%s", message)
}

// ofContainers are the reasons of warnings whose text containers write, at their own rate;
// upstream's kubelet does not log them either.
var ofContainers = map[string]bool{"Unhealthy": true, "ProbeWarning": true, "FailedPostStartHook": true, "FailedPreStopHook": true}

// inTheLog are the reasons of warnings whose sender logs them.
var inTheLog = map[string]bool{"FailedStaticPod": true}

// log logs a warning that is new.
func (r truncatedEvents) log(object runtime.Object, kind, reason, message string) {
	if kind != corev1.EventTypeWarning || ofContainers[reason] || inTheLog[reason] {
		return
	}
	ref, err := reference.GetReference(scheme.Scheme, object)
	if err != nil {
		return // nor is there an event
	}
	name := ref.Name
	if ref.Kind == "Pod" {
		name = podspec.Format(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}})
	}
	if !r.news.IsNew(ref.Kind+" "+name+" "+ref.FieldPath+" "+reason, message) {
		return
	}
	args := []any{strings.ToLower(ref.Kind), name, "reason", reason, "message", message}
	if ref.FieldPath != "" {
		args = append(args, "of", ref.FieldPath)
	}
	slog.Warn("event", args...)
}
