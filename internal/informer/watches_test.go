package informer_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/informer"
)

// heard is a handler, and the names of the Services that it was told of.
func heard() (cache.ResourceEventHandler, <-chan string) {
	names := make(chan string, 100)
	return cache.ResourceEventHandlerFuncs{AddFunc: func(o any) { names <- o.(*corev1.Service).Name }}, names
}

func next(t *testing.T, names <-chan string) string {
	t.Helper()
	select {
	case name := <-names:
		return name
	case <-time.After(10 * time.Second):
		t.Fatal("heard of nothing")
		return ""
	}
}

func service(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Annotations: map[string]string{"long": "text"}}}
}

// TestShared: components that share have one watch of a kind, which a component that ends
// and begins anew neither ends nor doubles.
func TestShared(t *testing.T) {
	client := fake.NewClientset(service("one"))
	ctx, cancel := context.WithCancel(t.Context())
	shared := informer.NewShared(ctx, client)
	defer shared.Wait()
	defer cancel()
	start := func() (*informer.Watches, cache.SharedIndexInformer, <-chan string, context.CancelFunc) {
		w := informer.NewWatches(shared, nil)
		inf, slices := w.Core().V1().Services().Informer(), w.Discovery().V1().EndpointSlices().Informer()
		if err := w.IndexByService(slices); err != nil {
			t.Fatal(err)
		}
		handler, names := heard()
		synced, err := w.Handle(inf, handler)
		if err != nil {
			t.Fatal(err)
		}
		own, end := context.WithCancel(ctx)
		w.Start(own)
		if !cache.WaitForCacheSync(ctx.Done(), synced, slices.HasSynced) {
			t.Fatal("not synced")
		}
		return w, inf, names, end
	}
	first, inf, ofFirst, end := start()
	second, _, ofSecond, endSecond := start()
	defer endSecond()
	if a, b := next(t, ofFirst), next(t, ofSecond); a != "one" || b != "one" {
		t.Fatalf("heard of %s and %s", a, b)
	}
	end()
	first.Stop()
	create(t, client, service("two"))
	if got := next(t, ofSecond); got != "two" {
		t.Fatalf("heard of %s", got)
	}
	again, same, ofAgain, endAgain := start()
	defer endAgain()
	all := map[string]bool{next(t, ofAgain): true, next(t, ofAgain): true}
	if !all["one"] || !all["two"] || inf != same {
		t.Fatalf("one that begins anew heard of %v", all)
	}
	if len(ofFirst) > 0 {
		t.Fatal("one that has ended heard of something")
	}
	if o, ok, err := inf.GetStore().GetByKey("a/two"); err != nil || !ok || len(o.(*corev1.Service).Annotations) > 0 {
		t.Fatalf("%v, %v, %v", o, ok, err)
	}
	if n := watches(client, "services"); n != 1 {
		t.Fatalf("%d watches of Services", n)
	}
	second.Stop()
	again.Stop()
	handler, names := heard()
	if _, err := again.Handle(inf, handler); err != nil { // one that came while its component ended
		t.Fatal(err)
	}
	create(t, client, service("three"))
	_, _, ofLast, endLast := start()
	defer endLast()
	for range 3 {
		next(t, ofLast)
	}
	for len(names) > 0 { // it may have been told of what there was, before it was taken away
		if name := <-names; name == "three" {
			t.Fatal("a handler stayed")
		}
	}
}

func create(t *testing.T, client *fake.Clientset, s *corev1.Service) {
	t.Helper()
	if _, err := client.CoreV1().Services(s.Namespace).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func watches(client *fake.Clientset, resource string) (n int) {
	for _, a := range client.Actions() {
		if a.Matches("watch", resource) {
			n++
		}
	}
	return n
}

// TestOwn: without others, watches are of the client's user and end with their context.
func TestOwn(t *testing.T) {
	client := fake.NewClientset(service("one"))
	client.PrependReactor("*", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		t.Errorf("%s of pods, which nobody asked for", a.GetVerb())
		return false, nil, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	w := informer.NewWatches(nil, client)
	inf := w.Core().V1().Services().Informer()
	w.Start(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) {
		t.Fatal("not synced")
	}
	cancel()
	w.Stop()
	if !inf.IsStopped() {
		t.Error("still running")
	}
}

// TestSlim: what is kept of each kind is enough for its readers, and no more.
func TestSlim(t *testing.T) {
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "a", Name: "b-x", Labels: map[string]string{discoveryv1.LabelServiceName: "b"},
		Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05Z", "long": "text"},
	}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", UID: "u", Labels: map[string]string{"app": "a"}, Annotations: map[string]string{"long": "text"}},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{
			{Name: "c", Image: "i", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}, {ContainerPort: 81}}}, {Name: "d"},
		}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}, Message: "text"},
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"l": "v"}, Annotations: map[string]string{"long": "text"}}}
	client := fake.NewClientset(slice, pod, namespace)
	ctx, cancel := context.WithCancel(t.Context())
	w := informer.NewWatches(nil, client)
	slices, pods, namespaces := w.Discovery().V1().EndpointSlices().Informer(), w.Core().V1().Pods().Informer(), w.Core().V1().Namespaces().Informer()
	w.Start(ctx)
	defer w.Stop()
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), slices.HasSynced, pods.HasSynced, namespaces.HasSynced) {
		t.Fatal("not synced")
	}
	s := slices.GetStore().List()[0].(*discoveryv1.EndpointSlice)
	if len(s.Annotations) != 1 || s.Annotations[corev1.EndpointsLastChangeTriggerTime] == "" || informer.ServiceOf(s).String() != "a/b" {
		t.Errorf("slice: %v", s)
	}
	p := pods.GetStore().List()[0].(*corev1.Pod)
	if len(p.Annotations) > 0 || p.Labels["app"] != "a" || p.UID != "u" || p.Spec.NodeName != "n" || p.Status.Message != "" || p.Status.PodIPs[0].IP != "10.0.0.1" ||
		len(p.Spec.Containers) != 1 || len(p.Spec.Containers[0].Ports) != 1 || p.Spec.Containers[0].Ports[0].Name != "http" {
		t.Errorf("pod: %v", p)
	}
	n := namespaces.GetStore().List()[0].(*corev1.Namespace)
	if len(n.Annotations) > 0 || n.Labels["l"] != "v" {
		t.Errorf("namespace: %v", n)
	}
}
