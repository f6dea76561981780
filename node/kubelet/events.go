package kubelet

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	"knarr/node/kubelet/podstatus"
)

// truncatedEvents bounds the messages of events, which are stored in etcd.
type truncatedEvents struct{ record.EventRecorder }

func (r truncatedEvents) Event(object runtime.Object, kind, reason, message string) {
	r.EventRecorder.Event(object, kind, reason, podstatus.Truncate(message))
}

func (r truncatedEvents) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	r.Event(object, kind, reason, fmt.Sprintf(format, args...))
}

func (r truncatedEvents) AnnotatedEventf(object runtime.Object, annotations map[string]string, kind, reason, format string, args ...any) {
	r.EventRecorder.AnnotatedEventf(object, annotations, kind, reason, "%s", podstatus.Truncate(fmt.Sprintf(format, args...)))
}
