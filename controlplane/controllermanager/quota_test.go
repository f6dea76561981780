package controllermanager

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/apitest"
	"knarr/internal/apitest/fault"
)

func amounts(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for _, p := range pairs {
		name, amount, _ := strings.Cut(p, "=")
		l[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	return l
}

// used waits until the quota says so.
func (c *cluster) used(name string, want ...string) {
	c.Helper()
	c.until(fmt.Sprint(name, " is ", want), func() (bool, error) {
		q, err := c.client.CoreV1().ResourceQuotas("default").Get(c.ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, w := range want {
			n, amount, _ := strings.Cut(w, "=")
			got, ok := q.Status.Used[corev1.ResourceName(n)]
			if !ok || got.Cmp(resource.MustParse(amount)) != 0 {
				return false, fmt.Errorf("used %v", q.Status.Used)
			}
		}
		return len(q.Status.Hard) == len(q.Spec.Hard), fmt.Errorf("hard %v", q.Status.Hard)
	})
}

// post creates an object of whatever kind.
func (c *cluster) post(path string, obj any) error {
	c.Helper()
	body, err := json.Marshal(obj)
	c.no(err)
	return c.client.CoreV1().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(body).Do(c.ctx).Error()
}

func TestResourceQuota(t *testing.T) {
	inCluster(t, []string{"resourcequota-controller", "serviceaccount-controller"}, func(c *cluster) {
		core := c.client.CoreV1()
		_, err := core.ResourceQuotas("default").Create(c.ctx, &corev1.ResourceQuota{ObjectMeta: meta("q"), Spec: corev1.ResourceQuotaSpec{
			Hard: amounts("pods=2", "requests.cpu=1", "services=2", "configmaps=5", "count/deployments.apps=1", "resourcequotas=3")}}, metav1.CreateOptions{})
		c.no(err)
		_, err = core.ResourceQuotas("default").Create(c.ctx, &corev1.ResourceQuota{ObjectMeta: meta("calm"), Spec: corev1.ResourceQuotaSpec{
			Hard: amounts("pods=5"), Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}}}, metav1.CreateOptions{})
		c.no(err)
		c.used("q", "pods=0", "requests.cpu=0", "services=1", "configmaps=0", "count/deployments.apps=0", "resourcequotas=2")
		c.used("calm", "pods=0")
		for _, name := range []string{"a", "b"} {
			_, err = core.Pods("default").Create(c.ctx, &corev1.Pod{ObjectMeta: meta(name), Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: amounts("cpu=300m")}}}}}, metav1.CreateOptions{})
			c.no(err)
		}
		c.used("q", "pods=2", "requests.cpu=600m")
		c.used("calm", "pods=0")
		p, err := core.Pods("default").Get(c.ctx, "a", metav1.GetOptions{})
		c.no(err)
		p.Status.Phase = corev1.PodSucceeded
		_, err = core.Pods("default").UpdateStatus(c.ctx, p, metav1.UpdateOptions{})
		c.no(err)
		c.used("q", "pods=1", "requests.cpu=300m")
		c.no(core.Pods("default").Delete(c.ctx, "b", metav1.DeleteOptions{}))
		c.used("q", "pods=0", "requests.cpu=0")

		for _, name := range []string{"x", "y"} {
			_, err = core.ConfigMaps("default").Create(c.ctx, &corev1.ConfigMap{ObjectMeta: meta(name)}, metav1.CreateOptions{})
			c.no(err)
		}
		c.used("q", "configmaps=2")
		c.no(core.ConfigMaps("default").Delete(c.ctx, "x", metav1.DeleteOptions{}))
		c.used("q", "configmaps=1")

		// What is charged for a write that fails is given back.
		_, err = core.ConfigMaps("default").Create(c.ctx, &corev1.ConfigMap{ObjectMeta: meta("y")}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			t.Error(err)
		}
		c.used("q", "configmaps=2")
		time.Sleep(5 * time.Minute)
		c.used("q", "configmaps=1")

		// Whatever somebody writes into the status is put right at once.
		q, err := core.ResourceQuotas("default").Get(c.ctx, "q", metav1.GetOptions{})
		c.no(err)
		q.Status.Hard, q.Status.Used = amounts("pods=99"), amounts("pods=98")
		_, err = core.ResourceQuotas("default").UpdateStatus(c.ctx, q, metav1.UpdateOptions{})
		c.no(err)
		c.used("q", "pods=0", "configmaps=1")
		q, err = core.ResourceQuotas("default").Get(c.ctx, "q", metav1.GetOptions{})
		c.no(err)
		q.Spec.Hard = amounts("configmaps=7", "secrets=1")
		_, err = core.ResourceQuotas("default").Update(c.ctx, q, metav1.UpdateOptions{})
		c.no(err)
		c.used("q", "configmaps=1", "secrets=0")
		c.no(core.ResourceQuotas("default").Delete(c.ctx, "q", metav1.DeleteOptions{}))
	})
}

// A count made while what was charged cannot be seen yet takes nothing back: the
// quota would let in more than it holds.
func TestQuotaWhileCharged(t *testing.T) {
	watches := fault.NewWatches()
	blind := func(s *apitest.Server) Config {
		cfg := config(s, "resourcequota-controller", "serviceaccount-controller")
		cfg.Kube.Wrap((&fault.Process{Watches: watches}).Wrap("informers"))
		return cfg
	}
	inClusterOf(t, blind, func(c *cluster) {
		core := c.client.CoreV1()
		_, err := core.ResourceQuotas("default").Create(c.ctx, &corev1.ResourceQuota{ObjectMeta: meta("q"), Spec: corev1.ResourceQuotaSpec{Hard: amounts("pods=1")}}, metav1.CreateOptions{})
		c.no(err)
		c.used("q", "pods=0")
		watches.Hold("pods")
		pod := func(name string) error {
			_, err := core.Pods("default").Create(c.ctx, &corev1.Pod{ObjectMeta: meta(name), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
			return err
		}
		time.Sleep(900 * time.Millisecond) // a first count is checked after a second
		c.no(pod("a"))
		time.Sleep(500 * time.Millisecond)
		if err := pod("b"); err == nil || !strings.Contains(err.Error(), "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1") {
			t.Errorf("a second pod: %v", err)
		}
		watches.Release("pods")
		time.Sleep(time.Minute)
		c.used("q", "pods=1")
		c.no(core.Pods("default").Delete(c.ctx, "a", metav1.DeleteOptions{}))
		c.used("q", "pods=0")
	})
}

// A quota may be there before the resource it counts.
func TestQuotaOfCustomResources(t *testing.T) {
	inCluster(t, []string{"resourcequota-controller", "serviceaccount-controller"}, func(c *cluster) {
		_, err := c.client.CoreV1().ResourceQuotas("default").Create(c.ctx, &corev1.ResourceQuota{ObjectMeta: meta("q"), Spec: corev1.ResourceQuotaSpec{
			Hard: amounts("count/foos.example.com=1")}}, metav1.CreateOptions{})
		c.no(err)
		define := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "foos.example.com"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "foos", Kind: "Foo"},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}}}}}
		define.APIVersion, define.Kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
		c.no(c.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", define))
		c.used("q", "count/foos.example.com=0") // the resource is served by then
		foo := func(name string) error {
			return c.post("/apis/example.com/v1/namespaces/default/foos", map[string]any{
				"apiVersion": "example.com/v1", "kind": "Foo", "metadata": map[string]any{"name": name}})
		}
		c.no(foo("a"))
		c.used("q", "count/foos.example.com=1")
		if err := foo("b"); err == nil || !strings.Contains(err.Error(), "exceeded quota: q, requested: count/foos.example.com=1, used: count/foos.example.com=1, limited: count/foos.example.com=1") {
			t.Error(err)
		}
		c.no(c.client.CoreV1().RESTClient().Delete().AbsPath("/apis/example.com/v1/namespaces/default/foos/a").Do(c.ctx).Error())
		c.used("q", "count/foos.example.com=0")
	})
}

// A quota holds the devices of a class that claims ask for.
func TestResourceQuotaOfDevices(t *testing.T) {
	inCluster(t, []string{"resourcequota-controller"}, func(c *cluster) {
		const gold, tin = "gold.deviceclass.resource.k8s.io/devices", "tin.deviceclass.resource.k8s.io/devices"
		claims := c.client.ResourceV1().ResourceClaims("default")
		create := func(name, class string, mode resourcev1.DeviceAllocationMode, count int64) error {
			_, err := claims.Create(c.ctx, &resourcev1.ResourceClaim{ObjectMeta: meta(name), Spec: resourcev1.ResourceClaimSpec{
				Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{
					DeviceClassName: class, AllocationMode: mode, Count: count}}}}}}, metav1.CreateOptions{})
			return err
		}
		c.no(create("before", "gold", resourcev1.DeviceAllocationModeExactCount, 2))
		_, err := c.client.CoreV1().ResourceQuotas("default").Create(c.ctx, &corev1.ResourceQuota{ObjectMeta: meta("q"), Spec: corev1.ResourceQuotaSpec{
			Hard: amounts(gold+"=3", tin+"=31", "count/resourceclaims.resource.k8s.io=9")}}, metav1.CreateOptions{})
		c.no(err)
		c.used("q", gold+"=2", tin+"=0", "count/resourceclaims.resource.k8s.io=1")
		c.no(create("one", "gold", resourcev1.DeviceAllocationModeExactCount, 1))
		c.used("q", gold+"=3", "count/resourceclaims.resource.k8s.io=2")
		for class, want := range map[string]string{
			"gold": `resourceclaims.resource.k8s.io "more" is forbidden: exceeded quota: q, requested: ` + gold + "=32, used: " + gold + "=3, limited: " + gold + "=3",
			"tin":  `resourceclaims.resource.k8s.io "more" is forbidden: exceeded quota: q, requested: ` + tin + "=32, used: " + tin + "=0, limited: " + tin + "=31",
		} {
			if err := create("more", class, resourcev1.DeviceAllocationModeAll, 0); !apierrors.IsForbidden(err) || err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
		}
		c.no(claims.Delete(c.ctx, "before", metav1.DeleteOptions{}))
		c.used("q", gold+"=1", "count/resourceclaims.resource.k8s.io=1")
	})
}
