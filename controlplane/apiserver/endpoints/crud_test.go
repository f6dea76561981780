package endpoints

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

func TestLifeOfAConfigMap(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	maps := w.client.CoreV1().ConfigMaps("default")

	watcher, err := maps.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()

	made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "v"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if made.UID == "" || made.ResourceVersion == "" || made.CreationTimestamp.IsZero() || made.Namespace != "default" {
		t.Errorf("system fields missing: %+v", made.ObjectMeta)
	}
	if len(made.ManagedFields) != 1 || made.ManagedFields[0].Manager != "tester" ||
		string(made.ManagedFields[0].FieldsV1.GetRawBytes()) != `{"f:data":{".":{},"f:k":{}}}` {
		t.Errorf("managed fields: %+v", made.ManagedFields)
	}
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("second creation: %v", err)
	}

	stale := made.DeepCopy()
	made.Data["k"] = "w"
	if _, err := maps.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	stale.Data["k"] = "x"
	_, err = maps.Update(ctx, stale, metav1.UpdateOptions{})
	if want := `Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to the latest version and try again`; err == nil || err.Error() != want {
		t.Errorf("stale update: %v", err)
	}
	stale.ResourceVersion = ""
	if updated, err := maps.Update(ctx, stale, metav1.UpdateOptions{}); err != nil || updated.Data["k"] != "x" {
		t.Errorf("unconditional update: %v, %v", updated, err)
	}
	list, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Data["k"] != "x" || list.ResourceVersion == "" {
		t.Errorf("list: %+v, %v", list, err)
	}
	if err := maps.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")}); !apierrors.IsConflict(err) {
		t.Errorf("delete with the wrong UID: %v", err)
	}
	if err := maps.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(ctx, "a", metav1.GetOptions{}); err == nil || err.Error() != `configmaps "a" not found` {
		t.Errorf("get after delete: %v", err)
	}
	for i, want := range []watch.EventType{watch.Added, watch.Modified, watch.Modified, watch.Deleted} {
		if e := <-watcher.ResultChan(); e.Type != want {
			t.Errorf("event %d: %s, want %s", i, e.Type, want)
		}
	}
}

func TestGenerateNameAndDryRun(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	maps := w.client.CoreV1().ConfigMaps("default")
	made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}}, metav1.CreateOptions{})
	if err != nil || !strings.HasPrefix(made.Name, "x-") || len(made.Name) != 7 {
		t.Errorf("generated: %v, %v", made.Name, err)
	}
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "dry"}}, metav1.CreateOptions{DryRun: []string{"All"}}); err != nil {
		t.Error(err)
	}
	if _, err := maps.Get(ctx, "dry", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a dry run stored its object: %v", err)
	}
}

func TestGracefulDelete(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	pods := w.client.CoreV1().Pods("default")
	if _, err := pods.Create(ctx, testPod("p", "node"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := pods.Delete(ctx, "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p, err := pods.Get(ctx, "p", metav1.GetOptions{})
	if err != nil || p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 30 || p.Generation != 2 {
		t.Fatalf("after delete: %+v, %v", p, err)
	}
	if err := pods.Delete(ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Get(ctx, "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after forced delete: %v", err)
	}
}

func TestFinalizersHoldAnObject(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	maps := w.client.CoreV1().ConfigMaps("default")
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Finalizers: []string{"x.io/y"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(ctx, "a", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)}); err != nil {
		t.Fatal(err)
	}
	m, err := maps.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || m.DeletionTimestamp == nil || strings.Join(m.Finalizers, ",") != "x.io/y,foregroundDeletion" {
		t.Fatalf("held: %+v, %v", m, err)
	}
	if _, err := maps.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the last finalizer: %v", err)
	}
}

func TestPatches(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	pods := w.client.CoreV1().Pods("default")
	if _, err := pods.Create(ctx, testPod("p", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind types.PatchType
		body string
		want string // image of the container
	}{
		{types.StrategicMergePatchType, `{"spec":{"containers":[{"name":"c","image":"i2"}]}}`, "i2"},
		{types.JSONPatchType, `[{"op":"replace","path":"/spec/containers/0/image","value":"i3"}]`, "i3"},
		{types.MergePatchType, `{"spec":{"containers":[{"name":"c","image":"i4"}]}}`, "i4"},
	} {
		p, err := pods.Patch(ctx, "p", c.kind, []byte(c.body), metav1.PatchOptions{})
		if err != nil || p.Spec.Containers[0].Image != c.want {
			t.Errorf("%s: %v, %v", c.kind, p.Spec.Containers, err)
		}
	}
	code, body, _ := w.do("PATCH", "/api/v1/namespaces/default/pods/p", "application/nonsense", "{}")
	if code != 415 || !strings.Contains(body, "415: Unsupported Media Type") {
		t.Errorf("unknown patch type: %d %s", code, body)
	}
}

func TestServerSideApply(t *testing.T) {
	w := newWorld(t)
	path := "/apis/apps/v1/namespaces/default/deployments/d"
	apply := func(manager, force, body string) (int, string) {
		code, answer, _ := w.do("PATCH", path+"?fieldManager="+manager+force, "application/apply-patch+yaml", body)
		return code, answer
	}
	base := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  replicas: %\n  selector: {matchLabels: {a: b}}\n  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}\n"
	if code, body := apply("one", "", strings.Replace(base, "%", "1", 1)); code != 201 {
		t.Fatalf("first apply: %d %s", code, body)
	}
	code, body := apply("two", "", strings.Replace(base, "%", "2", 1))
	if code != 409 || !strings.Contains(body, `Apply failed with 1 conflict: conflict with \"one\": .spec.replicas`) {
		t.Errorf("conflict: %d %s", code, body)
	}
	if code, body := apply("two", "&force=true", strings.Replace(base, "%", "2", 1)); code != 200 || !strings.Contains(body, `"replicas":2`) {
		t.Errorf("forced: %d %s", code, body)
	}
	d, err := w.client.AppsV1().Deployments("default").Get(context.Background(), "d", metav1.GetOptions{})
	if err != nil || len(d.ManagedFields) != 2 {
		t.Errorf("managers: %+v, %v", d.ManagedFields, err)
	}
}

func TestScale(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	deployments := w.client.AppsV1().Deployments("default")
	if _, err := deployments.Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s, err := deployments.GetScale(ctx, "d", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Spec.Replicas = 5
	if s, err = deployments.UpdateScale(ctx, "d", s, metav1.UpdateOptions{}); err != nil || s.Spec.Replicas != 5 {
		t.Errorf("update: %+v, %v", s, err)
	}
	d, err := deployments.Get(ctx, "d", metav1.GetOptions{})
	if err != nil || *d.Spec.Replicas != 5 {
		t.Errorf("deployment: %+v, %v", d.Spec, err)
	}
}

func testPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}
