package apiserver_test

import (
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver"
	"knarr/internal/apitest"
	"knarr/internal/features"
)

// TestScaleToZero: an autoscaler may go down to no pod where that is turned on, and
// where it could before.
func TestScaleToZero(t *testing.T) {
	for _, on := range []bool{false, true} {
		api, _ := apitest.New(t, func(c *apiserver.Config) { c.Features = features.Set{features.ScaleToZero: on} })
		scalers := api.Client(t).AutoscalingV2().HorizontalPodAutoscalers("default")
		value := resource.MustParse("1")
		h := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MinReplicas:    new(int32(0)), MaxReplicas: 2,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "queue"}, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: &value}}}},
		}}
		_, err := scalers.Create(t.Context(), h, metav1.CreateOptions{})
		if on != (err == nil) || !on && !apierrors.IsInvalid(err) {
			t.Errorf("turned on: %v: %v", on, err)
		}
	}
}
