package apiserver_test

import (
	"testing"
	"testing/synctest"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/internal/apitest"
)

// TestClaimsAreGuarded: who may write a claim's status may not allocate by that
// alone, nor speak for drivers, nor ask for an administrator's access.
func TestClaimsAreGuarded(t *testing.T) {
	s, stop := apitest.New(t)
	defer stop()
	ctx := t.Context()
	admin := s.Client(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := admin.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "claims"}, Rules: []rbacv1.PolicyRule{{
		Verbs: []string{"*"}, APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims", "resourceclaims/status"}}}}, metav1.CreateOptions{})
	must(err)
	_, err = admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "claims"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "claims"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "bob"}}}, metav1.CreateOptions{})
	must(err)
	must(s.Cache().Sync(ctx))
	bob := s.Client(t, &user.DefaultInfo{Name: "bob", Groups: []string{user.AllAuthenticated}}).ResourceV1().ResourceClaims("default")
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AdminAccess: new(true)}}}
	_, err = bob.Create(ctx, claim, metav1.CreateOptions{})
	refused(t, err, `ResourceClaim.resource.k8s.io "c" is invalid: spec.devices.requests[0].adminAccess: Forbidden: admin access to devices requires the `+"`resource.kubernetes.io/admin-access: true`"+` label on the containing namespace`)
	claim.Spec.Devices.Requests[0].Exactly.AdminAccess = nil
	claim, err = bob.Create(ctx, claim, metav1.CreateOptions{})
	must(err)
	claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
		Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", Driver: "d.example.com", Pool: "p", Device: "dev"}}}}
	_, err = bob.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	refused(t, err, `ResourceClaim.resource.k8s.io "c" is invalid: status.allocation: Forbidden: changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", verb="update" permission: resourceclaims.resource.k8s.io is forbidden: User "bob" cannot update resource "resourceclaims/binding" in API group "resource.k8s.io" at the cluster scope`)
	claim, err = admin.ResourceV1().ResourceClaims("default").UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	must(err)
	claim.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "d.example.com", Pool: "p", Device: "dev"}}
	_, err = bob.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	refused(t, err, `ResourceClaim.resource.k8s.io "c" is invalid: status.devices: Forbidden: changing status.devices requires resource="resourceclaims/driver", verb="[arbitrary-node:update]" permission: resourceclaims.resource.k8s.io "d.example.com" is forbidden: User "bob" cannot arbitrary-node:update resource "resourceclaims/driver" in API group "resource.k8s.io" in the namespace "default"`)
}

// TestBothAutoscalers: one object in two versions, and nothing lost between.
func TestBothAutoscalers(t *testing.T) {
	s, stop := apitest.New(t)
	defer stop()
	ctx, c := t.Context(), s.Client(t)
	made := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "h"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{Kind: "Deployment", Name: "d", APIVersion: "apps/v1"}, MaxReplicas: 3,
		Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(7))}},
		Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
			Name: corev1.ResourceMemory, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(5))}}}},
	}}
	if _, err := c.AutoscalingV2().HorizontalPodAutoscalers("default").Create(ctx, made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	old, err := c.AutoscalingV1().HorizontalPodAutoscalers("default").Get(ctx, "h", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	old.Spec.TargetCPUUtilizationPercentage = new(int32(50))
	if old, err = c.AutoscalingV1().HorizontalPodAutoscalers("default").Update(ctx, old, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if p := old.Spec.TargetCPUUtilizationPercentage; p == nil || *p != 50 || len(old.Annotations) != 2 {
		t.Errorf("%+v", old)
	}
	list, err := c.AutoscalingV1().HorizontalPodAutoscalers("default").List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Spec.ScaleTargetRef != (autoscalingv1.CrossVersionObjectReference{Kind: "Deployment", Name: "d", APIVersion: "apps/v1"}) {
		t.Errorf("%+v, %v", list, err)
	}
	now, err := c.AutoscalingV2().HorizontalPodAutoscalers("default").Get(ctx, "h", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(now.Spec.Metrics) != 2 || now.Spec.Metrics[0].Resource.Name != corev1.ResourceMemory || *now.Spec.Metrics[1].Resource.Target.AverageUtilization != 50 ||
		*now.Spec.Behavior.ScaleDown.StabilizationWindowSeconds != 7 || len(now.Annotations) != 0 {
		t.Errorf("%+v", now)
	}
}

// TestFlowsComeBack: the FlowSchemas of every cluster are there, say that their
// levels are, and come back when somebody deletes them.
func TestFlowsComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := apitest.New(t)
		defer stop()
		ctx := t.Context()
		flows := s.Client(t).FlowcontrolV1().FlowSchemas()
		synctest.Wait()
		list, err := flows.List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 11 {
			t.Fatalf("%d, %v", len(list.Items), err)
		}
		for _, f := range list.Items {
			if c := f.Status.Conditions; len(c) != 1 || c[0].Status != flowcontrolv1.ConditionFalse || f.Generation != 1 ||
				f.Annotations["apf.kubernetes.io/autoupdate-spec"] != "true" {
				t.Errorf("%s: %+v", f.Name, f)
			}
		}
		levels, err := s.Client(t).FlowcontrolV1().PriorityLevelConfigurations().List(ctx, metav1.ListOptions{})
		if err != nil || len(levels.Items) != 8 {
			t.Errorf("%d, %v", len(levels.Items), err)
		}
		for _, name := range []string{"exempt", "service-accounts"} {
			old, err := flows.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := flows.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if again, err := flows.Get(ctx, name, metav1.GetOptions{}); err != nil || again.UID == old.UID {
				t.Errorf("%s: %v", name, err)
			}
		}
		exempt, err := flows.Get(ctx, "exempt", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		exempt.Spec.MatchingPrecedence = 5
		if _, err := flows.Update(ctx, exempt, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("what is mandatory can be changed: %v", err)
		}
	})
}
