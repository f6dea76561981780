package quota

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func list(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for _, p := range pairs {
		name, amount, _ := strings.Cut(p, "=")
		l[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	return l
}

func container(name string, requests, limits corev1.ResourceList) corev1.Container {
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
}

func resourceClaim(requests ...resourcev1.DeviceRequest) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: requests}}}
}

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestUse(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{container("init", list("cpu=2"), nil)},
		Containers: []corev1.Container{
			container("a", list("cpu=1", "memory=1Gi", "hugepages-2Mi=4Mi", "example.com/gpu=2"), list("cpu=2", "ephemeral-storage=1Gi")),
			container("b", list("cpu=500m"), nil),
		},
	}}
	ended, leaving, late := pod.DeepCopy(), pod.DeepCopy(), pod.DeepCopy()
	ended.Status.Phase = corev1.PodSucceeded
	leaving.DeletionTimestamp, leaving.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(-5 * time.Second)}, new(int64(30))
	late.DeletionTimestamp, late.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(-31 * time.Second)}, new(int64(30))
	whole := "count/pods=1,cpu=2,hugepages-2Mi=4Mi,limits.cpu=2,limits.ephemeral-storage=1Gi,memory=1Gi,pods=1,requests.cpu=2,requests.example.com/gpu=2,requests.hugepages-2Mi=4Mi,requests.memory=1Gi"
	service := func(spec corev1.ServiceSpec) *corev1.Service { return &corev1.Service{Spec: spec} }
	ports := []corev1.ServicePort{{Port: 1}, {Port: 2, NodePort: 30001}}
	for _, tt := range []struct {
		name, resource string
		obj            runtime.Object
		want           string
	}{
		{"pod", "pods", pod, whole},
		{"ended pod", "pods", ended, "count/pods=1"},
		{"leaving pod", "pods", leaving, whole},
		{"pod that should be gone", "pods", late, "count/pods=1"},
		{"cluster address", "services", service(corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: ports}),
			"count/services=1,services=1,services.loadbalancers=0,services.nodeports=0"},
		{"node port", "services", service(corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: ports}),
			"count/services=1,services=1,services.loadbalancers=0,services.nodeports=2"},
		{"balancer", "services", service(corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: ports}),
			"count/services=1,services=1,services.loadbalancers=1,services.nodeports=2"},
		{"balancer without node ports", "services", service(corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: ports, AllocateLoadBalancerNodePorts: new(false)}),
			"count/services=1,services=1,services.loadbalancers=1,services.nodeports=1"},
		{"claim", "persistentvolumeclaims", &corev1.PersistentVolumeClaim{
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new("gold"),
				Resources: corev1.VolumeResourceRequirements{Requests: list("storage=1500m")}}},
			"count/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/requests.storage=2,persistentvolumeclaims=1,requests.storage=2"},
		{"claim that grew", "persistentvolumeclaims", &corev1.PersistentVolumeClaim{
			Spec:   corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{Requests: list("storage=1Gi")}},
			Status: corev1.PersistentVolumeClaimStatus{AllocatedResources: list("storage=2Gi")}},
			"count/persistentvolumeclaims=1,persistentvolumeclaims=1,requests.storage=2Gi"},
		{"devices", "resourceclaims.resource.k8s.io", resourceClaim(
			resourcev1.DeviceRequest{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gold", AllocationMode: "ExactCount", Count: 2}},
			resourcev1.DeviceRequest{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gold", AllocationMode: "ExactCount", Count: 1}},
			resourcev1.DeviceRequest{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "tin", AllocationMode: "All"}},
			resourcev1.DeviceRequest{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "odd", AllocationMode: "Half"}}),
			"count/resourceclaims.resource.k8s.io=1,gold.deviceclass.resource.k8s.io/devices=3,odd.deviceclass.resource.k8s.io/devices=0,tin.deviceclass.resource.k8s.io/devices=32"},
		{"one of several devices", "resourceclaims.resource.k8s.io", resourceClaim(
			resourcev1.DeviceRequest{FirstAvailable: []resourcev1.DeviceSubRequest{
				{DeviceClassName: "gold", AllocationMode: "ExactCount", Count: 1},
				{DeviceClassName: "gold", AllocationMode: "ExactCount", Count: 4},
				{DeviceClassName: "tin", AllocationMode: "ExactCount", Count: 2}}},
			resourcev1.DeviceRequest{FirstAvailable: []resourcev1.DeviceSubRequest{{DeviceClassName: "gold", AllocationMode: "ExactCount", Count: 1}}}),
			"count/resourceclaims.resource.k8s.io=1,gold.deviceclass.resource.k8s.io/devices=5,tin.deviceclass.resource.k8s.io/devices=2"},
		{"secret", "secrets", &corev1.Secret{}, "count/secrets=1,secrets=1"},
		{"custom", "foos.example.com", &corev1.Secret{}, "count/foos.example.com=1"},
	} {
		m, ok := For(schema.ParseGroupResource(tt.resource))
		if got := Text(m.Use(tt.obj, now)); !ok || got != tt.want {
			t.Errorf("%s:\n%s, want\n%s", tt.name, got, tt.want)
		}
	}
	for _, res := range []string{"events", "events.events.k8s.io", "tokenreviews.authentication.k8s.io"} {
		if _, ok := For(schema.ParseGroupResource(res)); ok {
			t.Errorf("%s are measured", res)
		}
	}
}

func TestOf(t *testing.T) {
	hard := list("pods=1", "requests.cpu=1", "requests.storage=1", "services=1", "count/pods=1", "count/secrets=1", "secrets=1",
		"requests.example.com/gpu=1", "hugepages-2Mi=1", "requests.hugepages-2Mi=1", "gold.storageclass.storage.k8s.io/requests.storage=1",
		"count/resourceclaims.resource.k8s.io=1", "gold.deviceclass.resource.k8s.io/devices=1",
		"count/foos.example.com=1", "requests.kubernetes.io/x=1", "requests.deviceclass.resource.kubernetes.io/y=1")
	for res, want := range map[string]string{
		"pods":                           "[count/pods hugepages-2Mi pods requests.cpu requests.deviceclass.resource.kubernetes.io/y requests.example.com/gpu requests.hugepages-2Mi]",
		"services":                       "[services]",
		"persistentvolumeclaims":         "[gold.storageclass.storage.k8s.io/requests.storage requests.storage]",
		"resourceclaims.resource.k8s.io": "[count/resourceclaims.resource.k8s.io gold.deviceclass.resource.k8s.io/devices]",
		"secrets":                        "[count/secrets secrets]",
		"foos.example.com":               "[count/foos.example.com]",
		"configmaps":                     "[]",
	} {
		m, _ := For(schema.ParseGroupResource(res))
		var b strings.Builder
		for i, n := range m.Of(hard) {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(string(n))
		}
		if got := "[" + b.String() + "]"; got != want {
			t.Errorf("%s: %s, want %s", res, got, want)
		}
	}
	for name, want := range map[corev1.ResourceName]string{"secrets": "secrets", "count/foos.example.com": "foos.example.com",
		"count/deployments.apps": "deployments.apps", "resourcequotas": "resourcequotas"} {
		if gr, ok := Counted(name); !ok || gr.String() != want {
			t.Errorf("%s counts %s", name, gr)
		}
	}
	for _, name := range []corev1.ResourceName{"pods", "count/pods", "requests.cpu", "count/events", "requests.storage",
		"count/resourceclaims.resource.k8s.io", "gold.deviceclass.resource.k8s.io/devices"} {
		if gr, ok := Counted(name); ok {
			t.Errorf("%s counts %s", name, gr)
		}
	}
}

func TestScopes(t *testing.T) {
	m, _ := For(schema.GroupResource{Resource: "pods"})
	in := func(values ...string) *corev1.ScopeSelector {
		return &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
			{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: values}}}
	}
	not := func(op corev1.ScopeSelectorOperator, values ...string) *corev1.ScopeSelector {
		return &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
			{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: op, Values: values}}}
	}
	plain := &corev1.Pod{Status: corev1.PodStatus{QOSClass: corev1.PodQOSBestEffort}}
	timed := &corev1.Pod{Spec: corev1.PodSpec{ActiveDeadlineSeconds: new(int64(0)), PriorityClassName: "high"},
		Status: corev1.PodStatus{QOSClass: corev1.PodQOSBurstable}}
	abroad := &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{PodAffinityTerm: corev1.PodAffinityTerm{Namespaces: []string{"x"}}}}}}}}
	for _, tt := range []struct {
		spec                 corev1.ResourceQuotaSpec
		plain, timed, abroad bool
	}{
		{corev1.ResourceQuotaSpec{}, true, true, true},
		{corev1.ResourceQuotaSpec{Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeTerminating}}, false, true, false},
		{corev1.ResourceQuotaSpec{Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotTerminating}}, true, false, true},
		{corev1.ResourceQuotaSpec{Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}}, true, false, false},
		{corev1.ResourceQuotaSpec{Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotBestEffort}}, false, true, true},
		{corev1.ResourceQuotaSpec{Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeCrossNamespacePodAffinity}}, false, false, true},
		{corev1.ResourceQuotaSpec{Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopePriorityClass}}, false, true, false},
		{corev1.ResourceQuotaSpec{ScopeSelector: in("high", "higher")}, false, true, false},
		{corev1.ResourceQuotaSpec{ScopeSelector: in("low")}, false, false, false},
		{corev1.ResourceQuotaSpec{ScopeSelector: not(corev1.ScopeSelectorOpNotIn, "high")}, true, false, true},
		{corev1.ResourceQuotaSpec{ScopeSelector: not(corev1.ScopeSelectorOpDoesNotExist)}, true, false, true},
	} {
		for pod, want := range map[*corev1.Pod]bool{plain: tt.plain, timed: tt.timed, abroad: tt.abroad} {
			if got, err := m.Matches(&tt.spec, pod); got != want || err != nil {
				t.Errorf("%+v: %v %v, want %v for %+v", tt.spec, got, err, want, pod.Spec)
			}
		}
	}
	services, _ := For(schema.GroupResource{Resource: "services"})
	if ok, err := services.Matches(&corev1.ResourceQuotaSpec{Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeTerminating}}, &corev1.Service{}); ok || err != nil {
		t.Error("a service is in a scope", err)
	}
}

func TestDemand(t *testing.T) {
	m, _ := For(schema.GroupResource{Resource: "pods"})
	required := []corev1.ResourceName{"limits.cpu", "memory", "pods", "requests.ephemeral-storage"}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
		container("b", nil, nil), container("a", list("memory=1Gi"), nil), container("c", list("memory=1Gi"), list("cpu=1"))}}}
	err := m.Demand(required, pod)
	if want := "must specify limits.cpu for: a,b; memory for: b"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	pod.Spec.Resources = &corev1.ResourceRequirements{Limits: list("cpu=1")}
	if err := m.Demand(required, pod); err != nil {
		t.Error(err)
	}
}
