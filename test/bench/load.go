package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/test/bench/rig"
)

const (
	clients   = 32
	namespace = "bench"
)

// each calls do for 0 to n-1 from so many goroutines, until one fails, and
// returns how long it took in all and each in order.
func each(ctx context.Context, workers, n int, do func(ctx context.Context, i int) error) (time.Duration, []time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	took := make([]time.Duration, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range workers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				at := time.Now()
				if err := do(ctx, i); err != nil {
					cancel(fmt.Errorf("operation %d: %w", i, err))
					return
				}
				took[i] = time.Since(at)
			}
		})
	}
	wg.Wait()
	return time.Since(began), took, context.Cause(ctx)
}

// quantile of durations, in milliseconds.
func quantile(d []time.Duration, q float64) float64 {
	s := slices.Sorted(slices.Values(d))
	return float64(s[min(len(s)-1, int(float64(len(s))*q))]) / float64(time.Millisecond)
}

// parts is in how many turns a side makes its operations.
const parts = 10

// costly measures n operations: their rate, and the servers' CPU for each.
func (r *run) costly(ctx context.Context, c *rig.Cluster, line string, workers, n int, do func(ctx context.Context, i int) error) error {
	profiled := r.profile(ctx, c, line)
	took, cpu, err := r.alternate(ctx, c, n, func(from, to int) error {
		_, _, err := each(ctx, workers, to-from, func(ctx context.Context, i int) error { return do(ctx, from+i) })
		return err
	})
	profiled()
	if err != nil {
		return fmt.Errorf("%s: %w", line, err)
	}
	r.put(line, float64(n)/took.Seconds())
	r.put(line+", server CPU", float64(cpu.Microseconds())/float64(n))
	return c.Alive()
}

// alternate has n operations done in parts, and the other side's between them,
// while this one's servers rest. It returns how long the operations took, and how
// much of the servers' CPU, with what was still to do after them.
func (r *run) alternate(ctx context.Context, c *rig.Cluster, n int, do func(from, to int) error) (took, cpu time.Duration, err error) {
	for part := range parts {
		if err := errors.Join(c.Rest(ctx), r.pass(ctx)); err != nil {
			return 0, 0, err
		}
		before, err := c.CPU()
		if err != nil {
			return 0, 0, err
		}
		began := time.Now()
		if err := do(part*n/parts, (part+1)*n/parts); err != nil {
			return 0, 0, err
		}
		took += time.Since(began)
		if err := c.Rest(ctx); err != nil {
			return 0, 0, err
		}
		after, err := c.CPU()
		if err != nil {
			return 0, 0, err
		}
		cpu += after - before
	}
	return took, cpu, nil
}

// profile fetches the API server's CPU profile meanwhile, and its heap's at the
// end, if that was asked for. It costs some percent.
func (r *run) profile(ctx context.Context, c *rig.Cluster, line string) (wait func()) {
	if r.e.profiles == "" {
		return func() {}
	}
	name := strings.NewReplacer(" ", "-", ",", "", "/", "-").Replace(string(r.side) + "-" + line)
	fetch := func(what, key, value string) {
		client, err := c.Client()
		if err == nil {
			var data []byte
			data, err = client.CoreV1().RESTClient().Get().AbsPath("/debug/pprof/"+what).Param(key, value).DoRaw(ctx)
			if err == nil {
				err = os.WriteFile(filepath.Join(r.e.profiles, name+"."+what), data, 0o644)
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "profile:", err)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { fetch("profile", "seconds", "2") })
	return func() {
		wg.Wait()
		fetch("heap", "gc", "1")
	}
}

// prepare makes the namespace and what its pods need when no controller runs.
func prepare(ctx context.Context, client kubernetes.Interface) error {
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	for { // the controllers, when they run, make it as well
		_, err := client.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		if err == nil {
			return nil
		}
		if _, gerr := client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{}); gerr == nil {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
	}
}

// pod is one as controllers make them, about 2.4 KB of JSON when stored.
func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: namespace,
			Labels:      map[string]string{"app": "bench", "pod-template-hash": "7d4b9c6f5d", "tier": "backend"},
			Annotations: map[string]string{"example.com/owner": "team-storage", "example.com/revision": "42"},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example.com/app/main:v1.2.3", Args: []string{"serve", "--port=8080"},
				Env: []corev1.EnvVar{
					{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
					{Name: "LEVEL", Value: "info"}, {Name: "REGION", Value: "north"},
				},
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{"cpu": resource.MustParse("10m"), "memory": resource.MustParse("16Mi")},
					Limits:   corev1.ResourceList{"memory": resource.MustParse("64Mi")},
				},
				VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/app"}},
			}},
			Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "app-config"}}}}},
		},
	}
}

// typed is a pod that says what it is, as bodies must.
func typed(p *corev1.Pod) *corev1.Pod {
	p.APIVersion, p.Kind = "v1", "Pod"
	return p
}

type clientset = kubernetes.Clientset

func clientFor(cfg *rest.Config) (*clientset, error) { return kubernetes.NewForConfig(cfg) }

func dialer() func(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: 10 * time.Second}).DialContext
}
