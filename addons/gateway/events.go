package gateway

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	gw "sigs.k8s.io/gateway-api/apis/v1"
)

// recorder writes events of Ingresses and Gateways until stop is called.
func recorder(ctx context.Context, client kubernetes.Interface, host string) (events record.EventRecorder, stop func()) {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	kinds := runtime.NewScheme()
	kinds.AddKnownTypes(networkingv1.SchemeGroupVersion, &networkingv1.Ingress{})
	kinds.AddKnownTypes(gw.SchemeGroupVersion, &gw.Gateway{})
	return b.NewRecorder(kinds, corev1.EventSource{Component: Name, Host: host}), b.Shutdown
}
