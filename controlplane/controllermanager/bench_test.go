package controllermanager

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/apitest"
)

// BenchmarkDeployment makes a Deployment of 2,000 pods, on the memory store
// and without nodes, and deletes it in the foreground.
func BenchmarkDeployment(b *testing.B) {
	const size = 2000
	for b.Loop() {
		s, stop := apitest.New(b)
		ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
		m, err := New(Config{Kube: s.Config()})
		if err != nil {
			b.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		client := s.Client(b)
		var pods atomic.Int64
		changed := make(chan struct{}, 1)
		note := func(n int64) {
			pods.Add(n)
			select {
			case changed <- struct{}{}:
			default:
			}
		}
		lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", "default", fields.Everything())
		inf := cache.NewSharedIndexInformer(lw, &corev1.Pod{}, 0, nil)
		_, err = inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { note(1) }, DeleteFunc: func(any) { note(-1) }})
		if err != nil {
			b.Fatal(err)
		}
		go inf.RunWithContext(ctx)
		wait := func(n int64) {
			for pods.Load() != n {
				select {
				case <-changed:
				case <-ctx.Done():
					b.Fatalf("%d pods, want %d", pods.Load(), n)
				}
			}
		}
		api := client.AppsV1().Deployments("default")
		for { // the service account must be there
			if _, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		began := time.Now()
		if _, err := api.Create(ctx, &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(size)), Selector: selector, Template: template}}, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
		wait(size)
		b.ReportMetric(size/time.Since(began).Seconds(), "created/s")
		time.Sleep(time.Second)
		began = time.Now()
		if err := api.Delete(ctx, "web", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)}); err != nil {
			b.Fatal(err)
		}
		wait(0)
		b.ReportMetric(size/time.Since(began).Seconds(), "deleted/s")
		cancel()
		if err := <-ended; err != nil {
			b.Fatal(err)
		}
		stop()
	}
}
