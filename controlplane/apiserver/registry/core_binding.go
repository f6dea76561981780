package registry

import corev1 "k8s.io/api/core/v1"

var bindings = &Kind[*corev1.Binding]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Binding"),
	Plural:           "bindings",
	Virtual:          true,
}
