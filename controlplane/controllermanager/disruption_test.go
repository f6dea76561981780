package controllermanager

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestDisruptionBudget(t *testing.T) {
	inCluster(t, []string{"disruption-controller", "replicaset-controller", "deployment-controller", "serviceaccount-controller"}, func(c *cluster) {
		budget := func(want policyv1.PodDisruptionBudgetStatus, reason string) {
			c.Helper()
			c.until(fmt.Sprintf("%+v", want), func() (bool, error) {
				b, err := c.client.PolicyV1().PodDisruptionBudgets("default").Get(c.ctx, "b", metav1.GetOptions{})
				if err != nil {
					return false, err
				}
				cond := apimeta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
				got := b.Status
				got.Conditions, got.DisruptedPods, got.ObservedGeneration = nil, nil, 0
				return fmt.Sprint(got) == fmt.Sprint(want) && cond != nil && cond.Reason == reason && b.Status.ObservedGeneration == b.Generation,
					fmt.Errorf("status %+v", b.Status)
			})
		}
		_, err := c.client.PolicyV1().PodDisruptionBudgets("default").Create(c.ctx, &policyv1.PodDisruptionBudget{ObjectMeta: meta("b"),
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector, MaxUnavailable: new(intstr.FromString("40%"))}}, metav1.CreateOptions{})
		c.no(err)
		budget(policyv1.PodDisruptionBudgetStatus{}, policyv1.InsufficientPodsReason)
		_, err = c.client.AppsV1().Deployments("default").Create(c.ctx, &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(3)), Selector: selector, Template: template}}, metav1.CreateOptions{})
		c.no(err)
		budget(policyv1.PodDisruptionBudgetStatus{ExpectedPods: 3, DesiredHealthy: 1}, policyv1.InsufficientPodsReason)
		c.settle("web")
		budget(policyv1.PodDisruptionBudgetStatus{ExpectedPods: 3, DesiredHealthy: 1, CurrentHealthy: 3, DisruptionsAllowed: 2}, policyv1.SufficientPodsReason)

		// An eviction spends of it, and the pod that goes is no longer counted.
		victim := c.pods()[0].Name
		evict := &policyv1.Eviction{ObjectMeta: meta(victim)}
		c.no(c.client.CoreV1().Pods("default").EvictV1(c.ctx, evict))
		c.settle("web")
		budget(policyv1.PodDisruptionBudgetStatus{ExpectedPods: 3, DesiredHealthy: 1, CurrentHealthy: 3, DisruptionsAllowed: 2}, policyv1.SufficientPodsReason)
	})
}

// A disruption that was announced and does not come is taken back.
func TestStaleDisruption(t *testing.T) {
	inCluster(t, []string{"disruption-controller", "serviceaccount-controller"}, func(c *cluster) {
		pods := c.client.CoreV1().Pods("default")
		p, err := pods.Create(c.ctx, &corev1.Pod{ObjectMeta: meta("p"), Spec: template.Spec}, metav1.CreateOptions{})
		c.no(err)
		at := time.Now()
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
			Reason: "PreemptionByScheduler", LastTransitionTime: metav1.Now()})
		_, err = pods.UpdateStatus(c.ctx, p, metav1.UpdateOptions{})
		c.no(err)
		w, err := pods.Watch(c.ctx, metav1.ListOptions{})
		c.no(err)
		defer w.Stop()
		for e := range w.ResultChan() {
			for _, cond := range e.Object.(*corev1.Pod).Status.Conditions {
				if cond.Type != corev1.DisruptionTarget || cond.Status != corev1.ConditionFalse {
					continue
				}
				if took := time.Since(at).Truncate(time.Second); took != 2*time.Minute || cond.Reason != "" {
					t.Errorf("after %v: %+v", took, cond)
				}
				return
			}
		}
		t.Error("it stays announced")
	})
}

// Whatever has a scale counts.
func TestDisruptionOfCustomWorkload(t *testing.T) {
	inCluster(t, []string{"disruption-controller", "serviceaccount-controller"}, func(c *cluster) {
		object := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
		c.no(c.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &apiextensionsv1.CustomResourceDefinition{
			TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
			ObjectMeta: metav1.ObjectMeta{Name: "foos.example.com"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "foos", Kind: "Foo"},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &object},
					Subresources: &apiextensionsv1.CustomResourceSubresources{Scale: &apiextensionsv1.CustomResourceSubresourceScale{
						SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas"}}}}}}))
		var foo metav1.PartialObjectMetadata
		c.until("foos are served", func() (bool, error) {
			raw, err := c.client.CoreV1().RESTClient().Post().AbsPath("/apis/example.com/v1/namespaces/default/foos").SetHeader("Content-Type", "application/json").
				Body([]byte(`{"apiVersion":"example.com/v1","kind":"Foo","metadata":{"name":"f"},"spec":{"replicas":4}}`)).Do(c.ctx).Raw()
			if err != nil {
				return false, err
			}
			return true, json.Unmarshal(raw, &foo)
		})
		own := meta("p")
		own.Labels = selector.MatchLabels
		own.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Foo", Name: "f", UID: foo.UID, Controller: new(true)}}
		_, err := c.client.CoreV1().Pods("default").Create(c.ctx, &corev1.Pod{ObjectMeta: own, Spec: template.Spec}, metav1.CreateOptions{})
		c.no(err)
		_, err = c.client.PolicyV1().PodDisruptionBudgets("default").Create(c.ctx, &policyv1.PodDisruptionBudget{ObjectMeta: meta("b"),
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector, MinAvailable: new(intstr.FromString("50%"))}}, metav1.CreateOptions{})
		c.no(err)
		status := func(what string, ok func(policyv1.PodDisruptionBudgetStatus) bool) {
			c.Helper()
			c.until(what, func() (bool, error) {
				b, err := c.client.PolicyV1().PodDisruptionBudgets("default").Get(c.ctx, "b", metav1.GetOptions{})
				if err != nil {
					return false, err
				}
				return ok(b.Status), fmt.Errorf("status %+v", b.Status)
			})
		}
		status("half of the scale", func(s policyv1.PodDisruptionBudgetStatus) bool { return s.ExpectedPods == 4 && s.DesiredHealthy == 2 })

		// What is not known allows nothing, and says why.
		own.Name, own.OwnerReferences[0] = "q", metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Bar", Name: "b", UID: "u", Controller: new(true)}
		_, err = c.client.CoreV1().Pods("default").Create(c.ctx, &corev1.Pod{ObjectMeta: own, Spec: template.Spec}, metav1.CreateOptions{})
		c.no(err)
		status("failed", func(s policyv1.PodDisruptionBudgetStatus) bool {
			cond := apimeta.FindStatusCondition(s.Conditions, policyv1.DisruptionAllowedCondition)
			return cond != nil && cond.Reason == policyv1.SyncFailedReason && cond.Message == `no matches for kind "Bar" in version "example.com/v1"`
		})
	})
}
