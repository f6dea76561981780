package dns

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/informer"
)

// slim keeps of an object what names are made of.
func slim(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Pod:
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion},
			Status:     corev1.PodStatus{PodIPs: o.Status.PodIPs},
		}, nil
	case *discoveryv1.EndpointSlice:
		trigger, ok := o.Annotations[corev1.EndpointsLastChangeTriggerTime]
		trimmed, err := informer.TrimMetadata(o)
		if s, is := trimmed.(*discoveryv1.EndpointSlice); ok && is {
			s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: trigger}
		}
		return trimmed, err
	}
	return informer.TrimMetadata(o)
}

// observeProgramming notes how long a change of a headless Service's endpoints took
// to be known here. Upstream, too, tells such slices by their label.
func (m *metrics) observeProgramming(s *discoveryv1.EndpointSlice) {
	if _, headless := s.Labels[corev1.IsHeadlessService]; !headless {
		return
	}
	if at, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime]); err == nil {
		m.programming.WithLabelValues("headless_with_selector").Observe(time.Since(at).Seconds())
	}
}
