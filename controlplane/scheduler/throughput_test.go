package scheduler_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"knarr/controlplane/scheduler"
	"knarr/internal/apitest"
)

// BenchmarkBind is how fast waiting pods are placed and bound through a real
// API server on the memory store: 100 nodes, 5,000 pods.
func BenchmarkBind(b *testing.B) {
	const nodes, pods = 100, 5000
	for b.Loop() {
		b.StopTimer()
		s, stop := apitest.New(b)
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		client := s.Client(b)
		if _, err := client.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
		for i := range nodes {
			n, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)}}, metav1.CreateOptions{})
			if err != nil {
				b.Fatal(err)
			}
			n.Spec.Taints = nil
			if n, err = client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{}); err != nil {
				b.Fatal(err)
			}
			n.Status.Allocatable = corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110"),
			}
			if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
				b.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := w; i < pods; i += 8 {
					p := &corev1.Pod{
						ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", i), Labels: map[string]string{"app": "web"}},
						Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x", Resources: corev1.ResourceRequirements{
							Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
						}}}},
					}
					if _, err := client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		f := informers.NewSharedInformerFactory(client, 0)
		all := make(chan struct{})
		bound := 0
		f.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(old, now any) {
			if old.(*corev1.Pod).Spec.NodeName == "" && now.(*corev1.Pod).Spec.NodeName != "" {
				if bound++; bound == pods {
					close(all)
				}
			}
		}})
		f.StartWithContext(ctx)
		f.WaitForCacheSync(ctx.Done())
		sched, err := scheduler.New(scheduler.Config{Kube: s.Config()})
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		begin := time.Now()
		wg.Go(func() {
			if err := sched.Run(ctx); err != nil {
				b.Error(err)
			}
		})
		select {
		case <-all:
		case <-ctx.Done():
			b.Error("not all pods were bound")
		}
		b.ReportMetric(pods/time.Since(begin).Seconds(), "pods/s")
		b.StopTimer()
		if testing.Verbose() {
			time.Sleep(5 * time.Second)
			ev, err := client.CoreV1().Events("default").List(ctx, metav1.ListOptions{})
			b.Log(len(ev.Items), "events", err)
		}
		cancel()
		wg.Wait()
		f.Shutdown()
		stop()
		b.StartTimer()
	}
}
